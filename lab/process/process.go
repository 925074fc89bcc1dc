// Package process runs the programs of a lab and restarts those that end, as a service manager with Restart=always would. Each program
// has a log, and a file with its PID and start time, by which a later run can find it.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"weft.dev/weft/lab/machine"
)

// Program describes a program.
type Program struct {
	Name string   // unique in the lab, such as n1/ovs-vswitchd; names the log and the pid file
	Argv []string // the program first, looked up in PATH
	Env  []string // added to the lab's own environment
	// Ready returns nil when the program serves; it is called repeatedly until then. Nil means ready at once.
	Ready func(ctx context.Context) error
	// Started is called after each start, also after a restart, before Ready is called; it may be nil.
	Started func()
	// Files are passed as descriptors from 3 on.
	Files []*os.File
	// SysProcAttr may be nil.
	SysProcAttr *syscall.SysProcAttr
	// Eager is for programs that test suites kill very often: each restart comes after the shortest pause.
	Eager bool
	// NoRestart is for programs whose end cannot be repaired: a namespace's holder.
	NoRestart bool
}

// Status is the state of a program.
type Status struct {
	Name     string    `json:"name"`
	Pid      int       `json:"pid"` // 0 while it is not running
	Restarts int       `json:"restarts"`
	Crash    string    `json:"crash,omitempty"` // the cause of the last crash, with the end of the log then
	Since    time.Time `json:"since"`
	Last     string    `json:"last,omitempty"` // the cause of the last end
	Log      string    `json:"log"`
}

// Group runs programs.
type Group struct {
	logDir, pidDir string

	mu    sync.Mutex // held while a process is started, so that the reaper never takes one that is not recorded yet
	procs map[string]*running
	pids  map[int]bool
}

type running struct {
	prog   Program
	status Status
	handle *os.Process   // nil while it is not running
	stop   chan struct{} // closed when the program must end
	done   chan struct{} // closed when it has ended for good
	once   sync.Once
}

// NewGroup makes a group whose logs and pid files are in the given directories.
func NewGroup(logDir, pidDir string) *Group {
	return &Group{logDir: logDir, pidDir: pidDir, procs: map[string]*running{}, pids: map[int]bool{}}
}

// ErrEnded is returned when a program ended before it was ready.
var ErrEnded = errors.New("ended before it was ready")

// Start runs a program and waits until it is ready. Its error has the end of the program's log.
func (g *Group) Start(ctx context.Context, p Program) error {
	r, err := g.add(p)
	if err != nil {
		return err
	}
	if err := g.launch(r); err != nil {
		close(r.done)
		return err
	}
	if p.Ready == nil {
		return nil
	}
	return g.awaitReady(ctx, r)
}

func (g *Group) add(p Program) (*running, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, dup := g.procs[p.Name]; dup {
		return nil, fmt.Errorf("program %s is running already", p.Name)
	}
	r := &running{prog: p, stop: make(chan struct{}), done: make(chan struct{})}
	r.status = Status{Name: p.Name, Log: g.logPath(p.Name)}
	g.procs[p.Name] = r
	return r, nil
}

func (g *Group) logPath(name string) string { return filepath.Join(g.logDir, name+".log") }
func (g *Group) pidPath(name string) string { return filepath.Join(g.pidDir, name+".pid") }

// askAgain is the minimum pause between calls of Ready.
const askAgain = 50 * time.Millisecond

func (g *Group) awaitReady(ctx context.Context, r *running) error {
	for {
		asked := time.Now()
		err := r.prog.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last: %w)%s", r.prog.Name, ctx.Err(), err, g.logTail(r.prog.Name))
		case <-r.done:
			return fmt.Errorf("%s: %w%s", r.prog.Name, ErrEnded, g.logTail(r.prog.Name))
		case <-time.After(max(askAgain, 3*time.Since(asked))): // on a slow machine, frequent checks keep it from becoming ready
		}
	}
}

// logTail returns the last lines of a program's log, for an error message.
func (g *Group) logTail(name string) string {
	const keep = 1500 // bytes
	f, err := os.Open(g.logPath(name))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err == nil && st.Size() > keep {
		_, _ = f.Seek(-keep, io.SeekEnd)
	}
	raw, _ := io.ReadAll(f)
	return "\n--- end of " + g.logPath(name) + " ---\n" + strings.TrimSpace(string(raw))
}

// launch starts the process once, with a goroutine that waits for it and restarts it.
func (g *Group) launch(r *running) error {
	cmd, err := g.exec(r)
	if err != nil {
		return err
	}
	go g.keep(r, cmd)
	return nil
}

