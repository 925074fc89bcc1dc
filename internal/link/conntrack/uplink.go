package conntrack

import (
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link/rtnetlink"
)

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (t translatedTo) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return slices.Contains(t, rtnetlink.ToAddr(flow.Reverse.DstIP)) && !flow.Forward.SrcIP.Equal(flow.Reverse.DstIP)
}
