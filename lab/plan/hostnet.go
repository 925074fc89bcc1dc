package plan

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net/netip"
)

// hostRange is the range of the /30 networks between the machine and its labs: the upper half of the link-local range (RFC 3927). No
// router forwards it, and it does not include 169.254.0.1. 169.254.169.254 is excluded by name below.
var hostRange = netip.MustParsePrefix("169.254.128.0/17") //nolint:gochecknoglobals // a constant

// ErrHostNets reports that every network between the machine and its labs is in use.
var ErrHostNets = errors.New("no free /30 in 169.254.128.0/17 for the link to the lab")

// PickHostNet returns a lab's /30: the one that its name hashes to, or the next one without an overlap.
func PickHostNet(name string, taken []netip.Prefix) (netip.Prefix, error) {
	const size = 4
	count := uint32(1) << (32 - hostRange.Bits()) / size
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	metadata := netip.MustParseAddr("169.254.169.254") // the clouds' metadata address
	base4 := hostRange.Addr().As4()
	base := binary.BigEndian.Uint32(base4[:])
	for i := range count {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], base+(h.Sum32()+i)%count*size)
		p := netip.PrefixFrom(netip.AddrFrom4(a), 30)
		if !p.Contains(metadata) && !overlapsAny(p, taken) {
			return p, nil
		}
	}
	return netip.Prefix{}, ErrHostNets
}

// overlapsAny ignores networks wider than /16: a default route does not use an address.
func overlapsAny(p netip.Prefix, taken []netip.Prefix) bool {
	for _, t := range taken {
		if t.Bits() > 16 && p.Overlaps(t) {
			return true
		}
	}
	return false
}
