// Package lab starts whole clusters on one machine, for tests and for users: a real API server, nodes that are namespaces with their own
// Open vSwitch, and pods, either of real kubelets or attached through libcni as a container runtime would. Everything runs below one
// supervisor per lab and is removed by Down, also after a crash.
package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/lab/supervisor"
)

// Config is the configuration of a lab; its zero value is a lab "lab" of two nodes without kubelets.
type Config = plan.Config

// Errors that a caller may want to distinguish.
var (
	ErrRoot    = errors.New("weft-lab makes namespaces, links and mounts: run it as root")
	ErrMissing = errors.New("programs are missing on this machine")
	ErrOther   = errors.New("a lab of this name runs with other settings: `weft-lab down` it first, or choose another --name")
	ErrFailed  = errors.New("the lab did not come up")
	ErrNone    = errors.New("there is no such lab: start it with `weft-lab up`")
)

// Up starts a lab, or joins one with the same settings that is starting or running, and returns when it serves. It first removes what a
// killed run of the same name left. When the context ends, the lab continues to start; Down ends it. Progress may be nil.
func Up(ctx context.Context, cfg Config, progress report.Progress) (*Cluster, error) {
	cfg, err := complete(cfg)
	if err != nil {
		return nil, err
	}
	if err := launch(ctx, cfg, progress); err != nil {
		return nil, err
	}
	l := plan.New(cfg)
	if err := follow(ctx, l, progress); err != nil {
		return nil, err
	}
	return Open(ctx, cfg.Name)
}

// complete sets the configuration's missing directories, relative to the running program, and checks the machine.
func complete(cfg Config) (Config, error) {
	cfg, err := cfg.Default()
	if err != nil {
		return cfg, err
	}
	if os.Geteuid() != 0 {
		return cfg, ErrRoot
	}
	if cfg.WeftBin == "" {
		self, err := os.Executable()
		if err != nil {
			return cfg, fmt.Errorf("find the running program: %w", err)
		}
		cfg.WeftBin = filepath.Dir(self)
	}
	if cfg.WeftBin, err = filepath.Abs(cfg.WeftBin); err != nil {
		return cfg, fmt.Errorf("find Weft's programs: %w", err)
	}
	if cfg.DeployDir == "" {
		cfg.DeployDir = beside(cfg.WeftBin, "deploy")
	}
	if cfg.KubernetesModule == "" {
		cfg.KubernetesModule = beside(cfg.WeftBin, "lab/kubernetes")
	}
	return cfg, CheckMachine(cfg)
}

// beside finds a directory of the project next to the programs, in the directories above, or in the working directory.
func beside(bin, name string) string {
	starts := []string{bin}
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			if st, err := os.Stat(filepath.Join(dir, name)); err == nil && st.IsDir() {
				return filepath.Join(dir, name)
			}
			if dir == "/" {
				break
			}
		}
	}
	return ""
}

// packages are Debian's packages of the programs that a lab runs.
var packages = []struct{ program, pkg string }{ //nolint:gochecknoglobals // a constant table
	{"etcd", "etcd-server"},
	{"ovsdb-server", "openvswitch-switch"},
	{"ovs-vswitchd", "openvswitch-switch"},
	{"ovs-vsctl", "openvswitch-common openvswitch-switch"},
	{"nft", "nftables"},
	{"nsenter", "util-linux"},
}

var kubeletPackages = []struct{ program, pkg string }{ //nolint:gochecknoglobals // a constant table
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{"busybox", "busybox-static"},
	{"curl", "curl"},
	{"wget", "wget"},
	{"nc.openbsd", "netcat-openbsd"},
	{"dig", "bind9-dnsutils"},
	{"nslookup", "bind9-dnsutils"},
}

// vpcPackages are the packages for Config.VPC: OVN's programs run as processes or become part of Weft's image.
var vpcPackages = []struct{ program, pkg string }{ //nolint:gochecknoglobals // a constant table
	{"ovn-northd", "ovn-central"},
	{"ovn-nbctl", "ovn-common"},
	{"ovn-controller", "ovn-host"},
}

// CheckMachine returns an error that lists missing programs, and their packages.
func CheckMachine(cfg Config) error {
	want := packages
	if cfg.Runtime == plan.RuntimeKubelet {
		want = append(append(want[:0:0], want...), kubeletPackages...)
	}
	if cfg.VPC || cfg.OpenStack == plan.OpenStackOVN {
		want = append(slices.Clip(want), vpcPackages...)
	}
	var programs, pkgs []string
	for _, w := range want {
		if _, err := exec.LookPath(w.program); err != nil {
			programs = append(programs, w.program)
			if !strings.Contains(strings.Join(pkgs, " "), w.pkg) {
				pkgs = append(pkgs, w.pkg)
			}
		}
	}
	if len(programs) > 0 {
		return fmt.Errorf("%w: %s; install them with: apt-get install --no-install-recommends %s",
			ErrMissing, strings.Join(programs, ", "), strings.Join(pkgs, " "))
	}
	return nil
}

