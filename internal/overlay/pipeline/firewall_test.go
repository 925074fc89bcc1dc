package pipeline_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/layout"
)

// Numbers of the firewalls of the first pod's namespace and of another.
const firewallOne, firewallTwo = 0x101, 0x202

// firewallPod is the first pod, with a firewall.
func firewallPod() pipeline.Pod {
	pod := podA
	pod.VNID, pod.Firewall = 42, firewallOne
	return pod
}

// firewallSample has rules of each kind, one of them hidden, and a name without known addresses.
func firewallSample() egressfirewall.Firewall {
	known := map[string][]netip.Addr{"web.example.": addrs("198.51.100.80", "2001:db8::1")}
	return egressfirewall.Compile([]egressfirewall.Rule{
		{Verdict: egressfirewall.Allow, Name: "web.example."},
		{Verdict: egressfirewall.Deny, CIDR: netip.MustParsePrefix("198.51.100.0/24")},
		{Verdict: egressfirewall.Allow, CIDR: netip.MustParsePrefix("198.51.100.7/32")},
		{Verdict: egressfirewall.Allow, CIDR: netip.MustParsePrefix("203.0.113.0/24")},
		{Verdict: egressfirewall.Deny, Name: "unknown.example."},
		{Verdict: egressfirewall.Allow, CIDR: netip.MustParsePrefix("192.0.2.0/24")},
	}, func(name string) ([]netip.Addr, bool) {
		list, has := known[name]
		return list, has
	})
}

func firewallSections(c *pipeline.Config) []section {
	f, pod := firewallSample(), firewallPod()
	return []section{
		{"cluster", c.StaticRules()},
		{string(pod.Owner), c.PodRules(pod)},
		{string(pipeline.FirewallOwner("one")), pipeline.Firewalls{Config: c}.Rules("one", firewallOne, &f)},
		{string(pipeline.FirewallOwner("two")), pipeline.Firewalls{Config: c}.Rules("two", firewallTwo, &egressfirewall.Firewall{Closed: egressfirewall.Several(2)})},
	}
}

func TestFirewallFlows(t *testing.T) {
	for mode, name := range map[pipeline.Mode]string{pipeline.ModeMultitenant: "tenants", pipeline.ModeNetworkPolicy: "policies"} {
		t.Run(name, func(t *testing.T) {
			c := sample(true)
			c.Mode = mode
			goldentest.Compare(t, "testdata/firewall-"+name+".flows", text(sorted(firewallSections(c))))
		})
	}
}

// A flat network has no firewalls: neither in its pods' flows nor in its tables.
func TestFlatHasNoFirewalls(t *testing.T) {
	c, f := sample(true), firewallSample()
	if rules := (pipeline.Firewalls{Config: c}).Rules("one", firewallOne, &f); len(rules) > 0 {
		t.Errorf("%d flows", len(rules))
	}
	pod := firewallPod()
	with := text(sorted([]section{{"", c.PodRules(pod)}}))
	pod.Firewall = 0
	if without := text(sorted([]section{{"", c.PodRules(pod)}})); with != without {
		t.Errorf("with a firewall\n%swithout\n%s", with, without)
	}
}

// A change of a name's addresses changes its own flows and no others. Adding a policy changes one flow of a pod.
func TestFirewallChangesAreSmall(t *testing.T) {
	c := sample(true)
	c.Mode = pipeline.ModeMultitenant
	rules := []egressfirewall.Rule{
		{Verdict: egressfirewall.Allow, Name: "web.example."},
		{Verdict: egressfirewall.Deny, CIDR: netip.MustParsePrefix("198.51.100.0/24")},
		{Verdict: egressfirewall.Allow, Name: "other.example."},
		{Verdict: egressfirewall.Deny, CIDR: netip.MustParsePrefix("0.0.0.0/0")},
	}
	at := func(web string) map[string]string {
		f := egressfirewall.Compile(rules, func(name string) ([]netip.Addr, bool) {
			return addrs(map[string]string{"web.example.": web, "other.example.": "192.0.2.80"}[name]), true
		})
		flows := map[string]string{}
		for key, flow := range (pipeline.Firewalls{Config: c}).Flows("one", firewallOne, &f) {
			flows[key.String()] = flow.String()
		}
		return flows
	}
	before, after := at("203.0.113.1"), at("203.0.113.2")
	for key, flow := range after {
		if before[key] != flow && !strings.Contains(flow, "203.0.113.2") {
			t.Errorf("%s is another: %s", key, flow)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%d flows, and %d", len(before), len(after))
	}
	pod := firewallPod()
	guarded := c.Pod(pod)
	pod.Firewall = 0
	altered := 0
	for key, flow := range c.Pod(pod) {
		if !flow.Equal(guarded[key]) {
			altered++
		}
	}
	if altered != 1 {
		t.Errorf("a firewall alters %d flows of a pod", altered)
	}
}

// documentFirewalls adds the flows for egress firewalls.
func documentFirewalls(b *strings.Builder) {
	b.WriteString("\n## Egress firewalls\n\n" +
		"With isolated projects and with NetworkPolicies, namespaces may have an EgressNetworkPolicy ([egress.md](egress.md)). Their pods carry its number; " +
		"what leaves the cluster is judged in table 100 by its real destination, and the longest range decides. Pods with a firewall are not served by the host. " +
		"What concerns firewalls, in a network with NetworkPolicies: those of namespace one, and of namespace two, which has two policies.\n")
	c := sample(true)
	c.Mode = pipeline.ModeNetworkPolicy
	for _, s := range firewallSections(c) {
		concerned := slices.DeleteFunc(s.rules, func(r openflow.Rule) bool {
			f := r.Flow
			return !strings.Contains(f.Match.String()+f.Actions.String(), "reg7") && f.Table != layout.TableEgressFirewall && f.Table != layout.TableExternal
		})
		fmt.Fprintf(b, "\n### Owner `%s`, with firewalls\n\n| table | priority | match | actions | what for |\n|---|---|---|---|---|\n", s.owner)
		writeRules(b, concerned)
	}
}
