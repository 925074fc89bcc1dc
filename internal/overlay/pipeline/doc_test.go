package pipeline_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/conjunction"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/transport"
)

// TestDocument keeps docs/pipeline.md up to date: it is generated from the tables and the flows.
func TestDocument(t *testing.T) {
	goldentest.Compare(t, "../../../docs/pipeline.md", document(sample(false)))
}

func document(c *pipeline.Config) string {
	var b strings.Builder
	b.WriteString("<!-- Made by `go test ./internal/overlay/pipeline -run TestDocument -update`. Do not edit. -->\n")
	b.WriteString("# The overlay's pipeline\n\n")
	b.WriteString("What `br0` on each node does with a packet, in a flat network (`redhat/openshift-ovs-subnet`).\n")
	b.WriteString("See a node's own with `weft flows`, which says of each flow what object it comes from, by its cookie; `weft flows --explain`\n" +
		"counts them by object, and `--pod`, `--policy` and `--service` list one's own ([operations.md](operations.md#weft-flows)). Without Weft's\n" +
		"words it is `ovs-ofctl -O OpenFlow15 dump-flows br0`.\n\n")
	fmt.Fprintf(&b, "Ports: %d is `vxlan0`, the tunnel; %d is `tun0`, the host; pods have %d and up.\n\n", layout.PortVXLAN, layout.PortTun, layout.FirstPodPort)
	b.WriteString("## Registers\n\n| register | holds |\n|---|---|\n")
	for _, r := range layout.Registers() {
		fmt.Fprintf(&b, "| %s | %s |\n", r.Name, r.Purpose)
	}
	b.WriteString("\n## Tables\n\n| table | name | purpose |\n|---|---|---|\n")
	for _, table := range layout.Tables() {
		fmt.Fprintf(&b, "| %d | %s | %s |\n", table.Number, table.Name, table.Purpose)
	}
	b.WriteString("\n## Flows of a sample\n\n")
	fmt.Fprintf(&b, "A node with the address %s and the pods' subnet %s in the cluster network %s, Services in %s, ", c.NodeIP, c.LocalSubnet, c.ClusterNetworks[0], c.ServiceNetwork)
	fmt.Fprintf(&b, "two pods, another node (%s, %s), and a host that is no node and has a VNID of its own (%s, %s).\n", remote.NodeIP, remote.Subnet, outside.NodeIP, outside.Subnet)
	for _, s := range sections(c) {
		fmt.Fprintf(&b, "\n### Owner `%s`, cookie `%#x`\n\n| table | priority | match | actions | what for |\n|---|---|---|---|---|\n", s.owner, s.rules[0].Flow.Cookie)
		writeRules(&b, s.rules)
	}
	documentServices(&b)
	documentPolicies(&b)
	documentTenants(&b)
	documentFirewalls(&b)
	documentEgressIPs(&b)
	documentMulticast(&b)
	return b.String()
}

// documentServices adds the flows for Services that differ from the sample's.
func documentServices(b *strings.Builder) {
	plain, tracked := sample(false), sample(true)
	b.WriteString("\n## Services in the switch\n\n" +
		"With connection tracking, a pod's new connection to a Service is translated where it begins. What differs then from the flows above:\n")
	before := map[string]bool{}
	for _, s := range sections(plain) {
		for _, r := range s.rules {
			before[r.Flow.String()] = true
		}
	}
	for _, s := range sections(tracked) {
		fresh := slices.DeleteFunc(s.rules, func(r openflow.Rule) bool { return before[r.Flow.String()] })
		fmt.Fprintf(b, "\n### Owner `%s`, with Services\n\n| table | priority | match | actions | what for |\n|---|---|---|---|---|\n", s.owner)
		writeRules(b, fresh)
	}
	for _, s := range serviceSections(tracked, sampleServices()) {
		fmt.Fprintf(b, "\n### Owner `%s`, cookie `%#x`\n\n| table | priority | match | actions | what for |\n|---|---|---|---|---|\n", s.owner, s.Rules[0].Flow.Cookie)
		writeRules(b, s.Rules)
		for _, g := range s.Groups {
			fmt.Fprintf(b, "\n`%s`\n", g)
		}
	}
}

// documentPolicies adds the flows for NetworkPolicies that differ from the flat network's.
func documentPolicies(b *strings.Builder) {
	b.WriteString("\n## NetworkPolicies\n\n" +
		"In the mode `redhat/openshift-ovs-networkpolicy` ([policy.md](policy.md)). What pods of the node send and get goes through table 21 " +
		"once more, when its connection is known, whether or not a policy isolates one. Tables 27 and 80 let answers pass, then what a conjunction allows, and drop " +
		"what is else from or to an isolated pod; table 81 delivers. Of table 21 the flows that look for Services' connections only are not there. What else differs from the flat network with Services, for a policy by which pods with a label " +
		"may send to port 80 of the first pod, which is isolated in both directions:\n")
	table := func(owner string, rules []openflow.Rule) {
		fmt.Fprintf(b, "\n### Owner `%s`, cookie `%#x`\n\n| table | priority | match | actions | what for |\n|---|---|---|---|---|\n", owner, rules[0].Flow.Cookie)
		writeRules(b, rules)
	}
	flat := map[string]bool{}
	for _, s := range sections(sample(true)) {
		for _, r := range s.rules {
			flat[r.Flow.String()] = true
		}
	}
	c, x := policySample(), samplePolicies()
	a := podA
	a.Isolation = policy.Isolation{Ingress: true, Egress: true}
	for _, s := range []section{{"cluster", c.StaticRules()}, {string(a.Owner), c.PodRules(a)}, {string(remote.Owner()), c.RemoteRules(remote)}} {
		table(s.owner, slices.DeleteFunc(s.rules, func(r openflow.Rule) bool { return flat[r.Flow.String()] }))
	}
	changed := x.ChangedRules()
	for _, owner := range slices.Sorted(maps.Keys(changed)) {
		table(string(owner), changed[owner])
	}
}

// samplePolicies has a rule by which two pods, one on this node and one on another, may send to port 80 of the first pod.
func samplePolicies() *conjunction.Compiler {
	x := conjunction.New(sample(true).LocalSubnet)
	key := policy.Key{Namespace: "one", Name: "web"}
	x.Apply(policy.Effect{Policies: []policy.Key{key}}, oneRule{policy.Rule{
		Name: "one/web ingress[0]", Policy: key, Direction: policy.Ingress, Subjects: "server", PeerSets: []policy.SetName{"clients"},
		Services: []policy.Service{{Protocol: transport.TCP, Port: 80, Mask: 0xffff}},
	}})
	return x
}

// oneRule are objects with one rule.
type oneRule struct{ rule policy.Rule }

func (o oneRule) Rules(policy.Key) []policy.Rule { return []policy.Rule{o.rule} }

func (o oneRule) Addresses(name policy.SetName) []netip.Addr {
	if name == o.rule.Subjects {
		return addrs("10.128.0.5")
	}
	return addrs("10.128.0.6", "10.129.0.7")
}

func writeRules(b *strings.Builder, rules []openflow.Rule) {
	for _, r := range rules {
		f := r.Flow
		fmt.Fprintf(b, "| %d | %d | `%s` | `%s` | %s |\n", f.Table, f.Priority, f.Match, f.Actions, r.Purpose)
	}
}
