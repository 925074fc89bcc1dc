package etcdstore

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"weft.dev/weft/internal/flannel/netconf"
)

// pools are the subnets from which nodes get theirs, IPv4 first.
type pools [2]pool

// pool is that of one family. former is the subnet that the node had; invalid if there is none. The node's pods may have addresses of it.
type pool struct {
	netconf.Subnets
	wanted bool
	former netip.Prefix
}

// fit reports whether the configuration allows these subnets.
func (p *pools) fit(subnets [2]netip.Prefix) bool {
	for i, f := range p {
		if f.wanted != subnets[i].IsValid() || f.wanted && !f.fits(subnets[i]) {
			return false
		}
	}
	return true
}

// fits reports whether a subnet is one of the pool.
func (p *pool) fits(subnet netip.Prefix) bool {
	return subnet.IsValid() && subnet.Bits() == p.Len && !subnet.Addr().Less(p.Min) && !p.Max.Less(subnet.Addr())
}

// choose returns free subnets: of each family the node's former one, or a random one.
func (p *pools) choose(records []record) ([2]netip.Prefix, error) {
	var out [2]netip.Prefix
	free := func(subnet netip.Prefix) bool {
		for _, r := range records {
			if r.subnets[0].Overlaps(subnet) || r.subnets[1].Overlaps(subnet) {
				return false
			}
		}
		return true
	}
	for i := range p {
		if !p[i].wanted {
			continue
		}
		if former := p[i].former; p[i].fits(former) && free(former) {
			out[i] = former
			continue
		}
		subnet, err := p[i].pick(free)
		if err != nil {
			return out, err
		}
		out[i] = subnet
	}
	return out, nil
}

// candidates limits the number of free subnets among which one is chosen at random, as in flannel.
const candidates = 100

// pick chooses at random one of the first free subnets between Min and Max.
func (p *pool) pick(free func(netip.Prefix) bool) (netip.Prefix, error) {
	var found []netip.Prefix
	for addr := p.Min; addr.IsValid() && !p.Max.Less(addr) && len(found) < candidates; {
		subnet := netip.PrefixFrom(addr, p.Len)
		if free(subnet) {
			found = append(found, subnet)
		}
		addr = next(subnet)
	}
	if len(found) == 0 {
		return netip.Prefix{}, fmt.Errorf("all subnets from %s to %s are taken: enlarge Network, or delete leases of nodes that are gone", p.Min, p.Max)
	}
	return found[rand.IntN(len(found))], nil //nolint:gosec // which subnet a node has is no secret
}

// next returns the first address after a range; invalid if there is none.
func next(subnet netip.Prefix) netip.Addr {
	raw := subnet.Addr().AsSlice()
	for i, carry := (subnet.Bits()-1)/8, byte(1)<<(7-(subnet.Bits()-1)%8); i >= 0; i, carry = i-1, 1 {
		before := raw[i]
		if raw[i] += carry; raw[i] > before {
			addr, _ := netip.AddrFromSlice(raw)
			return addr
		}
	}
	return netip.Addr{}
}
