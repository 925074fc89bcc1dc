package nftables

import (
	"net/netip"
	"slices"

	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/transport"
)

// Conntrack is the connection tracking of the node: a *conntrack.Table.
type Conntrack interface {
	// Own returns the node's addresses.
	Own() (map[netip.Addr]bool, error)
	// Flush removes the connections for which ends returns true.
	Flush(ends func(conntrack.Tracked) bool) (removed int, err error)
}

// Flush removes the connections that policies no longer allow; revoked is the function of the node's enforcer. Later packets of these
// connections are judged as new. Connections that the node itself began are not judged. Flush also removes the connections of the
// addresses in left, as FlushPods does.
func Flush(tracked Conntrack, revoked func(policy.Connection) bool, left ...netip.Addr) error {
	own, err := tracked.Own()
	if err != nil {
		return err
	}
	gone := setOf(left)
	_, err = tracked.Flush(func(t conntrack.Tracked) bool {
		return gone[t.Source] || gone[t.Destination] || !own[t.Source] && revoked(policy.Connection{
			Source: t.Source, Destination: t.Destination, Protocol: transport.Protocol(t.Protocol), Port: t.Port,
		})
	})
	return err
}

// FlushPods removes the connections of addresses, which belonged to former pods: packets of a new pod with such an address would count as
// replies.
func FlushPods(tracked Conntrack, addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	of := setOf(addresses)
	_, err := tracked.Flush(func(t conntrack.Tracked) bool { return of[t.Source] || of[t.Destination] })
	return err
}

// FlushRanges removes the connections of addresses in ranges that neither the node nor an attached pod has.
func FlushRanges(tracked Conntrack, ranges []netip.Prefix, attached func(netip.Addr) bool) error {
	if len(ranges) == 0 {
		return nil
	}
	own, err := tracked.Own()
	if err != nil {
		return err
	}
	foreign := func(a netip.Addr) bool {
		return !own[a] && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }) && !attached(a)
	}
	_, err = tracked.Flush(func(t conntrack.Tracked) bool { return foreign(t.Source) || foreign(t.Destination) })
	return err
}

func setOf(addresses []netip.Addr) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(addresses))
	for _, address := range addresses {
		set[address] = true
	}
	return set
}
