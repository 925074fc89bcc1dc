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
	"weft.dev/weft/internal/overlay/pipeline/layout"
)

// multicastPods returns the sample's pods of two projects. The first, with two pods, has multicast.
func multicastPods() []pipeline.Pod {
	return []pipeline.Pod{
		{Owner: "attachment/a/eth0", OFPort: 3, Addrs: addrs("10.128.0.5"), VNID: 42, Multicast: true},
		{Owner: "attachment/b/eth0", OFPort: 4, Addrs: addrs("10.128.0.6"), VNID: 42, Multicast: true},
		{Owner: "attachment/c/eth0", OFPort: 5, Addrs: addrs("10.128.0.7"), VNID: 77},
	}
}

func members(pods ...pipeline.Pod) []pipeline.MulticastMember {
	var list []pipeline.MulticastMember
	for _, pod := range pods {
		list = append(list, pipeline.MulticastMember{OFPort: pod.OFPort, Addr: pod.Addrs[0]})
	}
	return list
}

func multicastSections(c *pipeline.Config) []section {
	pods := multicastPods()
	return append(tenantSections(c, pods),
		section{string(pipeline.MulticastOwner(42)), pipeline.Multicast{Config: c}.ProjectRules(42, members(pods[:2]...))},
		section{string(pipeline.OwnerMulticastNodes), pipeline.Multicast{Config: c}.NodesRules([]pipeline.Remote{remote, outside})})
}

func multicastSample(mode pipeline.Mode) *pipeline.Config {
	c := sample(true)
	c.Mode = mode
	return c
}

func TestMulticastFlows(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy} {
		all := multicastSections(multicastSample(mode))
		goldentest.Compare(t, "testdata/multicast-"+string(mode)+".flows", text(sorted(all)))
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

// A flat network has no multicast, even if Pod.Multicast is set.
func TestFlatHasNoMulticast(t *testing.T) {
	c, pods := sample(true), multicastPods()
	if n := len(pipeline.Multicast{Config: c}.Project(42, members(pods...))) + len(pipeline.Multicast{Config: c}.Nodes([]pipeline.Remote{remote})); n > 0 {
		t.Errorf("%d flows", n)
	}
	with := text(sorted([]section{{"", c.PodRules(pods[0])}}))
	pods[0].Multicast = false
	if without := text(sorted([]section{{"", c.PodRules(pods[0])}})); with != without {
		t.Errorf("with multicast\n%swithout\n%s", with, without)
	}
}

// A project's multicast adds few flows, and none of other projects: a new pod changes one flow, and a new node changes one.
func TestMulticastChangesAreSmall(t *testing.T) {
	c, pods := multicastSample(pipeline.ModeMultitenant), multicastPods()
	silent := pods[0]
	silent.Multicast = false
	if with, without := c.Pod(pods[0]), c.Pod(silent); len(with) != len(without)+1 {
		t.Errorf("a pod that may send has %d flows, one that may not %d", len(with), len(without))
	}
	one, two := pipeline.Multicast{Config: c}.Project(42, members(pods[0])), pipeline.Multicast{Config: c}.Project(42, members(pods[:2]...))
	if add, alter, remove := differ(one, two); add+remove != 0 || alter != 1 {
		t.Errorf("another pod adds %d, alters %d, removes %d", add, alter, remove)
	}
	if (pipeline.Multicast{Config: c}).Project(42, nil) != nil && len(pipeline.Multicast{Config: c}.Project(42, nil)) > 0 {
		t.Error("a project without pods here has flows")
	}
	other := pipeline.Remote{UID: "node-c", NodeIP: netip.MustParseAddr("192.0.2.3"), Subnet: netip.MustParsePrefix("10.131.0.0/23")}
	before, after := pipeline.Multicast{Config: c}.Nodes([]pipeline.Remote{remote}), pipeline.Multicast{Config: c}.Nodes([]pipeline.Remote{remote, other})
	if add, alter, remove := differ(before, after); add != 1 || alter != 1 || remove != 0 {
		t.Errorf("another node adds %d, alters %d, removes %d", add, alter, remove)
	}
}

func differ(before, after map[openflow.Key]openflow.Entry) (add, alter, remove int) {
	for key, entry := range after {
		was, had := before[key]
		switch {
		case !had:
			add++
		case !was.Equal(entry):
			alter++
		}
	}
	for key := range before {
		if _, still := after[key]; !still {
			remove++
		}
	}
	return add, alter, remove
}

// Lists of any length are compiled to flows that the switch accepts, and each receiver is in exactly one of them.
func TestMulticastListsAreSplit(t *testing.T) {
	c := multicastSample(pipeline.ModeNetworkPolicy)
	for _, n := range []int{1, 999, 1000, 1001, 2000, 5003} {
		var list []pipeline.MulticastMember
		var remotes []pipeline.Remote
		for i := range n {
			list = append(list, pipeline.MulticastMember{OFPort: uint32(3 + i), Addr: netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)})})
			remotes = append(remotes, pipeline.Remote{
				UID: fmt.Sprint(i), NodeIP: netip.AddrFrom4([4]byte{192, 1, byte(i >> 8), byte(i)}),
				Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 129, byte(i >> 8), byte(i)}), 32),
			})
		}
		for table, rules := range map[uint8][]openflow.Rule{
			layout.TableMulticastLocal: pipeline.Multicast{Config: c}.ProjectRules(42, list), layout.TableMulticastTunnel: pipeline.Multicast{Config: c}.NodesRules(remotes),
		} {
			outputs, parts := 0, 0
			for _, r := range rules {
				if err := r.Flow.Validate(); err != nil {
					t.Fatalf("%d receivers: %v", n, err)
				}
				if r.Flow.Table == table {
					parts++
					outputs += strings.Count(r.Flow.Actions.String(), "output:")
				}
			}
			if want := (n + 999) / 1000; outputs != n || parts != want {
				t.Errorf("table %d: %d receivers are %d outputs in %d parts, want %d parts", table, n, outputs, parts, want)
			}
		}
	}
}

// documentMulticast adds the flows for multicast that differ from those of isolated projects without.
func documentMulticast(b *strings.Builder) {
	b.WriteString("\n## Multicast\n\n" +
		"In the modes with VNIDs ([multicast.md](multicast.md)), and only for projects that have it. Table 20 sends what such a pod sends to a group to table 110, " +
		"111 copies it to each other node, with the VNID as the VNI, and 120 to the project's pods on this node, each in a frame to its own MAC address. What comes by the tunnel goes from table 10 " +
		"to 120 at once. Policies and connections have no part in it. What differs from projects without, for a project with two pods:\n")
	c := multicastSample(pipeline.ModeMultitenant)
	plain := map[string]bool{}
	pods := multicastPods()
	for i := range pods {
		pods[i].Multicast = false
	}
	for _, s := range tenantSections(c, pods) {
		for _, r := range s.rules {
			plain[r.Flow.String()] = true
		}
	}
	for _, s := range multicastSections(c) {
		rules := slices.DeleteFunc(s.rules, func(r openflow.Rule) bool { return plain[r.Flow.String()] })
		if len(rules) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n### Owner `%s`, cookie `%#x`\n\n| table | priority | match | actions | what for |\n|---|---|---|---|---|\n", s.owner, rules[0].Flow.Cookie)
		writeRules(b, rules)
	}
}
