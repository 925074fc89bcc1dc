//go:build lab

// Package vpc tests the networks of VPCs in whole clusters, with real OVN.
package vpc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/pages"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
)

// limit bounds a test. Kubernetes' programs are built before.
const limit = 10 * time.Minute

// weftBin is the folder with Weft's programs. TestMain sets it.
var weftBin string //nolint:gochecknoglobals // built once for all tests

func TestMain(m *testing.M) { os.Exit(labs.Run(m, "../..", &weftBin)) }

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
	out, err := probe.Output(ctx, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
