package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/overlay/pipeline"
)

// TestDocument keeps docs/pipeline.md true: it is made from the tables and the flows.
func TestDocument(t *testing.T) {
	golden(t, "../../../docs/pipeline.md", document(sample(false)))
}

func document(c *pipeline.Config) string {
	var b strings.Builder
	b.WriteString("<!-- Made by `go test ./internal/overlay/pipeline -run TestDocument -update`. Do not edit. -->\n")
	b.WriteString("# The overlay's pipeline\n\n")
	b.WriteString("What `br0` on each node does with a packet, in a flat network (`redhat/openshift-ovs-subnet`).\n")
	b.WriteString("See a node's own with `ovs-ofctl -O OpenFlow15 dump-flows br0`; each flow's cookie names its owner.\n\n")
	fmt.Fprintf(&b, "Ports: %d is `vxlan0`, the tunnel; %d is `tun0`, the host; pods have %d and up.\n\n", pipeline.PortVXLAN, pipeline.PortTun, pipeline.FirstPodPort)
	b.WriteString("## Registers\n\n| register | holds |\n|---|---|\n")
	for _, r := range pipeline.Registers() {
		fmt.Fprintf(&b, "| %s | %s |\n", r.Name, r.Purpose)
	}
	b.WriteString("\n## Tables\n\n| table | name | purpose |\n|---|---|---|\n")
	for _, table := range pipeline.Tables() {
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
	documentTenants(&b)
	return b.String()
}

// documentServices adds what the switch does with Services, where it differs from the sample.
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
		fresh := slices.DeleteFunc(s.rules, func(r pipeline.Rule) bool { return before[r.Flow.String()] })
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

func writeRules(b *strings.Builder, rules []pipeline.Rule) {
	for _, r := range rules {
		f := r.Flow
		fmt.Fprintf(b, "| %d | %d | `%s` | `%s` | %s |\n", f.Table, f.Priority, f.Match, f.Actions, r.Purpose)
	}
}
