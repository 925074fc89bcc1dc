//go:build lab

package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/image"
	"weft.dev/weft/lab/pages"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Names of the images before and after the upgrade.
const (
	previousImage = "weft.local/weft:previous"
	thisImage     = "weft.local/weft:this"
)

// rate is how many datagrams a second each pair of pods sends; each is answered.
const rate = 1000

const echoPort = 7777

// Weft as users have it: installed at the version of the last commit, upgraded to this one under traffic without a lost
// packet, and taken away, after which the nodes are as they were.
func TestUpgradeAndUninstall(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	before := previous(ctx, t)
	here := root(t)
	c := up(t, lab.Config{
		Nodes: 2, NoWeft: true, WeftBin: current(t), DeployDir: filepath.Join(before, "deploy"),
	})
	traces := map[string]trace{}
	for _, n := range c.Nodes() {
		traces[n.Name] = traceOf(ctx, t, n)
	}
	labs.Load(t, c.Cluster, buildPrevious(t, before, c.Config.WeftBin), previousImage)
	labs.Load(t, c.Cluster, c.Config.WeftBin, thisImage)

	c.apply(filepath.Join(before, "deploy/weft.yaml"), previousImage)
	c.rolledOut()
	pods := map[string]string{"asks": "n1", "near": "n1", "far": "n2"}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		c.start(name, pods[name])
	}
	t.Run("upgrade", func(t *testing.T) { (&cluster{c.Cluster, t}).upgrade(ctx, here) })
	t.Run("uninstall", func(t *testing.T) {
		c := &cluster{c.Cluster, t}
		c.uninstall(ctx, here)
		for _, n := range c.Nodes() {
			if err := traceOf(ctx, t, n).differs(traces[n.Name]); err != nil {
				t.Errorf("%s is not as it was before Weft:\n%v", n.Name, err)
			}
		}
	})
}

