package datapath

import (
	"net/netip"

	"weft.dev/weft/internal/link/arp"
	"weft.dev/weft/internal/link/conntrack"
)

// Uplink implements egress.Uplink by the node's own interface and kernel.
type Uplink struct{}

// Announce implements egress.Uplink.
func (Uplink) Announce(device string, addresses ...netip.Addr) error {
	return arp.Announce(device, addresses...)
}

// Flush implements egress.Uplink.
func (Uplink) Flush(addresses ...netip.Addr) error { return conntrack.FlushSourceNAT(addresses...) }
