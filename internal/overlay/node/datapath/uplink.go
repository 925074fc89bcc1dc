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

// Forget implements egress.Uplink.
func (Uplink) Forget(addresses ...netip.Addr) error { return link.ForgetTranslated(addresses...) }
