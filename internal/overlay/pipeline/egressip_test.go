package pipeline_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
)

// egressWays returns projects with egress IPs: 42 leaves here, 77 by two other nodes, 78 by one, and 79 not at all.
func egressWays() []pipeline.EgressWay {
	return []pipeline.EgressWay{
		{VNID: 42, Here: true},
		{VNID: 77, Nodes: []netip.Addr{remote.NodeIP, netip.MustParseAddr("192.0.2.3")}},
		{VNID: 78, Nodes: []netip.Addr{remote.NodeIP}},
		{VNID: 79},
	}
}

func egressGroup(vnid uint32) uint32 { return 0x1000 + vnid }

// egressSections returns the flows of the sample's pods, each in a project with egress IPs, and of these egress IPs.
func egressSections(c *pipeline.Config, pods []pipeline.Pod) ([]section, []*openflow.Group) {
	for i := range pods {
		pods[i].Egress = egressGroup(pods[i].VNID)
	}
	all := tenantSections(c, pods)
	var groups []*openflow.Group
	for _, way := range egressWays() {
		rules, group := pipeline.EgressIPs{Config: c}.Rules(way, egressGroup(way.VNID))
		all, groups = append(all, section{string(way.Owner()), rules}), append(groups, group)
	}
	return all, groups
}

func egressSample(mode pipeline.Mode) (*pipeline.Config, []pipeline.Pod) {
	c, pods := tenantSample(true)
	c.Mode = mode
	return c, pods[:2]
}

func TestEgressIPFlows(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy} {
		all, groups := egressSections(egressSample(mode))
		text := text(sorted(all))
		for _, g := range groups {
			text += g.String() + "\n"
		}
		goldentest.Compare(t, "testdata/egressip-"+string(mode)+".flows", text)
		seen := map[string]string{}
		for _, s := range all {
			for _, r := range s.rules {
				key := r.Flow.Key().String()
				if other, ok := seen[key]; ok && other != s.owner {
					t.Errorf("%s of %s is already %s's", key, s.owner, other)
				}
				seen[key] = s.owner
				if r.Purpose == "" {
					t.Errorf("%s has no purpose", key)
				}
			}
		}
	}
}

// If an address moves, one group changes, and no flow of a pod.
func TestEgressIPMoveIsOneGroup(t *testing.T) {
	c, _ := egressSample(pipeline.ModeMultitenant)
	ways := egressWays()
	before, after := pipeline.EgressIPs{Config: c}.Flows(ways[2], 5), pipeline.EgressIPs{Config: c}.Flows(pipeline.EgressWay{VNID: 78, Nodes: []netip.Addr{netip.MustParseAddr("192.0.2.3")}}, 5)
	if len(before) != 1 || len(after) != 1 {
		t.Errorf("%d and %d entries", len(before), len(after))
	}
}

func TestEgressIPIsChecked(t *testing.T) {
	c, _ := egressSample(pipeline.ModeMultitenant)
	for _, bad := range []pipeline.EgressWay{{VNID: 1 << 24}, {VNID: 1, Nodes: []netip.Addr{netip.MustParseAddr("fd00::1")}}} {
		if err := (pipeline.EgressIPs{Config: c}).Check(&bad); err == nil || len(pipeline.EgressIPs{Config: c}.Flows(bad, 5)) != 0 {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	c.Mode = pipeline.ModeSubnet
	if len(pipeline.EgressIPs{Config: c}.Flows(egressWays()[0], 5)) != 0 {
		t.Error("a flat network has egress addresses")
	}
}

// documentEgressIPs adds the flows for egress IPs that differ from those of isolated projects without.
func documentEgressIPs(b *strings.Builder) {
	b.WriteString("\n## Egress addresses\n\n" +
		"In the modes with VNIDs ([egress-ip.md](egress-ip.md)). What leaves the cluster from a pod of a project with egress addresses goes to the project's group: " +
		"to this node's host with a source MAC address that names the project (0a:59:00 and the VNID), where this node holds an address; by the tunnel to nodes that do; or nowhere. " +
		"Answers to what came from outside pass by: so connections of such pods are looked for. On the holder, table 10 lets through what comes from another node's pods to outside, " +
		"and table 101 hands it to the host if an address is held for its VNI; the host translates it. Its answers go back by the tunnel, and the pod's node lets them in if they answer a connection. " +
		"What differs from projects without, for one project that leaves here, one by two other nodes, one by one, and one whose addresses no node holds:\n")
	c, pods := egressSample(pipeline.ModeMultitenant)
	plain := map[string]bool{}
	for _, s := range tenantSections(c, pods) {
		for _, r := range s.rules {
			plain[r.Flow.String()] = true
		}
	}
	all, groups := egressSections(egressSample(pipeline.ModeMultitenant))
	for _, s := range all {
		rules := slices.DeleteFunc(s.rules, func(r openflow.Rule) bool { return plain[r.Flow.String()] })
		if len(rules) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n### Owner `%s`, cookie `%#x`\n\n| table | priority | match | actions | what for |\n|---|---|---|---|---|\n", s.owner, rules[0].Flow.Cookie)
		writeRules(b, rules)
	}
	b.WriteString("\nThe groups:\n")
	for _, g := range groups {
		fmt.Fprintf(b, "\n`%s`\n", g)
	}
}
