//go:build lab

package matrix

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/pages"
)

// reader runs the commands of the documentation's pages against a lab.
type reader struct{ pages.Runner }

// follow runs each block of the pages for a lab of that kind: first the pages in first, then the others by name, then the page last. It
// returns the number of blocks.
func (r reader) follow(ctx context.Context, t *testing.T, kind string, first []string, last string) int {
	t.Helper()
	all, err := pages.All(r.Root)
	if err != nil {
		t.Fatal(err)
	}
	var run []pages.Block
	left := 0
	for _, b := range all {
		switch b.Lab {
		case kind:
			run = append(run, b)
		case "":
			left++
		}
	}
	place := func(page string) int {
		if page == last {
			return len(first) + 1
		}
		if i := slices.Index(first, page); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(run, func(a, b pages.Block) int { return place(a.Page) - place(b.Page) })
	began := time.Now()
	for _, b := range run {
		if err := r.Run(ctx, b); err != nil {
			t.Error(err)
		}
	}
	t.Logf("of %d blocks of commands in the documentation, %d ran in a lab %s in %s; %d run in no lab, for the reason above each",
		len(all), len(run), kind, time.Since(began).Round(time.Second), left)
	return len(run)
}

// followQuickstart runs the commands of all pages for the quick start's cluster. own is the lab's name. The page of isolated projects
// comes first. The page of NetworkPolicies follows, because it sets the mode back. The tour comes last: it ends with the whole matrix.
func followQuickstart(ctx context.Context, t *testing.T, own string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "bin")
	prepare := exec.CommandContext(ctx, "bash", "-c", `set -eu; eval "$(bin/weft-lab --name `+own+` env)"
		for name in shop cart stock monitoring; do kubectl create namespace $name; done
		kubectl label namespace stock team=shop
		for name in shop cart stock monitoring kube-system; do kubectl wait --for=create netnamespace/$name --timeout=120s; done
		kubectl -n weft get pods -l app.kubernetes.io/component=agent --field-selector spec.nodeName=n1 -o jsonpath='{.items[0].metadata.name}'`)
	prepare.Dir = root
	out, err := prepare.Output()
	if err != nil {
		t.Fatalf("prepare the objects of the pages: %v\n%s", err, out)
	}
	lines := strings.Split(string(out), "\n")
	r := reader{pages.Runner{Root: root, Bin: bin, Lab: own, Names: strings.NewReplacer(
		"--name quickstart ", "--name "+own+" ",
		// A page before may have restarted agents, and one that has just started does not report yet.
		"realised networkpolicy shop/deny-all", "realised networkpolicy quickstart-shop/api-from-tills --wait",
		"registry.example/weft:v1", "weft.local/weft:dev", "registry.example/weft:v2", "weft.local/weft:dev",
		"web/allow-api", "quickstart-shop/api-from-tills", "shop/deny-all", "quickstart-shop/api-from-tills",
		"weft-agent-x7k2p", lines[len(lines)-1], "br0 GROUP", "br0",
	)}}
	if ran := r.follow(ctx, t, "quickstart", []string{"tenants.md", "policy.md"}, "start.md"); ran < 30 {
		t.Errorf("the documentation has %d blocks for the quick start's cluster", ran)
	}
}

// followCNI runs the commands of the pages for a lab without kubelets: before any other pod, so that pods have the pages' addresses.
func followCNI(ctx context.Context, t *testing.T, c *lab.Cluster) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	own := "weft-lab --name " + c.Name() + " "
	// The lab is up: `up` with the same settings finds that, and starts nothing.
	r := reader{pages.Runner{Root: root, Bin: c.Config.WeftBin, Lab: c.Name(), Names: strings.NewReplacer(
		"weft-lab up --runtime cni", own+"up --runtime cni --nodes "+strconv.Itoa(c.Config.Nodes), "weft-lab ", own,
	)}}
	if ran := r.follow(ctx, t, "cni", nil, ""); ran == 0 {
		t.Error("the documentation has no block for a lab without kubelets")
	}
	// The page deletes the other pod.
	if out, err := exec.CommandContext(ctx, filepath.Join(r.Bin, "weft-lab"), "--name", c.Name(), "pod", "del", "b").CombinedOutput(); err != nil {
		t.Errorf("delete pod b: %v\n%s", err, out)
	}
}
