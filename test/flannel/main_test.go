//go:build lab

// Package flannel tests the flannel network in whole clusters, beside the original flanneld too.
package flannel

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/programs"
	"weft.dev/weft/lab/report"
)

// limit bounds a test. Kubernetes' programs are built before.
const limit = 10 * time.Minute

// weftBin is the folder with Weft's programs. TestMain sets it.
var weftBin string //nolint:gochecknoglobals // built once for all tests

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weft-flannel-test")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		weftBin, err = programs.Folder(context.Background(), "../..", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// up brings a lab up, and down when the test ends.
func up(ctx context.Context, t *testing.T, cfg lab.Config) *lab.Cluster {
	t.Helper()
	cfg.WeftBin = weftBin
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := lab.Down(ctx, cfg.Name, nil); err != nil {
			t.Errorf("take the lab down: %v", err)
		}
	})
	c, err := lab.Up(ctx, cfg, func(e report.Event) {
		if e.State != report.Begin {
			t.Logf("%8s  %s %s", e.Took.Round(time.Millisecond), e.Step, e.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// output runs a command and returns what it prints; the error holds what it prints on standard error.
func output(ctx context.Context, argv ...string) (string, error) {
	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w: %s", argv, err, complaint.String())
	}
	return string(bytes.TrimSpace(out)), nil
}

// eventually repeats an attempt until it succeeds.
func eventually(t *testing.T, what string, attempt func() error) {
	t.Helper()
	testwait.Within(t, time.Minute, what, attempt)
}
