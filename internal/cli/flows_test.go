package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/reconcile"
)

// Owners of the test's flows.
const (
	ownerPod     = "attachment/ab12/eth0"
	ownerTerm    = "policyterm/ingress/from/10.128.0.5/32"
	ownerRule    = "policyrule/0011"
	ownerService = "service/web/api"
	ownerGone    = "hostsubnet/17"
	learned      = "affinity/web/api:80"
)

func flowOwners() admin.Owners {
	owner := func(name, pod string, objects ...admin.Object) admin.Owner {
		return admin.Owner{Cookie: fmt.Sprintf("%#x", cookies.Of(reconcile.Owner(name))), Owner: name, Pod: pod, Objects: objects}
	}
	policy := func(name string) admin.Object {
		return admin.Object{Kind: "NetworkPolicy", Namespace: "web", Name: name}
	}
	return admin.Owners{Node: "n1", Owners: []admin.Owner{
		owner("cluster", "", admin.Object{Kind: "ClusterNetwork", Name: "default"}),
		owner("state", "", admin.Object{Kind: "ClusterNetwork", Name: "default"}),
		owner(ownerPod, "", admin.Object{Kind: "Pod", Namespace: "web", Name: "api-1"}),
		owner(ownerTerm, "web/api-1", policy("allow-api"), policy("allow-dns")),
		owner(ownerRule, "", policy("allow-api")),
		owner(ownerService, "", admin.Object{Kind: "Service", Namespace: "web", Name: "api"}),
		owner(ownerGone, ""),
	}}
}

// fakeSwitch serves a switch with some flows, and returns the directory of its sockets.
func fakeSwitch(t *testing.T, more ...*openflow.Flow) string {
	t.Helper()
	flow := func(owner string, table uint8, priority uint16, match oxm.Match, actions ...action.Action) *openflow.Flow {
		return &openflow.Flow{Table: table, Priority: priority, Cookie: cookies.Of(reconcile.Owner(owner)), Match: match, Actions: actions}
	}
	ip := oxm.EthType(oxm.EthTypeIPv4)
	_, note := pipeline.Note(reconcile.Hash{})
	all := []*openflow.Flow{
		note.(*openflow.Flow), //nolint:forcetypeassert // a note is a flow
		flow("cluster", 0, 100, oxm.NewMatch(ip), action.GotoTable(20)),
		flow("cluster", 0, 0, oxm.NewMatch()),
		flow(ownerPod, 20, 100, oxm.NewMatch(oxm.InPort(3), ip), action.GotoTable(21)),
		flow(ownerTerm, 80, 100, oxm.NewMatch(ip, oxm.IPSrc(prefix("10.128.0.5/32"))), action.Conjunction(7, 1, 2)),
		flow(ownerRule, 80, 100, oxm.NewMatch(ip, oxm.ConjID(7)), action.GotoTable(81)),
		flow(ownerService, 26, 100, oxm.NewMatch(ip), action.Learn(action.LearnSpec{
			Table: 24, Priority: 100, Cookie: cookies.Of(learned), IdleTimeout: 10, DeleteLearned: true,
		})),
		flow(ownerGone, 90, 100, oxm.NewMatch(ip, oxm.IPDst(prefix("10.129.0.0/23"))), action.Output(1)),
	}
	taught := flow(learned, 24, 100, oxm.NewMatch(ip, oxm.IPSrc(prefix("10.128.0.5/32"))))
	taught.IdleTimeout = 10
	var mods []openflow.Mod
	for _, f := range append(append(all, taught), more...) {
		mods = append(mods, openflow.Mod{Entry: f})
	}
	fake := bridge.NewFake()
	if err := fake.Disturb(mods...); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "br0.mgmt"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fake.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return dir
}

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func unowned() *openflow.Flow {
	return &openflow.Flow{Table: 30, Priority: 5000, Cookie: 0x99, Match: oxm.NewMatch(oxm.EthType(oxm.EthTypeIPv4))}
}

// TestFlows checks the output, for users and for scripts, and the exit code.
func TestFlows(t *testing.T) {
	clean, foreign := fakeSwitch(t), fakeSwitch(t, unowned())
	agent, nowhere := fakeAgent(t, admin.Diff{}), filepath.Join(t.TempDir(), "no.sock")
	for _, test := range []struct {
		name, runDir, socket string
		args                 []string
		code                 int
	}{
		{"all.txt", clean, agent, nil, 0},
		{"explained.txt", clean, agent, []string{"--explain"}, 0},
		{"explained.json", clean, agent, []string{"--explain", "-o", "json"}, 0},
		{"pod.txt", clean, agent, []string{"--pod", "web/api-1"}, 0},
		{"policy.txt", clean, agent, []string{"--policy", "web/allow-api"}, 0},
		{"service.json", clean, agent, []string{"--service", "web/api", "-o", "json"}, 0},
		{"unowned.txt", foreign, agent, []string{"--explain"}, 1},
		{"no-agent.txt", clean, nowhere, []string{"--explain"}, 2},
		{"no-agent-service.txt", clean, nowhere, []string{"--service", "web/api"}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := append([]string{"flows", "--ovs-run-dir", test.runDir, "--socket", test.socket}, test.args...)
			out, code, err := weft(t, Environment{}, args...)
			if code != test.code {
				t.Errorf("exit code %d, want %d: %v", code, test.code, err)
			}
			if test.socket == nowhere {
				flows, rest, says := strings.Cut(out, "weft: owners of the flows not known: no agent runs here")
				if !says || strings.Count(rest, "\n") != 1 {
					t.Errorf("the output does not give only the reason why owners are not known: %s", out)
				}
				out = flows
			}
			golden(t, "flows-"+test.name, out)
		})
	}
}

