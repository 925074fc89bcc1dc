package nftables

import (
	"net/netip"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/policy"
)

// Conntrack is the connection tracking of the node: a *link.Conntrack.
type Conntrack interface {
	// Own returns the node's addresses.
	Own() (map[netip.Addr]bool, error)
	// Flush removes the connections for which ends returns true.
	Flush(ends func(link.Tracked) bool) (removed int, err error)
}

// Flush removes the connections that policies allow no more; revoked is that of the node's enforcer. What follows in one of them is judged
// as new. Connections that the node itself began are not judged.
func Flush(tracked Conntrack, revoked func(policy.Connection) bool) error {
	own, err := tracked.Own()
	if err != nil {
		return err
	}
	_, err = tracked.Flush(func(t link.Tracked) bool {
		return !own[t.Source] && revoked(policy.Connection{
			Source: t.Source, Destination: t.Destination, Protocol: policy.Protocol(t.Protocol), Port: t.Port,
		})
	})
	return err
}

// FlushPod removes the connections of addresses, of a pod that had them before: what goes on sending in one would count as a reply.
func FlushPod(tracked Conntrack, addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	of := map[netip.Addr]bool{}
	for _, address := range addresses {
		of[address] = true
	}
	_, err := tracked.Flush(func(t link.Tracked) bool { return of[t.Source] || of[t.Destination] })
	return err
}
