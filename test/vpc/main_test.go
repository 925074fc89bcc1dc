//go:build lab

// Package vpc tests the networks of VPCs in whole clusters, with real OVN.
package vpc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/pages"
	"weft.dev/weft/lab/programs"
	"weft.dev/weft/lab/report"
)

// limit bounds a test. Kubernetes' programs are built before.
const limit = 10 * time.Minute

// weftBin is the folder with Weft's programs. TestMain sets it.
var weftBin string //nolint:gochecknoglobals // built once for all tests

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weft-vpc-test")
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

// page begins a test's way through the documentation's commands for a lab of that kind. names are pairs: a name on pages, and the lab's.
func page(t *testing.T, c *lab.Cluster, kind string, names ...string) func(ctx context.Context, words string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return pages.Begin(t, pages.Runner{Root: root, Bin: c.Config.WeftBin, Lab: c.Name(), Names: strings.NewReplacer(names...)}, kind)
}

func must(ctx context.Context, t *testing.T, argv ...string) string {
	t.Helper()
	out, err := output(ctx, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually repeats an attempt until it succeeds.
func eventually(t *testing.T, what string, attempt func() error) {
	t.Helper()
	testwait.Within(t, time.Minute, what, attempt)
}