// TestFlowsAskedForWrongly: the error for a wrong request names the right form.
func TestFlowsAskedForWrongly(t *testing.T) {
	runDir, agent := fakeSwitch(t), fakeAgent(t, admin.Diff{})
	for _, test := range []struct {
		args []string
		part string
	}{
		{[]string{"--pod", "api-1"}, `--pod "api-1": it is NAMESPACE/NAME, as in --pod default/web`},
		{[]string{"--policy", "a/b/c"}, "NAMESPACE/NAME"},
		{[]string{"--pod", "a/b", "--service", "a/b"}, "give one of them"},
		{[]string{"--pod", "web/other"}, "Pod web/other has no flows on node n1: it is on another node"},
		{[]string{"--pod", "web/other"}, "There have some: web/api-1"},
		{[]string{"--policy", "elsewhere/other"}, "There have some: web/allow-api, web/allow-dns"},
		{[]string{"--service", "web/other"}, "There have some: web/api"},
		{[]string{"-o", "xml"}, "text, json, yaml"},
		{[]string{"--colour"}, "unknown flag"},
		{[]string{"pod"}, "unknown command"},
	} {
		_, code, err := weft(t, Environment{}, append([]string{"flows", "--ovs-run-dir", runDir, "--socket", agent}, test.args...)...)
		if code == 0 || err == nil || !strings.Contains(err.Error(), test.part) {
			t.Errorf("%v: code %d, %v", test.args, code, err)
		}
	}
	_, code, err := weft(t, Environment{}, "flows", "--ovs-run-dir", t.TempDir(), "--socket", agent)
	if code != command.Unknown || err == nil || !strings.Contains(err.Error(), "the flows cannot be read: connect to the switch") {
		t.Errorf("without a switch: code %d, %v", code, err)
	}
}

// TestFlowsOfAnotherNode: the command finds the node's agent with kubectl and runs there. Its output and exit code are passed on.
func TestFlowsOfAnotherNode(t *testing.T) {
	dir := t.TempDir()
	kubectl, said := filepath.Join(dir, "kubectl"), filepath.Join(dir, "said")
	script := "#!/bin/sh\necho \"$@\" >> " + said + "\ncase \"$*\" in\n*nodeName=n2*) echo weft-agent-x ;;\n*exec*) echo '{\"total\":3}'; echo \"$SAYS\" >&2; exit 1 ;;\nesac\n"
	if err := os.WriteFile(kubectl, []byte(script), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("SAYS", "command terminated with exit code 1")
	out, code, err := weft(t, Environment{}, "flows", "--kubectl", kubectl, "--node", "n2", "--context", "c", "-n", "net", "--policy", "web/allow-api", "--explain", "-o", "json")
	var report flows.Report
	if e := json.NewDecoder(strings.NewReader(out)).Decode(&report); e != nil || report.Total != 3 || code != 1 {
		t.Errorf("answer %q, code %d, %v, %v", out, code, err, e)
	}
	content, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	_, ran, _ := strings.Cut(string(content), "\n")
	want := "--namespace net --context c exec weft-agent-x --container agent -- /weft flows --output json --timeout 1m0s --socket " +
		admin.DefaultSocket + " --ovs-run-dir /run/openvswitch --policy web/allow-api --explain\n"
	if ran != want {
		t.Errorf("kubectl was asked\n%s\nwant\n%s", ran, want)
	}
	t.Setenv("SAYS", "Error from server (Forbidden): pods is forbidden")
	_, code, err = weft(t, Environment{}, "flows", "--kubectl", kubectl, "--node", "n2")
	if code != command.Unknown || err == nil || !strings.Contains(err.Error(), "--node n2: kubectl exec") {
		t.Errorf("kubectl may not: code %d, %v", code, err)
	}
	_, code, err = weft(t, Environment{}, "flows", "--kubectl", kubectl, "--node", "n3")
	if code != command.Unknown || err == nil || !strings.Contains(err.Error(), "--node n3: no agent runs there in namespace weft") {
		t.Errorf("a node without agent: code %d, %v", code, err)
	}
	_, code, err = weft(t, Environment{}, "flows", "--kubectl", filepath.Join(dir, "none"), "--node", "n2")
	if code != command.Unknown || err == nil || !strings.Contains(err.Error(), "looking for its agent") {
		t.Errorf("without kubectl: code %d, %v", code, err)
	}
}
