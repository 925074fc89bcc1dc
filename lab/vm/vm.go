// Package vm runs a command on a separate kernel: a virtual machine with Debian's kernel and its modules, which sees the machine's files
// and keeps its changes of them separate. It is for features that the machine's kernel may lack, above all Open vSwitch's module. The
// processor is emulated in software, some ten times slower than the machine's own: test machines are often virtual themselves, and offer
// no virtualisation, or one on which this kernel does not start.
package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"weft.dev/weft/internal/child"
	"weft.dev/weft/lab/vm/guest"
)

// Config describes a virtual machine.
type Config struct {
	Argv []string // the command; its program by an absolute path
	Dir  string   // its working directory
	Env  []string
	// Modules are loaded before the command starts; the kernel loads others on demand by itself.
	Modules []string
	// Empty names directories whose content the guest must not see.
	Empty  []string
	CPUs   int
	Memory int    // in MiB
	Cache  string // directory of the kernel; it is downloaded on first use
	Init   string // the program that runs as the guest's first process and there calls guest.Main: statically linked
	Accel  string // the emulator's accelerator; "" emulates the processor in software
	Output io.Writer
}

// Errors that a caller may want to distinguish.
var (
	ErrMissing = errors.New("programs are missing on this machine")
	ErrCrashed = errors.New("the virtual machine ended before the command did")
)

// Missing lists the packages of the programs that are missing.
func missing() error {
	var programs []string
	for _, p := range []string{emulator, "depmod", "dpkg-deb", "apt-get"} {
		if _, err := exec.LookPath(p); err != nil {
			programs = append(programs, p)
		}
	}
	if len(programs) > 0 {
		return fmt.Errorf("%w: %s; install them with: apt-get install --no-install-recommends qemu-system-x86 kmod", ErrMissing, strings.Join(programs, ", "))
	}
	return nil
}

const emulator = "qemu-system-x86_64"

// Run runs the command in a virtual machine and returns its exit code. The machine has ended when Run returns, even if the context ended
// before the command.
func Run(ctx context.Context, c Config) (int, error) {
	if err := missing(); err != nil {
		return 0, err
	}
	k, err := ensureKernel(ctx, c.Cache)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "weft-vm-")
	if err != nil {
		return 0, fmt.Errorf("make a folder for the virtual machine: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if c.Accel == "" {
		c.Accel = software
	}
	m := machine{config: c, kernel: k, dir: dir}
	if err := m.writeInitramfs(); err != nil {
		return 0, err
	}
	err = m.emulate(ctx)
	if ctx.Err() != nil {
		return 0, fmt.Errorf("the command had not ended: %w; the virtual machine's console said:\n%s", context.Cause(ctx), m.lastWords())
	}
	raw, resultErr := os.ReadFile(m.result())
	code, numberErr := strconv.Atoi(string(raw))
	if err := errors.Join(err, resultErr, numberErr); err != nil {
		return 0, fmt.Errorf("%w: %w; its console said:\n%s", ErrCrashed, err, m.lastWords())
	}
	return code, nil
}

type machine struct {
	config Config
	kernel kernel
	dir    string
}

func (m machine) initramfs() string { return filepath.Join(m.dir, "initramfs") }
func (m machine) result() string    { return filepath.Join(m.dir, "result") }
func (m machine) console() string   { return filepath.Join(m.dir, "console") }

// forRoot are the modules that the guest needs to access the machine's files, and for its output.
var forRoot = []string{"virtio_pci", "virtio_console", "virtio_rng", "9pnet_virtio", "9p", "overlay"} //nolint:gochecknoglobals // a constant table

func (m machine) writeInitramfs() error {
	files, err := m.kernel.load(forRoot)
	if err != nil {
		return err
	}
	task, err := json.Marshal(guest.Task{
		Argv: m.config.Argv, Dir: m.config.Dir, Env: m.config.Env, Kernel: m.kernel.modules(), Modules: m.config.Modules, Empty: m.config.Empty,
	})
	if err != nil {
		return fmt.Errorf("encode the virtual machine's task: %w", err)
	}
	program, err := os.ReadFile(m.config.Init)
	if err != nil {
		return fmt.Errorf("read the virtual machine's first program: %w", err)
	}
	f, err := os.Create(m.initramfs())
	if err != nil {
		return fmt.Errorf("write the initramfs: %w", err)
	}
	defer func() { _ = f.Close() }()
	a := &archive{to: f}
	a.file(guest.Init[1:], 0o755, program)
	a.file(guest.FileTask[1:], 0o600, task)
	a.dir(guest.DirModule[1:])
	for i, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read a module: %w", err)
		}
		a.file(fmt.Sprintf("%s/%02d-%s", guest.DirModule[1:], i, filepath.Base(path)), 0o644, raw)
	}
	return a.close()
}

// software emulates each of the guest's processors in its own thread. The cache of translated code is up to 512 MiB.
const software = "tcg,thread=multi,tb-size=512"

// processor has all features that can be emulated, except those that are slower than none. A processor with fast string moves (erms,
// fsrm) makes kernel and libraries move single bytes, each emulated, instead of words: clearing 500 MB took 19 s, and 5 s without. A
// fifth level of page tables (la57) is one more step for each address.
const processor = "max,erms=off,fsrm=off,la57=off"

// argv returns the emulator's command line. The guest has no network.
func (m machine) argv() []string {
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "pc", "-accel", m.config.Accel, "-cpu", processor,
		"-smp", strconv.Itoa(m.config.CPUs), "-m", strconv.Itoa(m.config.Memory),
		"-kernel", m.kernel.image(), "-initrd", m.initramfs(),
		// On a busy machine, the kernel would report an emulated clock as unreliable, and processors as locked up; both reports would be wrong.
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check random.trust_cpu=on nowatchdog rcupdate.rcu_cpu_stall_suppress=1",
		"-serial", "file:" + m.console(),
		"-device", "virtio-rng-pci",
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag=" + guest.TagRoot,
		"-device", "virtio-serial-pci",
		// Not stdio, which counts as closed when its input ends: the guest could not write any more.
		"-chardev", "file,id=output,path=/dev/fd/1", "-device", "virtserialport,chardev=output,name=" + guest.PortOutput,
		"-chardev", "file,id=result,path=" + m.result(), "-device", "virtserialport,chardev=result,name=" + guest.PortResult,
	}
}

// emulate runs the emulator to its end. The emulator ends with this process, so that none remains if this process is killed.
func (m machine) emulate(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, emulator, m.argv()...) //nolint:gosec // built here
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = struct{ io.Writer }{m.config.Output}, &said // always a pipe, which can be opened again
	running, err := child.Start(cmd, "")
	if err == nil {
		<-running.Done()
		err = running.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", emulator, err, strings.TrimSpace(said.String()))
	}
	return nil
}

// lastWords returns the end of the output of the guest's kernel and first process.
func (m machine) lastWords() string {
	const enough = 4096
	raw, err := os.ReadFile(m.console())
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-enough):])
}
