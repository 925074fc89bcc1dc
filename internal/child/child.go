// Package child starts programs that end when this process does, however that ends.
//
// The kernel sends the parent-death signal of a child (prctl(2), PR_SET_PDEATHSIG) when the thread that started the child ends, not when
// the process ends. Threads of a Go program can end at any time: with each goroutine that ends while it is locked to one. Therefore each
// child here has its own thread, which starts it and waits for it.
package child

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is a running program.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts a command in the network namespace at a path; "" means the namespace of this process. The caller must not use the command
// afterwards: the Process waits for it.
func Start(cmd *exec.Cmd, netns string) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread may be in another namespace, and ends with the goroutine
		defer close(p.done)
		err := enter(netns)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// enter moves the thread to a network namespace.
func enter(netns string) error {
	if netns == "" {
		return nil
	}
	file, err := os.Open(netns)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // nothing was written
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering network namespace %s: %w", netns, err)
	}
	return nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns the program's result, as exec.Cmd's Wait does; nil before Done is closed.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends a signal to the program, unless it has ended.
func (p *Process) Signal(signal os.Signal) { _ = p.cmd.Process.Signal(signal) } // fails only if the program has ended

// Pid returns the process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kill ends the program at once, and returns after it has ended.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}