// launch starts a supervisor for the lab, unless one runs.
func launch(ctx context.Context, cfg Config, progress report.Progress) error {
	lock, err := machine.Acquire(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	l := plan.New(cfg)
	if st, err := Inspect(ctx, cfg.Name); err == nil && st.Phase != report.Dead && st.Phase != report.Failed {
		if st.Config != cfg {
			return fmt.Errorf("lab %s: %w", cfg.Name, ErrOther)
		}
		return nil
	}
	if err := remove(ctx, cfg.Name, progress); err != nil {
		return err
	}
	return start(ctx, l)
}

func start(ctx context.Context, l plan.Lab) error {
	taken, err := ground.HostNetworks()
	if err != nil {
		return err
	}
	if _, err := machine.Enter(l.Config, taken); err != nil {
		return err
	}
	for _, dir := range []string{l.Dir, l.RunDir, l.Path("log")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	log, err := os.OpenFile(l.Path("log", "supervisor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start the lab's supervisor: %w", err)
	}
	defer func() { _ = log.Close() }()
	self := filepath.Join(l.WeftBin, "weft-lab")
	cmd := exec.Command(self, "supervise", l.Name) //nolint:gosec // the lab's own program; it outlives the context
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the lab's supervisor: %w (Config.WeftBin names the folder with weft-lab)", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return awaitSocket(ctx, l, ended)
}

func awaitSocket(ctx context.Context, l plan.Lab, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if _, err := status(ctx, l); err == nil {
			return nil
		}
		select {
		case err := <-ended:
			tail, _ := os.ReadFile(l.Path("log", "supervisor.log"))
			return fmt.Errorf("the lab's supervisor ended: %w\n%s", err, tail)
		case <-ctx.Done():
			return fmt.Errorf("the lab's supervisor does not answer, see %s: %w", l.Path("log", "supervisor.log"), ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// client returns an HTTP client of a lab's supervisor.
func client(l plan.Lab) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", l.Socket())
	}}}
}

func ask(ctx context.Context, l plan.Lab, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask lab %s: %w", l.Name, err)
	}
	res, err := client(l).Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask lab %s: %w", l.Name, err)
	}
	return res, nil
}

func status(ctx context.Context, l plan.Lab) (report.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var st report.Status
	res, err := ask(ctx, l, http.MethodGet, "/status")
	if err != nil {
		return st, err
	}
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(&st); err != nil {
		return st, fmt.Errorf("read the status of lab %s: %w", l.Name, err)
	}
	return st, nil
}

// follow passes on the events of the start, and returns its result.
func follow(ctx context.Context, l plan.Lab, progress report.Progress) error {
	res, err := ask(ctx, l, http.MethodGet, "/events")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		var e report.Event
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			return fmt.Errorf("read the progress of lab %s: %w", l.Name, err)
		}
		if progress != nil {
			progress(e)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("lab %s goes on coming up without you: %w", l.Name, ctx.Err())
	}
	st, err := status(ctx, l)
	if err != nil {
		return err
	}
	if st.Phase != report.Up {
		return fmt.Errorf("lab %s: %w: %s (logs: %s; then `weft-lab down --name %s`)", l.Name, ErrFailed, st.Error, st.LogDir, l.Name)
	}
	return nil
}

// Inspect returns the state of a lab. If only the rest of a killed one exists, the phase is Dead; without anything, the error is ErrNone.
func Inspect(ctx context.Context, name string) (report.Status, error) {
	if err := plan.CheckName(name); err != nil {
		return report.Status{}, err
	}
	ledger, err := machine.ReadLedger()
	if err != nil {
		return report.Status{}, err
	}
	entry, known := ledger.Labs[name]
	l := plan.New(entry.Config)
	if !known {
		return report.Status{}, fmt.Errorf("lab %s: %w", name, ErrNone)
	}
	if machine.ReadPid(supervisor.PidFile(l)) == 0 {
		return report.Status{Name: name, Phase: report.Dead, Config: entry.Config, LogDir: l.Path("log")}, nil
	}
	return status(ctx, l)
}

// List returns the names of the labs of this machine.
func List() ([]string, error) {
	ledger, err := machine.ReadLedger()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(ledger.Labs))
	for n := range ledger.Labs {
		names = append(names, n)
	}
	return names, nil
}
