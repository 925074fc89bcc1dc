package topology

import (
	"net/netip"

	"weft.dev/weft/internal/ipam"
)

// Addresses are the addresses of a Subnet that a plan computes, and what has them. The zero value has none.
type Addresses struct {
	Pool *ipam.SubnetPool // nil: the Subnet cannot be used
	// MACs are the holders of MAC addresses.
	MACs map[string]string
	// Holders is how many IP objects, gateways and EIPs have an address.
	Holders int
	// LanIPs are the addresses of NAT gateways in the VPC.
	LanIPs []netip.Addr
}

// Open creates the Subnet's pool of addresses, which continues after the last assigned address.
func (s *Subnet) Open() {
	s.Addresses = Addresses{MACs: map[string]string{}}
	if s.Reason != "" {
		return
	}
	pool, err := ipam.NewSubnetPool(s.Value.Prefix, s.Value.Gateway, s.Value.Excludes)
	if err != nil {
		return // parse has reported it
	}
	s.Pool = pool
	if last, err := netip.ParseAddr(s.Object.Status.LastIP); err == nil {
		pool.Resume(last)
	}
}
