package child_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/child"
)

// TestThreadEnds checks that a program outlives the thread that requested its start.
func TestThreadEnds(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var p *child.Process
	tid := onThread(func() { p, err = child.Start(cmd, "") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); os.IsNotExist(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the thread does not end")
		}
	}
	if _, err := fmt.Fprintln(in, "still here"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "still here\n" {
		t.Errorf("cat answers %q, %v", line, err)
	}
}

// onThread calls f on a thread that then ends, and returns its number. If the goroutine is on the main thread, which never ends, it blocks
// that thread and tries another one.
func onThread(f func()) int {
	thread := make(chan int)
	go func() { // the thread ends with the goroutine
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			thread <- onThread(f)
			return
		}
		f()
		thread <- unix.Gettid()
	}()
	return <-thread
}

// TestEnd checks that the result of a program is available after its end.
func TestEnd(t *testing.T) {
	p, err := child.Start(exec.Command("sleep", "600"), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	p.Kill()
	var exit *exec.ExitError
	if !errors.As(p.Err(), &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", p.Err())
	}
	if _, err := child.Start(exec.Command("/does/not/exist"), ""); err == nil {
		t.Error("no error for a program that does not exist")
	}
	if _, err := child.Start(exec.Command("true"), "/does/not/exist"); err == nil {
		t.Error("no error for a namespace that does not exist")
	}
}
