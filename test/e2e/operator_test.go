//go:build lab

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/status"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/probe"
)

// answer is the output of a command.
type answer struct {
	code     int
	out, err string
}

// ask runs a command as an operator does, and returns its output and its exit code.
func ask(ctx context.Context, t *testing.T, argv ...string) answer {
	t.Helper()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "NO_PROXY=*")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return answer{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// operator has the programs of the lab, and access to its cluster.
type operator struct {
	weft, kubectl string
	// kubeconfig is the administrator's; agents is the agents', which works from the nodes.
	kubeconfig, agents string
	datapath           string
	cluster            *lab.Cluster
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	c := cluster(t)
	st, err := lab.Inspect(t.Context(), c.Name())
	if err != nil {
		t.Fatal(err)
	}
	programs, err := kubebuild.Folder(st.Config.KubernetesModule)
	if err != nil {
		t.Fatal(err)
	}
	plane := controlplane.Plane{Lab: plan.New(st.Config)}
	return &operator{
		weft: filepath.Join(st.Config.WeftBin, "weft"), kubectl: filepath.Join(programs, "kubectl"),
		kubeconfig: c.Kubeconfig, agents: plane.KubeconfigOf(controlplane.Weft), datapath: string(st.Datapath), cluster: c,
	}
}

// status runs weft status. The lab's controller has its lease in kube-system.
func (o *operator) status(ctx context.Context, t *testing.T, args ...string) (answer, status.Report) {
	t.Helper()
	a := ask(ctx, t, append([]string{o.weft, "status", "--kubeconfig", o.kubeconfig, "-n", "kube-system", "-o", "json"}, args...)...)
	var report status.Report
	if a.code != 2 {
		if err := json.Unmarshal([]byte(a.out), &report); err != nil {
			t.Fatalf("%v: %+v", err, a)
		}
	}
	return a, report
}

// diff runs weft diff against the agent of a node.
func (o *operator) diff(ctx context.Context, t *testing.T, n lab.Node, args ...string) (answer, admin.Diff) {
	t.Helper()
	return o.compared(ctx, t, n, append([]string{"diff", "-o", "json"}, args...)...)
}

// dryRun returns what a start of the agent would change.
func (o *operator) dryRun(ctx context.Context, t *testing.T, n lab.Node) (answer, admin.Diff) {
	t.Helper()
	return o.compared(ctx, t, n, "agent", "--dry-run", "-o", "json", "--node-name", n.Name, "--kubeconfig", o.agents, "--datapath", o.datapath)
}

// awaitInStep waits until a start of the agent would change nothing.
func (o *operator) awaitInStep(t *testing.T, n lab.Node) {
	t.Helper()
	await(t, "a dry run without a difference", func(ctx context.Context) error {
		if a, diff := o.dryRun(ctx, t, n); a.code != 0 || !diff.InStep {
			return fmt.Errorf("a start would change something: %+v", a)
		}
		return nil
	})
}

func (o *operator) compared(ctx context.Context, t *testing.T, n lab.Node, args ...string) (answer, admin.Diff) {
	t.Helper()
	a := ask(ctx, t, n.Enter(append([]string{o.weft}, args...)...)...)
	var diff admin.Diff
	if a.out != "" {
		if err := json.Unmarshal([]byte(a.out), &diff); err != nil {
			t.Fatalf("%v: %+v", err, a)
		}
	}
	return a, diff
}

// TestStatusAndDiffWhenAllIsWell: both report success, as text, as JSON, and through kubectl.
func TestStatusAndDiffWhenAllIsWell(t *testing.T) {
	o := newOperator(t)
	addPod(t, o.cluster, "n1", "seen")
	a, report := o.status(t.Context(), t, "--wait", "--timeout", "1m")
	if a.code != 0 || !report.OK || len(report.Nodes) != 2 || report.Network == nil || !report.Network.Valid {
		t.Errorf("status: code %d, %s%s", a.code, a.out, a.err)
	}
	for _, n := range report.Nodes {
		if !n.Ready || !n.EnginesInStep || n.Subnet == "" || n.AddressesTotal == 0 || n.Weft == "" || len(n.Engines) != 4 {
			t.Errorf("node %+v", n)
		}
	}
	a, diff := o.diff(t.Context(), t, o.cluster.Node(1))
	if a.code != 0 || !diff.InStep || len(diff.Engines) != 4 {
		t.Errorf("diff: %+v", a)
	}
	o.awaitInStep(t, o.cluster.Node(1))
	dir := t.TempDir()
	if err := os.Symlink(o.weft, filepath.Join(dir, "kubectl-weft")); err != nil {
		t.Fatal(err)
	}
	a = ask(t.Context(), t, "env", "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+o.kubeconfig, o.kubectl, "weft", "status", "-n", "kube-system")
	if a.code != 0 || !strings.Contains(a.out, "2 of 2 ready") {
		t.Errorf("kubectl weft status: %+v", a)
	}
}

// TestDryRunWhileTheAgentIsStopped: a change by hand while the agent is stopped is reported, with its owner, and not changed. The
// agent undoes it when it continues.
func TestDryRunWhileTheAgentIsStopped(t *testing.T) {
	o := newOperator(t)
	n := o.cluster.Node(1)
	addPod(t, o.cluster, "n1", "dry")
	o.awaitInStep(t, n)
	want := settledState(t, n)
	resume := hang(t, o.cluster, "n1/weft-agent")
	defer resume()
	mustRun(t, n.Enter("ovs-ofctl", "-O", "OpenFlow15", "del-flows", "br0", "table=20"))
	mustRun(t, n.Enter("ovs-ofctl", "-O", "OpenFlow15", "add-flow", "br0", "table=0,priority=5000,ip,actions=drop"))
	mustRun(t, n.Enter("ip", "route", "del", "10.128.0.0/14", "dev", "tun0"))
	damaged := stateOf(t.Context(), n)
	if a, _ := o.diff(t.Context(), t, n, "--timeout", "1s"); a.code != 2 || !strings.Contains(a.err, "did not answer in time") {
		t.Errorf("diff of a stopped agent: %+v", a)
	}
	a, diff := o.dryRun(t.Context(), t, n)
	if a.code != 1 || diff.InStep {
		t.Fatalf("dry run: %+v", a)
	}
	found := map[string][]string{}
	for _, e := range diff.Engines {
		for _, d := range e.Differences {
			found[e.Name+" "+d.Change] = append(found[e.Name+" "+d.Change], d.Owner+": "+d.Want+d.Have)
		}
	}
	has := func(kind, part string) {
		t.Helper()
		if !slices.ContainsFunc(found[kind], func(s string) bool { return strings.Contains(s, part) }) {
			t.Errorf("no line of %s contains %q: %v", kind, part, found[kind])
		}
	}
	has("openflow missing", "table=20")
	has("openflow extra", "priority=5000,ip actions=drop")
	has("link missing", "10.128.0.0/14")
	if err := stateOf(t.Context(), n).Differs(damaged); err != nil {
		t.Errorf("the dry run changed the node: %v", err)
	}
	resume()
	awaitState(t, n, want, "the agent continued")
	o.awaitInStep(t, n)
}

// TestStatusNamesWhatFails: status and diff show what cannot be programmed, with its object. A waiting command reports the end of the
// failure.
func TestStatusNamesWhatFails(t *testing.T) {
	o := newOperator(t)
	n := o.cluster.Node(1)
	p := addPod(t, o.cluster, "n1", "unplugged")
	_, port, err := probe.HostEnd(p)
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, n.Enter("ip", "link", "del", port))
	var failing answer
	await(t, "the failure reported by weft status", func(ctx context.Context) error {
		a, report := o.status(ctx, t)
		at := slices.IndexFunc(report.Problems, func(f status.Finding) bool { return f.Object == "node/n1" && f.Next != "" })
		if a.code != 1 || report.OK || at < 0 || !strings.Contains(report.Problems[at].What, p.Sandbox.ID) {
			return fmt.Errorf("%+v", a)
		}
		failing = a
		return nil
	})
	t.Logf("status: %s", failing.out)
	a, diff := o.diff(t.Context(), t, n)
	if a.code != 1 || diff.InStep || !strings.Contains(a.out, p.Sandbox.ID) || !strings.Contains(a.out, `"why"`) {
		t.Errorf("diff: %+v", a)
	}
	waited := make(chan answer, 1)
	go func() {
		a, _ := o.status(t.Context(), t, "--wait", "--timeout", "2m")
		waited <- a
	}()
	delPod(t, p)
	if a := <-waited; a.code != 0 {
		t.Errorf("status --wait once the pod is gone: %+v", a)
	}
}

// TestStatusOfNoCluster: an unreachable API server is reported, and is not mistaken for a healthy cluster.
func TestStatusOfNoCluster(t *testing.T) {
	o := newOperator(t)
	missing := filepath.Join(t.TempDir(), "kubeconfig")
	if a := ask(t.Context(), t, o.weft, "status", "--kubeconfig", missing); a.code != 2 || a.out != "" {
		t.Errorf("%+v", a)
	}
	if a := ask(t.Context(), t, o.weft, "status", "--kubeconfig", o.kubeconfig, "-n", "elsewhere"); a.code != 1 || !strings.Contains(a.out, "--namespace") {
		t.Errorf("status of another namespace: %+v", a)
	}
}

// TestLogLevelAtRunTime: an operator changes the agent's log level, and restores it.
func TestLogLevelAtRunTime(t *testing.T) {
	o := newOperator(t)
	n := o.cluster.Node(2)
	for _, step := range []struct{ args, want string }{{"", "info"}, {"debug", "debug"}, {"", "debug"}, {"info", "info"}} {
		a := ask(t.Context(), t, n.Enter(append([]string{o.weft, "log-level"}, strings.Fields(step.args)...)...)...)
		if a.code != 0 || strings.TrimSpace(a.out) != step.want {
			t.Errorf("log-level %s: %+v", step.args, a)
		}
	}
	if a := ask(t.Context(), t, n.Enter(o.weft, "log-level", "loud")...); a.code != 2 || !strings.Contains(a.err, "debug, info, warn, error") {
		t.Errorf("log-level loud: %+v", a)
	}
}
