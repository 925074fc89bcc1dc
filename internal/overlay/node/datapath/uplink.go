package datapath

import (
	"net/netip"

	"weft.dev/weft/internal/link"
)

// Uplink implements egress.Uplink by the node's own interface and kernel.
type Uplink struct{}

// Announce implements egress.Uplink.
func (Uplink) Announce(device string, addresses ...netip.Addr) error {
	return link.Announce(device, addresses...)
}

// Flush implements egress.Uplink.
func (Uplink) Flush(addresses ...netip.Addr) error { return link.FlushSourceNAT(addresses...) }
