package process_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab/process"
)

func group(t *testing.T) *process.Group {
	t.Helper()
	dir := t.TempDir()
	g := process.NewGroup(filepath.Join(dir, "log"), filepath.Join(dir, "pid"))
	t.Cleanup(func() { g.Stop(time.Second, func(string) bool { return true }) })
	return g
}

// A program's crash remains in its status after a restart, and so does the end of its log.
func TestCrashIsReported(t *testing.T) {
	for _, script := range []string{"echo boom; kill -ABRT $$", "echo boom; kill -SEGV $$", "echo boom; exit 2"} {
		g := group(t)
		if err := g.Start(t.Context(), process.Program{Name: "n1/p", Argv: []string{"sh", "-c", script}}); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "it ends", func() bool { return g.List()[0].Restarts > 0 })
		if st := g.List()[0]; !strings.Contains(st.Crash, "boom") {
			t.Errorf("%s: %+v", script, st)
		}
	}
}

func TestDeadProgramComesBack(t *testing.T) {
	g := group(t)
	if err := g.Start(t.Context(), process.Program{Name: "n1/p", Argv: []string{"sleep", "60"}}); err != nil {
		t.Fatal(err)
	}
	first := g.Pid("n1/p")
	p, err := os.FindProcess(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it comes back", func() bool { return g.Pid("n1/p") != first && g.Pid("n1/p") != 0 })
	if st := g.List(); len(st) != 1 || st[0].Restarts != 1 || !strings.Contains(st[0].Last, "killed") || st[0].Crash != "" {
		t.Errorf("List = %+v", st)
	}
}

func TestStopEndsWhatIgnoresTerm(t *testing.T) {
	g := group(t)
	err := g.Start(t.Context(), process.Program{Name: "deaf", Argv: []string{"sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"}})
	if err != nil {
		t.Fatal(err)
	}
	g.Stop(200*time.Millisecond, func(string) bool { return true })
	if g.Pid("deaf") != 0 || len(g.List()) != 0 {
		t.Errorf("it still runs: %+v", g.List())
	}
}

func TestStartErrorHasTheEndOfTheLog(t *testing.T) {
	g := group(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	never := errors.New("not yet")
	err := g.Start(ctx, process.Program{
		Name: "p", Argv: []string{"sh", "-c", "echo no such flag: --x; exit 3"},
		Ready: func(context.Context) error {
			if g.List()[0].Restarts > 0 { // it has printed and ended: the wait may end
				cancel()
			}
			return never
		},
	})
	if !errors.Is(err, never) || !strings.Contains(err.Error(), "no such flag: --x") {
		t.Errorf("Start = %v", err)
	}
}
