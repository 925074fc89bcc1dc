//go:build lab

package install

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/deploy"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/programs"
	"weft.dev/weft/test/labs"
)

// windows is smaller where a landing has no time.
var windows = flag.Float64("lab.windows", 1, "share of its usual length that traffic without a fault has") //nolint:gochecknoglobals // a flag of the test binary

// control is how long traffic without a fault lasts.
func control() time.Duration { return time.Duration(float64(10*time.Second) * *windows) }

// limit bounds each test, with Kubernetes' programs built.
const limit = 12 * time.Minute

// build builds Weft's programs from a tree, as they are shipped.
func build(t *testing.T, tree string, names ...string) string {
	t.Helper()
	bin := t.TempDir()
	if err := programs.Build(t.Context(), tree, bin, names...); err != nil {
		t.Fatal(err)
	}
	return bin
}

// current returns a folder with the programs of this tree.
func current(t *testing.T) string {
	t.Helper()
	bin, err := programs.Folder(t.Context(), root(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// root is this working tree.
func root(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cluster is a lab with kubelets.
type cluster struct {
	*lab.Cluster
	t *testing.T
}

// up brings a lab up for the time of a test, after which nothing of it is left.
func up(t *testing.T, cfg lab.Config) *cluster {
	t.Helper()
	cfg.Name, cfg.Runtime = labs.Name("i"), plan.RuntimeKubelet
	labs.LeavesNothing(t, cfg.Name)
	return &cluster{labs.Up(t.Context(), t, cfg), t}
}

// kubectl runs kubectl and returns what it printed.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try("", args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *cluster) try(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
	defer cancel()
	argv := c.Kubectl(args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// apply applies a manifest with the name of an image in it, as docs/install.md tells users to.
func (c *cluster) apply(manifest, ref string) {
	c.t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		c.t.Fatal(err)
	}
	if !strings.Contains(string(text), deploy.Image) {
		c.t.Fatalf("%s does not name the image %s", manifest, deploy.Image)
	}
	if _, err := c.try(strings.ReplaceAll(string(text), deploy.Image, ref), "apply", "-f", "-"); err != nil {
		c.t.Fatal(err)
	}
}

// rolledOut waits until Weft runs as the manifest says, and every node serves pods.
func (c *cluster) rolledOut() {
	c.t.Helper()
	c.kubectl("-n", "weft", "rollout", "status", "daemonset/weft-agent", "--timeout=240s")
	c.kubectl("-n", "weft", "wait", "--for=condition=Available", "deployment/weft-controller", "--timeout=120s")
	if len(c.Nodes()) > 1 {
		c.kubectl("-n", "weft", "rollout", "status", "deployment/weft-controller", "--timeout=120s")
	}
	c.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
}

// start starts a pod on a node and waits until it is ready.
func (c *cluster) start(name, node string) {
	c.t.Helper()
	c.kubectl("run", name, "--image=weft.local/busybox:1", "--image-pull-policy=Never", "--restart=Never",
		"--overrides", `{"spec":{"nodeName":"`+node+`","terminationGracePeriodSeconds":1}}`, "--command", "--", "sleep", "infinity")
	c.kubectl("wait", "--for=condition=Ready", "pod/"+name, "--timeout=120s")
}

func (c *cluster) address(name string) string {
	c.t.Helper()
	return c.kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}")
}
