//go:build lab

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/programs"
)

// config is a small machine for a shell's command. It loads no module: with Open vSwitch's, the guest would wait until switches may start.
func config(t *testing.T, command string) Config {
	t.Helper()
	dir := t.TempDir()
	bin, err := programs.Folder(t.Context(), "../..", dir)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Argv: []string{"/bin/sh", "-c", command}, Dir: dir, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		CPUs: 1, Memory: 512, Cache: filepath.Join(kubebuild.Cache(), "vm"), Init: filepath.Join(bin, "weft-lab"),
	}
}

// A command runs on another kernel, which has Open vSwitch's module, and sees the machine's files. The machine never sees what the
// command writes. Its output and exit code are returned.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	c := config(t, `uname -r; cat seen; echo changed > seen; cat seen; echo own > unseen; test -d /sys/module/openvswitch && exit 7`)
	c.Output, c.Modules = &out, []string{"openvswitch"}
	seen := filepath.Join(c.Dir, "seen")
	if err := os.WriteFile(seen, []byte("as it was\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	code, err := Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if code != 7 {
		t.Errorf("exit code %d, not 7", code)
	}
	k, _, err := newest(filepath.Join(c.Cache, "kernel"))
	if err != nil {
		t.Fatal(err)
	}
	if want := k.release + "\nas it was\nchanged\n"; out.String() != want {
		t.Errorf("output %q, not %q", &out, want)
	}
	if raw, err := os.ReadFile(seen); err != nil || string(raw) != "as it was\n" {
		t.Errorf("the machine's file was changed: %q, %v", raw, err)
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "unseen")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of the virtual machine's is on the machine: %v", err)
	}
}

// said calls stop at the first write.
type said struct{ stop context.CancelFunc }

func (s said) Write(b []byte) (int, error) {
	s.stop()
	return len(b), nil
}

// A cancelled virtual machine is removed with its files.
func TestRunGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := config(t, "echo here; exec sleep infinity")
	c.Output = said{cancel}
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	if code, err := Run(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("exit code %d, error %v, not %v", code, err, context.Canceled)
	}
	left, err := os.ReadDir(scratch)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range commands {
		if raw, err := os.ReadFile(path); err == nil && strings.Contains(string(raw), scratch) {
			t.Errorf("still running: %q", raw)
		}
	}
}

// A command that cannot be started gives an error with the virtual machine's output.
func TestRunNothing(t *testing.T) {
	c := config(t, "")
	c.Argv, c.Output = []string{"/bin/there-is-no-such-program"}, &bytes.Buffer{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	code, err := Run(ctx, c)
	if !errors.Is(err, ErrCrashed) || !strings.Contains(fmt.Sprint(err), "no such file") {
		t.Errorf("exit code %d, error %v", code, err)
	}
}
