package policy

import (
	"net/netip"
	"slices"

	"weft.dev/weft/internal/transport"
)

// Connection is a connection as policies evaluate it: its source, and the destination after the translation of Services' addresses.
type Connection struct {
	Source, Destination netip.Addr
	// Protocol is the number in the IP header. Port is the destination port; 0 for protocols without ports.
	Protocol transport.Protocol
	Port     uint16
}

// Allows reports whether the policies that isolate a pod in a direction allow a connection. The pod is the source for Egress and the
// destination for Ingress. Allows is for single connections; compiled rules are for packets.
func (x *Index) Allows(pod Key, d Direction, c Connection) bool {
	isolation, known := x.Isolation(pod)
	switch {
	case !known:
		return false
	case c.Source == c.Destination, d == Ingress && !isolation.Ingress, d == Egress && !isolation.Egress:
		return true
	}
	peer := c.Source
	if d == Egress {
		peer = c.Destination
	}
	return slices.ContainsFunc(x.Policies(pod), func(key Key) bool {
		return slices.ContainsFunc(x.Rules(key), func(r Rule) bool {
			return r.Direction == d && x.Has(r.Subjects, pod) && offers(&r, c) && x.names(&r, peer)
		})
	})
}

func offers(r *Rule, c Connection) bool {
	return r.AnyService || slices.ContainsFunc(r.Services, func(s Service) bool { return s.Contains(c.Protocol, c.Port) })
}

func (x *Index) names(r *Rule, peer netip.Addr) bool {
	return r.AnyPeer || slices.ContainsFunc(r.PeerBlocks, func(b netip.Prefix) bool { return b.Contains(peer) }) ||
		slices.ContainsFunc(r.PeerSets, func(name SetName) bool {
			v, named := x.sets.views[name]
			return named && x.cluster.hasAddress(v, peer)
		})
}
