// Package labs brings labs up for the tests of a suite, and takes them down after them.
package labs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/image"
	"weft.dev/weft/lab/programs"
	"weft.dev/weft/lab/reach"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/test/probe"
)

// Run runs a suite's tests and returns the exit code. Before, it sets bin to a folder with Weft's programs, which are built from the source
// tree at root if they are not built already.
func Run(m *testing.M, root string, bin *string) int {
	dir, err := os.MkdirTemp("", "weft-test")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		*bin, err = programs.Folder(context.Background(), root, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Name returns a name that no other lab has. The prefix shows whose lab it is.
func Name(prefix string) string {
	raw := make([]byte, 4)
	_, _ = rand.Read(raw)
	return prefix + hex.EncodeToString(raw)
}

// downTime bounds how long a lab takes to go down.
const downTime = 3 * time.Minute

// Up brings a lab up, and takes it down when the test ends.
func Up(ctx context.Context, t *testing.T, cfg lab.Config) *lab.Cluster {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTime)
		defer cancel()
		if err := lab.Down(ctx, cfg.Name, nil); err != nil {
			t.Errorf("take the lab down: %v", err)
		}
	})
	began := time.Now()
	c, err := lab.Up(ctx, cfg, func(e report.Event) {
		if e.State != report.Begin {
			t.Log(line(e))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("lab %s is up after %s", cfg.Name, time.Since(began).Round(10*time.Millisecond))
	return c
}

// Print prints each step of a lab that tests share.
func Print(e report.Event) {
	if e.State != report.Begin {
		fmt.Fprintln(os.Stderr, line(e))
	}
}

func line(e report.Event) string {
	return fmt.Sprintf("%8s  %s %s", e.Took.Round(time.Millisecond), e.Step, e.Text)
}

// LeavesNothing fails the test if a lab leaves something on the machine. It is called before Up.
func LeavesNothing(t *testing.T, name string) {
	t.Helper()
	before, err := probe.TakeInventory(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := before.Left(); err != nil {
			t.Error(err)
		}
	})
}

// Load makes an image of Weft's programs in a folder, as `make image` does, and loads it on every node. ref is its name, "" for the usual
// one.
func Load(t *testing.T, c *lab.Cluster, bin, ref string) {
	t.Helper()
	im, err := image.Weft(t.Context(), func(ctx context.Context, _ string, argv ...string) (string, error) { return probe.Run(ctx, argv) }, bin)
	if err != nil {
		t.Fatal(err)
	}
	if ref != "" {
		im.Ref = ref
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := image.Write(f, im); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var loading errgroup.Group
	for _, n := range c.Nodes() {
		loading.Go(func() error {
			out, err := probe.Run(t.Context(), n.Enter("ctr", "-n", "k8s.io", "images", "import", path))
			if err != nil {
				err = fmt.Errorf("load %s on %s: %w %s", im.Ref, n.Name, err, out)
			}
			return err
		})
	}
	if err := loading.Wait(); err != nil {
		t.Fatal(err)
	}
}

// AsItMust logs what reaches what, and fails the test if anything of it is not as it must be.
func AsItMust(t *testing.T, r *reach.Report) {
	t.Helper()
	var table strings.Builder
	if err := r.Table(&table); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + table.String())
	if !r.OK() {
		t.Error("the matrix is not as it must be")
	}
}