func (g *Group) exec(r *running) (*exec.Cmd, error) {
	p := r.prog
	if err := os.MkdirAll(filepath.Dir(g.logPath(p.Name)), 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	log, err := os.OpenFile(g.logPath(p.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(p.Argv[0], p.Argv[1:]...) //nolint:gosec // the lab's own table of programs
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.ExtraFiles, cmd.SysProcAttr = p.Files, p.SysProcAttr
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	g.pids[cmd.Process.Pid] = true
	r.status.Pid, r.status.Since, r.handle = cmd.Process.Pid, time.Now(), cmd.Process
	if err := machine.WritePid(g.pidPath(p.Name), cmd.Process.Pid); err != nil && !errors.Is(err, os.ErrNotExist) {
		_, _ = fmt.Fprintf(log, "weft-lab: %v\n", err)
	}
	if p.Started != nil {
		go p.Started()
	}
	return cmd, nil
}

// keep waits for a process to end and restarts it, at most once in 100 ms, rising to 2 s while it keeps ending, unless it is eager.
func (g *Group) keep(r *running, cmd *exec.Cmd) {
	defer close(r.done)
	pause := 100 * time.Millisecond
	for {
		err := cmd.Wait()
		lived := g.ended(r, cmd, err)
		if r.prog.NoRestart {
			return
		}
		if lived > 10*time.Second {
			pause = 100 * time.Millisecond
		}
		for {
			select {
			case <-r.stop:
				return
			case <-time.After(pause):
			}
			if !r.prog.Eager {
				pause = min(2*pause, 2*time.Second)
			}
			if cmd, err = g.exec(r); err == nil {
				break
			}
			g.note(r, err.Error())
		}
	}
}

func (g *Group) ended(r *running, cmd *exec.Cmd, err error) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pids, cmd.Process.Pid)
	_ = os.Remove(g.pidPath(r.prog.Name))
	lived := time.Since(r.status.Since)
	r.status.Pid, r.handle = 0, nil
	r.status.Last = "exit 0"
	if err != nil {
		r.status.Last = err.Error()
	}
	if crashed(err) {
		r.status.Crash = r.status.Last + g.logTail(r.prog.Name)
	}
	select {
	case <-r.stop:
	default:
		r.status.Restarts++
	}
	return lived
}

// crashed reports whether a program crashed: by a signal that only the kernel sends, by abort, or by a panic with the exit code of Go's
// runtime.
func crashed(err error) bool {
	var end *exec.ExitError
	if !errors.As(err, &end) {
		return false
	}
	const panicked = 2
	status, ok := end.Sys().(syscall.WaitStatus)
	faults := []syscall.Signal{syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE}
	return ok && (status.Signaled() && slices.Contains(faults, status.Signal()) || status.ExitStatus() == panicked)
}

func (g *Group) note(r *running, text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.status.Last = text
}

// Pid returns a program's PID, 0 while it does not run.
func (g *Group) Pid(name string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, ok := g.procs[name]; ok {
		return r.status.Pid
	}
	return 0
}

// List returns the state of all programs, by name.
func (g *Group) List() []Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]Status, 0, len(g.procs))
	for _, r := range g.procs {
		list = append(list, r.status)
	}
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Stop ends the programs that the filter accepts, concurrently: by SIGTERM, and by SIGKILL for those that remain after grace.
func (g *Group) Stop(grace time.Duration, accept func(name string) bool) {
	g.mu.Lock()
	var chosen []*running
	for name, r := range g.procs {
		if accept(name) {
			chosen = append(chosen, r)
		}
	}
	g.mu.Unlock()
	for _, r := range chosen {
		r.once.Do(func() { close(r.stop) })
		g.signal(r, syscall.SIGTERM)
	}
	deadline := time.After(grace)
	for _, r := range chosen {
		select {
		case <-r.done:
			continue
		case <-deadline:
			deadline = closed()
		}
		g.signal(r, syscall.SIGKILL)
		<-r.done
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range chosen {
		delete(g.procs, r.prog.Name)
	}
}

func closed() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}

// signal is safe against reused PIDs: os.Process holds a handle (pidfd), not a PID.
func (g *Group) signal(r *running, sig syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.handle != nil {
		_ = r.handle.Signal(sig)
	}
}

// Run runs a command to its end and returns its output. It is for set-up steps. A process that called Adopt must run all its commands
// through Run, or the reaper would take their exit status.
func (g *Group) Run(ctx context.Context, stdin string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the lab's own commands
	cmd.Dir, cmd.Stdin = "/", strings.NewReader(stdin)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	g.mu.Lock()
	err := cmd.Start()
	if err == nil {
		g.pids[cmd.Process.Pid] = true
	}
	g.mu.Unlock()
	if err == nil {
		err = cmd.Wait()
		g.mu.Lock()
		delete(g.pids, cmd.Process.Pid)
		g.mu.Unlock()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
