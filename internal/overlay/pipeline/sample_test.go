package pipeline_test

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
)

// The sample: the default cluster network, this node 10.128.0.0/23 with two pods, and two other hosts, the second without a Node.
var (
	podA    = pipeline.Pod{Owner: "attachment/a/eth0", OFPort: 3, Addrs: addrs("10.128.0.5")}
	podB    = pipeline.Pod{Owner: "attachment/b/eth0", OFPort: 4, Addrs: addrs("10.128.0.6"), VNID: 77}
	remote  = pipeline.Remote{UID: "node-b", NodeIP: netip.MustParseAddr("192.0.2.2"), Subnet: netip.MustParsePrefix("10.129.0.0/23")}
	outside = pipeline.Remote{UID: "device", NodeIP: netip.MustParseAddr("192.0.2.9"), Subnet: netip.MustParsePrefix("10.130.0.0/23"), FixedVNID: 99}
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func sample(conntrack bool) *pipeline.Config {
	return &pipeline.Config{
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		LocalSubnet:     netip.MustParsePrefix("10.128.0.0/23"),
		Gateway:         netip.MustParseAddr("10.128.0.1"),
		NodeIP:          netip.MustParseAddr("192.0.2.1"),
		Metadata:        addrs("169.254.169.254"),
		ClosedTCP:       []uint16{22623, 22624},
		Conntrack:       conntrack,
		SCTP:            true,
		KeepApart:       true,
	}
}

// section is the rules of one owner.
type section struct {
	owner string
	rules []openflow.Rule
}

func sections(c *pipeline.Config) []section {
	return []section{
		{"cluster", c.StaticRules()},
		{string(podA.Owner), c.PodRules(podA)},
		{string(podB.Owner), c.PodRules(podB)},
		{string(remote.Owner()), c.RemoteRules(remote)},
		{string(outside.Owner()), c.RemoteRules(outside)},
	}
}

func allFlows(c *pipeline.Config) []*openflow.Flow { return sorted(sections(c)) }

// sorted returns the flows of sections in the order of golden files.
func sorted(all []section) []*openflow.Flow {
	var flows []*openflow.Flow
	for _, s := range all {
		for _, r := range s.rules {
			flows = append(flows, r.Flow)
		}
	}
	slices.SortFunc(flows, func(a, b *openflow.Flow) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Key().Match, b.Key().Match))
	})
	return flows
}

func text(flows []*openflow.Flow) string {
	var b strings.Builder
	for _, f := range flows {
		b.WriteString(f.String() + "\n")
	}
	return b.String()
}
