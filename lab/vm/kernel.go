package vm

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// kernelPackage is Debian's name for its current kernel; the "cloud" kernel lacks 9p.
const kernelPackage = "linux-image-amd64"

// kernel is an unpacked kernel package.
type kernel struct {
	release string // as uname -r says it
	dir     string
}

func (k kernel) image() string   { return filepath.Join(k.dir, "vmlinuz") }
func (k kernel) modules() string { return filepath.Join(k.dir, "lib/modules") }

// kept are the directories of a kernel package's modules that a lab may need. The others, drivers of hardware that no virtual machine
// has, are 9/10 of the package.
var kept = []string{"arch", "crypto", "lib", "fs", "net", "drivers/block", "drivers/char", "drivers/net", "drivers/vhost", "drivers/virtio"} //nolint:gochecknoglobals // a constant table

var dropped = []string{"drivers/net/ethernet", "drivers/net/wireless", "drivers/net/can", "drivers/net/usb"} //nolint:gochecknoglobals // a constant table

// ensureKernel returns the newest kernel of the cache. Into an empty cache it unpacks Debian's current one, without installing it, so
// that the machine's own /boot and /lib/modules are not changed.
func ensureKernel(ctx context.Context, cache string) (kernel, error) {
	folder := filepath.Join(cache, "kernel")
	if k, found, err := newest(folder); found || err != nil {
		return k, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return kernel{}, fmt.Errorf("make the cache of kernels: %w", err)
	}
	scratch, err := os.MkdirTemp(folder, ".new-")
	if err != nil {
		return kernel{}, fmt.Errorf("make the cache of kernels: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	deb, err := download(ctx, scratch)
	if err != nil {
		return kernel{}, err
	}
	k := kernel{dir: filepath.Join(scratch, "kernel")}
	if err := k.unpack(ctx, deb); err != nil {
		return kernel{}, err
	}
	if err := os.Rename(k.dir, filepath.Join(folder, k.release)); err != nil && !errors.Is(err, os.ErrExist) {
		return kernel{}, fmt.Errorf("keep the kernel: %w", err) // one from a concurrent run is as good
	}
	k.dir = filepath.Join(folder, k.release)
	return k, nil
}

func newest(folder string) (k kernel, found bool, err error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return kernel{}, false, nil
	}
	if err != nil {
		return kernel{}, false, fmt.Errorf("look for a kernel: %w", err)
	}
	for _, e := range slices.Backward(entries) {
		if !strings.HasPrefix(e.Name(), ".") {
			return kernel{release: e.Name(), dir: filepath.Join(folder, e.Name())}, true, nil
		}
	}
	return kernel{}, false, nil
}

// download downloads the package on which Debian's kernel package depends, by apt, which verifies it.
func download(ctx context.Context, dir string) (string, error) {
	if _, err := output(ctx, dir, "apt-get", "update", "-q"); err != nil {
		return "", err
	}
	depends, err := output(ctx, dir, "apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return "", err
	}
	name, err := dependency(depends)
	if err != nil {
		return "", err
	}
	if _, err := output(ctx, dir, "apt-get", "download", "-q", name); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("download %s: %d files instead of one: %w", name, len(found), err)
	}
	return found[0], nil
}

// ErrKernel reports a package without the files of a kernel package.
var ErrKernel = errors.New("not a kernel package as Debian makes them")

// dependency finds the image's package in apt-cache's output about the package that depends on it.
func dependency(said string) (string, error) {
	for line := range strings.Lines(said) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return "linux-image-" + name, nil
		}
	}
	return "", fmt.Errorf("%s depends on no linux-image-VERSION: %w: %s", kernelPackage, ErrKernel, said)
}

// unpack extracts the image and the modules from a package, and indexes them.
func (k *kernel) unpack(ctx context.Context, deb string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("unpack %s: %w", deb, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("unpack %s: %w", deb, err)
	}
	err = k.read(tar.NewReader(out))
	if err != nil {
		_ = cmd.Process.Kill()
	}
	if ended := cmd.Wait(); err == nil && ended != nil {
		err = fmt.Errorf("%w: %s", ended, said.String())
	}
	if err == nil && k.release == "" {
		err = ErrKernel
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", deb, err)
	}
	_, err = output(ctx, k.dir, "depmod", "-b", k.dir, k.release)
	return err
}

func (k *kernel) read(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name, ok := placeOf(path.Clean(h.Name))
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		if release, ok := strings.CutPrefix(path.Base(h.Name), "vmlinuz-"); ok {
			k.release = release
		}
		if err := writeFile(filepath.Join(k.dir, name), r); err != nil {
			return err
		}
	}
}

// placeOf returns the path where a file of the package is kept, if it is.
func placeOf(name string) (string, bool) {
	if strings.HasPrefix(name, "boot/vmlinuz-") {
		return "vmlinuz", true
	}
	rest, ok := strings.CutPrefix(name, "lib/modules/")
	if !ok || !filepath.IsLocal(name) {
		return "", false
	}
	_, inside, _ := strings.Cut(rest, "/") // after the release
	module, ok := strings.CutPrefix(inside, "kernel/")
	if !ok {
		return name, strings.HasPrefix(inside, "modules.") // depmod reads them
	}
	below := func(dir string) bool { return strings.HasPrefix(module, dir+"/") }
	return name, slices.ContainsFunc(kept, below) && !slices.ContainsFunc(dropped, below)
}

func writeFile(name string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// load lists the files of modules in loading order.
func (k kernel) load(modules []string) ([]string, error) {
	dir := filepath.Join(k.modules(), k.release)
	raw, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("read what modules need: %w", err)
	}
	files, err := loadOrder(string(raw), modules)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w (remove %s to get another)", k.release, err, k.dir)
	}
	for i, f := range files {
		files[i] = filepath.Join(dir, f)
	}
	return files, nil
}

// ErrModule reports that a kernel does not have a module.
var ErrModule = errors.New("no such module")

// loadOrder reads modules.dep (modules.dep(5): "file: files that it needs") and orders dependencies first.
func loadOrder(dep string, modules []string) ([]string, error) {
	needs, files := map[string][]string{}, map[string]string{}
	for line := range strings.Lines(dep) {
		file, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok {
			needs[file] = strings.Fields(rest)
			files[strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".ko"), "-", "_")] = file
		}
	}
	var order []string
	var visit func(file string)
	visit = func(file string) {
		if slices.Contains(order, file) {
			return
		}
		for _, n := range needs[file] {
			visit(n)
		}
		order = append(order, file)
	}
	for _, m := range modules {
		file, ok := files[m]
		if !ok {
			return nil, fmt.Errorf("%s: %w", m, ErrModule)
		}
		visit(file)
	}
	return order, nil
}

// output runs a command to its end.
func output(ctx context.Context, dir string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var said strings.Builder
	cmd.Dir, cmd.Stderr = dir, &said
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}