// buildPrevious builds the image's programs of an earlier tree. Those that the tree lacks are this tree's.
func buildPrevious(t *testing.T, tree, current string) string {
	t.Helper()
	var has, lacks []string
	for _, program := range image.Programs() {
		if _, err := os.Stat(filepath.Join(tree, "cmd", program)); err == nil {
			has = append(has, program)
		} else {
			lacks = append(lacks, program)
		}
	}
	bin := build(t, tree, has...)
	for _, program := range lacks {
		if err := os.Symlink(filepath.Join(current, program), filepath.Join(bin, program)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// previous is the tree of the commit before this one.
func previous(ctx context.Context, t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	git := func(args ...string) *exec.Cmd {
		// The clone may be somebody else's; git reads nothing from it that runs.
		return exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-C", root(t)}, args...)...)
	}
	if out, err := git("rev-parse", "--verify", "--quiet", "HEAD~1^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("there is no commit before this one to upgrade from: %v %s\n"+
			"The test needs a clone with history: git fetch --unshallow (or --deepen 1)", err, out)
	}
	archive := filepath.Join(t.TempDir(), "tree.tar")
	for _, cmd := range []*exec.Cmd{
		git("archive", "--format=tar", "--output="+archive, "HEAD~1"), exec.CommandContext(ctx, "tar", "-xf", archive, "-C", tree),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	return tree
}

// netns is the path, seen from the machine, of a pod's network namespace.
func (c *cluster) netns(pod, node string) string {
	c.t.Helper()
	n, err := c.NodeNamed(node)
	if err != nil {
		c.t.Fatal(err)
	}
	paths, err := filepath.Glob(n.Root("/var/lib/weft/attachments/*.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		rec, err := attach.ParseRecord(raw)
		if err != nil {
			c.t.Fatal(err)
		}
		if rec.PodName == pod {
			// A runtime names the namespace through /var/run, an absolute link that would lead out of the node's root.
			return n.Root(strings.Replace(rec.Netns, "/var/run/", "/run/", 1))
		}
	}
	c.t.Fatalf("pod %s has no attachment on %s", pod, node)
	return ""
}

// upgrade applies this version's definitions and manifest while pods of one node and of two speak with each other.
func (c *cluster) upgrade(ctx context.Context, here string) {
	t := c.t
	targets := c.echoes(ctx, map[string]string{"near": "n1", "far": "n2"})
	started := c.started()
	sent, lost := c.during(targets, func() { // the time that traffic runs
		select {
		case <-time.After(control()):
		case <-ctx.Done():
		}
	})
	if lost > 0 {
		t.Fatalf("machine too busy: %d of %d packets lost while nothing was done", lost, sent)
	}
	t.Logf("control: %d packets, none lost", sent)
	began := time.Now()
	sent, lost = c.during(targets, func() {
		c.kubectl("apply", "--server-side", "--force-conflicts", "-f", filepath.Join(here, "deploy/crds"))
		c.apply(filepath.Join(here, "deploy/weft.yaml"), thisImage)
		c.rolledOut()
	})
	t.Logf("upgrade: %d packets in %s, %d lost", sent, time.Since(began).Round(100*time.Millisecond), lost)
	if lost > 0 {
		t.Errorf("the upgrade lost %d of %d packets", lost, sent)
	}
	for pod, since := range c.started() {
		if strings.HasPrefix(pod, "weft-") && started[pod] == since {
			t.Errorf("pod %s runs since before the upgrade: nothing was upgraded", pod)
		}
		if !strings.HasPrefix(pod, "weft-") && started[pod] != since {
			t.Errorf("pod %s was started anew", pod)
		}
	}
	c.start("fresh", "n2")
	c.kubectl("exec", "asks", "--", "ping", "-c", "1", "-W", "5", c.address("fresh"))
}

// started tells since when each pod runs.
func (c *cluster) started() map[string]string {
	c.t.Helper()
	since := map[string]string{}
	for line := range strings.Lines(c.kubectl("get", "pods", "-A", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID}{"\n"}{end}`)) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		since[name] = id
	}
	return since
}

// during runs f while the pod "asks" sends to all targets, and returns how many packets were sent and lost.
func (c *cluster) during(targets map[string]netip.AddrPort, f func()) (sent, lost uint64) {
	c.t.Helper()
	streams := map[string]*traffic.Stream{}
	for name, target := range targets {
		stream, err := traffic.NewStream(c.netns("asks", "n1"), target, rate)
		if err != nil {
			c.t.Fatal(err)
		}
		streams[name] = stream
	}
	defer func() {
		for name, stream := range streams {
			tally, err := stream.Stop()
			sent, lost = sent+tally.Sent, lost+tally.Lost
			if err != nil || tally.Lost > 0 {
				c.t.Logf("to %s: %s, missing %v: %v", name, tally, tally.Missing, err)
			}
		}
	}()
	f()
	return sent, lost
}

// uninstall deletes the pods, and runs the commands of docs/install.md.
func (c *cluster) uninstall(ctx context.Context, here string) {
	c.t.Helper()
	c.kubectl("delete", "pods", "--all", "--now", "--wait")
	pages.Begin(c.t, pages.Runner{
		Root: here, Bin: c.Config.WeftBin, Lab: c.Name(), Names: strings.NewReplacer("registry.example/weft:v1", thisImage),
	}, "install")(ctx, "deploy/cleanup.yaml")
}

// trace is what a node shows of a network: what Weft makes on one, and where it makes it.
type trace map[string][]string

func traceOf(ctx context.Context, t *testing.T, n lab.Node) trace {
	t.Helper()
	tr := trace{}
	for name, question := range map[string][]string{
		"links":     {"sh", "-c", "ip -o link | cut -d: -f2 | cut -d@ -f1"},
		"addresses": {"sh", "-c", "ip -o addr | tr -s ' ' | cut -d' ' -f2-4"},
		"routes":    {"ip", "route", "show", "table", "all"},
		// kube-proxy makes its tables whenever it comes to it.
		"nftables":        {"sh", "-c", "nft list tables | grep -v kube-proxy || true"},
		"nftables, marks": {"sh", "-c", "nft list ruleset | grep weft.dev || true"},
		"bridges":         {"ovs-vsctl", "list-br"},
		"ports":           {"ovs-vsctl", "--columns=name,type", "list", "Interface"},
		"marked rows":     {"ovs-vsctl", "--columns=name", "find", "Bridge", "external_ids:weft.dev/owner!=x"},
		"files":           {"find", "/opt/cni", "/etc/cni", "/run/openvswitch", "/run/weft", "/var/lib/weft", "-ignore_readdir_race"},
	} {
		out, err := probe.Run(ctx, n.Enter(question...))
		if err != nil && name != "files" { // find complains about folders that are not there
			t.Fatalf("%s of %s: %v", name, n.Name, err)
		}
		for line := range strings.Lines(out) {
			tr[name] = append(tr[name], strings.TrimSpace(line))
		}
		slices.Sort(tr[name])
	}
	return tr
}

// differs returns an error that names what is there and was not, and the other way round.
func (tr trace) differs(want trace) error {
	var errs []error
	for name := range tr {
		for _, line := range tr[name] {
			if !slices.Contains(want[name], line) {
				errs = append(errs, fmt.Errorf("%s: new: %s", name, line))
			}
		}
		for _, line := range want[name] {
			if !slices.Contains(tr[name], line) {
				errs = append(errs, fmt.Errorf("%s: gone: %s", name, line))
			}
		}
	}
	return errors.Join(errs...)
}
