package plan

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net/netip"
)

// hostRange is where the /30 networks between the machine and its labs are taken from: the upper half of the link-local
// range (RFC 3927), which no router forwards and which leaves 169.254.0.1 alone; 169.254.169.254 is
// skipped by name below.
var hostRange = netip.MustParsePrefix("169.254.128.0/17") //nolint:gochecknoglobals // a constant

// ErrHostNets is returned when every network between the machine and its labs is taken.
var ErrHostNets = errors.New("no free /30 in 169.254.128.0/17 for the link to the lab")

// PickHostNet gives a lab its /30: the one its name hashes to, or the next that overlaps nothing that is taken.
func PickHostNet(name string, taken []netip.Prefix) (netip.Prefix, error) {
	const size = 4
	count := uint32(1) << (32 - hostRange.Bits()) / size
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	metadata := netip.MustParseAddr("169.254.169.254") // clouds answer there
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

// overlapsAny ignores networks wider than /16: a default route is not a use of an address.
func overlapsAny(p netip.Prefix, taken []netip.Prefix) bool {
	for _, t := range taken {
		if t.Bits() > 16 && p.Overlaps(t) {
			return true
		}
	}
	return false
}
