// Package guest is the first process of the lab's virtual machine: it mounts the machine's own files as the root, loads modules, runs one
// command, and reports how that ended.
package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Paths in the initramfs.
const (
	Init      = "/init" // the kernel starts it
	FileTask  = "/task.json"
	DirModule = "/modules" // loaded in the order of their names
)

// The emulator's names of its devices.
const (
	TagRoot    = "root"        // the file system that the machine shares with the guest
	PortOutput = "weft.output" // output of the command
	PortResult = "weft.result" // its exit code, in digits
)

// Task is the task of a virtual machine.
type Task struct {
	Argv    []string `json:"argv"`
	Dir     string   `json:"dir"`
	Env     []string `json:"env"`
	Kernel  string   `json:"kernel"`  // mounted at /lib/modules
	Modules []string `json:"modules"` // loaded before the command starts
	Empty   []string `json:"empty"`   // directories that are empty in the guest
}

// Main runs as the first process. It powers off the machine at the end.
func Main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "weft-lab: the virtual machine:", err)
	} else if err := report(PortResult, strconv.Itoa(code)); err != nil {
		fmt.Fprintln(os.Stderr, "weft-lab: the virtual machine: tell the result:", err)
	}
	unix.Sync()
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Fprintln(os.Stderr, "weft-lab: the virtual machine does not power off:", err)
	select {}
}

func run() (int, error) {
	raw, err := os.ReadFile(FileTask)
	if err != nil {
		return 0, fmt.Errorf("read the task: %w", err)
	}
	var task Task
	if err := json.Unmarshal(raw, &task); err != nil {
		return 0, fmt.Errorf("read the task: %w", err)
	}
	if err := loadModules(); err != nil {
		return 0, err
	}
	if err := task.makeRoot(); err != nil {
		return 0, err
	}
	if err := task.prepare(); err != nil {
		return 0, err
	}
	return task.execute()
}

func loadModules() error {
	entries, err := os.ReadDir(DirModule)
	if err != nil {
		return fmt.Errorf("list modules: %w", err)
	}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(DirModule, e.Name()))
		if err != nil {
			return fmt.Errorf("load %s: %w", e.Name(), err)
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", e.Name(), err)
		}
	}
	return nil
}

// mountAt makes a directory and mounts there.
func mountAt(source, target, kind, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", target, err)
	}
	flags, data := uintptr(0), options
	if kind == "bind" {
		flags, kind = unix.MS_BIND, ""
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s %s at %s: %w", kind, source, target, err)
	}
	return nil
}

// makeRoot mounts the machine's own files as the root in place of the initramfs, with a layer above them for writes.
func (t Task) makeRoot() error {
	const lower, layer, root = "/lower", "/layer", "/root"
	steps := [][4]string{
		// While the guest runs, nothing changes files there that the guest would read again.
		{TagRoot, lower, "9p", "trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro"},
		{"tmpfs", layer, "tmpfs", "mode=0755,size=90%"},
	}
	for _, s := range steps {
		if err := mountAt(s[0], s[1], s[2], s[3]); err != nil {
			return err
		}
	}
	for _, d := range []string{layer + "/upper", layer + "/work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return fmt.Errorf("make the layer that is written to: %w", err)
		}
	}
	if err := mountAt("overlay", root, "overlay", "lowerdir="+lower+",upperdir="+layer+"/upper,workdir="+layer+"/work"); err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("go to the new root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return os.Chdir("/")
}

// prepare makes the root like that of a started system.
func (t Task) prepare() error {
	steps := [][4]string{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"devtmpfs", "/dev", "devtmpfs", ""},
		{"devpts", "/dev/pts", "devpts", "ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", ""},
		{"tmpfs", "/run", "tmpfs", "mode=0755"},
		{t.Kernel, "/lib/modules", "bind", ""},
	}
	for _, d := range t.Empty {
		steps = append(steps, [4]string{"tmpfs", d, "tmpfs", "mode=0755"})
	}
	for _, s := range steps {
		if err := mountAt(s[0], s[1], s[2], s[3]); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(to, "/dev/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if err := unix.Sethostname([]byte("weft-vm")); err != nil {
		return fmt.Errorf("name the machine: %w", err)
	}
	const files = 1 << 20 // as with systemd; the kernel's own limit is 4096, too few for a switch
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}); err != nil {
		return fmt.Errorf("allow for more open files: %w", err)
	}
	return nil
}

// switchNeeds is the minimum uptime of the machine before a switch is started. ovs-vswitchd 3.1 caches the number of processors for 10 s,
// starting with 0 at clock time 0. So one that is started in the clock's first 10 s sees none, starts no handler threads and loses every
// first packet of a flow (lib/ovs-thread.c, count_cpu_cores).
const switchNeeds = 11 * time.Second

func awaitClock() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	<-time.After(switchNeeds - time.Duration(now.Nano()))
	return nil
}

// execute loads the command's modules, runs it, and meanwhile reaps every ended process, as the first process of a machine must.
func (t Task) execute() (int, error) {
	out, err := port(PortOutput)
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", t.Argv[0], err)
	}
	for _, m := range t.Modules {
		code, err := t.start(null, out, []string{"/sbin/modprobe", m}).wait()
		if err != nil || code != 0 {
			return 0, fmt.Errorf("load module %s: exit code %d: %w", m, code, err)
		}
	}
	if slices.Contains(t.Modules, "openvswitch") {
		if err := awaitClock(); err != nil {
			return 0, err
		}
	}
	return t.start(null, out, t.Argv).wait()
}

type child struct {
	pid int
	err error
}

func (t Task) start(in, out *os.File, argv []string) child {
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: t.Dir, Env: t.Env, Files: []uintptr{in.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	return child{pid: pid, err: err}
}

// wait returns the child's exit code; for a child ended by a signal it is 128 plus the signal's number, as in a shell.
func (c child) wait() (int, error) {
	if c.err != nil {
		return 0, fmt.Errorf("start: %w", c.err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for process %d: %w", c.pid, err)
		}
		if pid != c.pid || !status.Exited() && !status.Signaled() {
			continue
		}
		if status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return status.ExitStatus(), nil
	}
}

// port opens one of the emulator's ports by its name, which is in /sys.
func port(name string) (*os.File, error) {
	found, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, fmt.Errorf("find port %s: %w", name, err)
	}
	for _, path := range found {
		raw, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(raw)) == name {
			device := filepath.Join("/dev", filepath.Base(filepath.Dir(path)))
			f, err := os.OpenFile(device, os.O_WRONLY, 0)
			if err != nil {
				return nil, fmt.Errorf("open port %s: %w", name, err)
			}
			return f, nil
		}
	}
	return nil, fmt.Errorf("the emulator has no port %s", name)
}

func report(name, text string) error {
	f, err := port(name)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
