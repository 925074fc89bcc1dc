// Package kubebuild builds Kubernetes' programs, and the cluster's DNS server, from their Go modules on first use and caches them.
package kubebuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultCache is the directory of the programs, with a subdirectory per version. WEFT_LAB_CACHE in the environment replaces it.
const DefaultCache = "/var/cache/weft-lab"

// Config says what to build and from which modules.
type Config struct {
	Module   string // the directory with the go.mod that requires k8s.io/kubernetes; CoreDNS' module is beside it
	Kubelets bool   // also the programs that run pods
	Proxy    bool   // also kube-proxy, which is one of the programs that run pods
	// Run runs a command to its end.
	Run func(ctx context.Context, stdin string, argv ...string) (string, error)
	// Step reports and runs a step of the work.
	Step func(name string, f func() error) error
}

const proxy = "kube-proxy"

var (
	control = []string{"kube-apiserver", "kubectl"}                                                                    //nolint:gochecknoglobals // a constant table
	kubelet = []string{"kube-controller-manager", "kube-scheduler", "kubelet", proxy, "agnhost"}                       //nolint:gochecknoglobals // a constant table
	version = regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes (v(\d+)\.(\d+)\.[0-9A-Za-z.+-]+)(?:\s|$)`) //nolint:gochecknoglobals // a constant
	pkgs    = map[string]string{"agnhost": "k8s.io/kubernetes/test/images/agnhost"}                                    //nolint:gochecknoglobals // a constant table
	coredns = regexp.MustCompile(`(?m)^\s*(?:require\s+)?github\.com/coredns/coredns (v[0-9A-Za-z.+-]+)(?:\s|$)`)      //nolint:gochecknoglobals // a constant
)

// ErrVersion reports that a module does not require a version of its program.
var ErrVersion = errors.New("no requirement of the program's own module")

// Version reads the version of Kubernetes from the module's go.mod: complete, major, minor.
func Version(module string) ([3]string, error) {
	path := filepath.Join(module, "go.mod")
	raw, err := os.ReadFile(path)
	if err != nil {
		return [3]string{}, fmt.Errorf("read Kubernetes' version: %w (name the folder with --kubernetes-module)", err)
	}
	return parseVersion(path, string(raw))
}

func parseVersion(path, text string) ([3]string, error) {
	m := version.FindStringSubmatch(text)
	if m == nil {
		return [3]string{}, fmt.Errorf("%s: %w", path, ErrVersion)
	}
	return [3]string{m[1], m[2], m[3]}, nil
}

// CoreDNS returns the file name of the DNS server's program, which includes the version.
func CoreDNS(module string) (string, error) {
	path := filepath.Join(corednsModule(module), "go.mod")
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read CoreDNS' version: %w (its module is expected beside Kubernetes')", err)
	}
	m := coredns.FindSubmatch(raw)
	if m == nil {
		return "", fmt.Errorf("%s: %w", path, ErrVersion)
	}
	return "coredns-" + string(m[1]), nil
}

func corednsModule(module string) string {
	return filepath.Join(filepath.Dir(filepath.Clean(module)), "coredns")
}

// Folder returns the directory of the programs of the module's version.
func Folder(module string) (string, error) {
	v, err := Version(module)
	return folder(v), err
}

func folder(v [3]string) string { return filepath.Join(Cache(), "kubernetes", v[0]) }

// Cache returns the directory where the lab keeps what takes long to build or download.
func Cache() string {
	cache := os.Getenv("WEFT_LAB_CACHE") //nolint:forbidigo // the place is the machine's: the same for every lab, program and test
	if cache == "" {
		cache = DefaultCache
	}
	return cache
}

// Ensure builds missing programs and returns their directory. One go command builds the missing programs of one module: it compiles
// shared packages once and links the programs concurrently.
func Ensure(ctx context.Context, c Config) (string, error) {
	v, err := Version(c.Module)
	if err != nil {
		return "", err
	}
	bin := folder(v)
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("make %s: %w", bin, err)
	}
	programs, err := c.programs(v)
	if err != nil {
		return "", err
	}
	for _, module := range []string{c.Module, corednsModule(c.Module)} {
		missing := slices.DeleteFunc(slices.Clone(programs), func(p program) bool { return p.module != module || exists(filepath.Join(bin, p.name)) })
		if len(missing) == 0 {
			continue
		}
		var titles []string
		for _, p := range missing {
			titles = append(titles, p.title)
		}
		if err := c.Step("build "+strings.Join(titles, ", "), func() error { return c.build(ctx, bin, missing) }); err != nil {
			return "", err
		}
	}
	return bin, nil
}

// program is one program to build.
type program struct {
	name   string // of its file
	output string // what go build names the file
	title  string // for messages
	module string // the directory that it is built in
	pkg    string
	flags  string // for the linker
}

func (c Config) programs(v [3]string) ([]program, error) {
	const x = "-X k8s.io/component-base/version."
	flags := strings.Join([]string{"-s -w", x + "gitVersion=" + v[0], x + "gitMajor=" + v[1], x + "gitMinor=" + v[2], x + "gitTreeState=clean"}, " ")
	var programs []program
	add := func(names []string) {
		for _, name := range names {
			pkg, special := pkgs[name]
			if !special {
				pkg = "k8s.io/kubernetes/cmd/" + name
			}
			programs = append(programs, program{name: name, output: name, title: name + " " + v[0], module: c.Module, pkg: pkg, flags: flags})
		}
	}
	add(control)
	switch {
	case c.Kubelets:
	case c.Proxy:
		add([]string{proxy})
		fallthrough
	default:
		return programs, nil
	}
	add(kubelet)
	dns, err := CoreDNS(c.Module)
	if err != nil {
		return nil, err
	}
	return append(programs, program{name: dns, output: "coredns", title: dns, module: corednsModule(c.Module), pkg: ".", flags: "-s -w"}), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// build builds programs of one module. It locks the directory, so that labs that start at the same time build a program once. A program
// gets its name only when it is complete.
func (c Config) build(ctx context.Context, bin string, programs []program) error {
	unlock, err := lock(ctx, bin)
	if err != nil {
		return err
	}
	defer unlock()
	programs = slices.DeleteFunc(programs, func(p program) bool { return exists(filepath.Join(bin, p.name)) })
	if len(programs) == 0 {
		return nil
	}
	half := filepath.Join(bin, ".new")
	defer func() { _ = os.RemoveAll(half) }()
	if err := errors.Join(os.RemoveAll(half), os.Mkdir(half, 0o755)); err != nil {
		return fmt.Errorf("make %s: %w", half, err)
	}
	first := programs[0]
	argv := []string{"env", "-C", first.module, "CGO_ENABLED=0", "GOWORK=off", "go", "build", "-trimpath", "-ldflags", first.flags, "-o", half + "/"}
	for _, p := range programs {
		argv = append(argv, p.pkg)
	}
	if _, err := c.Run(ctx, "", argv...); err != nil {
		return fmt.Errorf("build %s and %d more: %w", first.title, len(programs)-1, err)
	}
	for _, p := range programs {
		if err := os.Rename(filepath.Join(half, p.output), filepath.Join(bin, p.name)); err != nil {
			return fmt.Errorf("keep %s: %w", p.name, err)
		}
	}
	return nil
}

func lock(ctx context.Context, dir string) (func(), error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("another lab builds into %s: %w", dir, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
