package enforcer

import (
	"net/netip"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/policy"
)

// Revoked returns a function that reports whether an established connection must end: the policies of this node's pods no longer allow
// it, and do not keep it, or an attachment is closed. The function must not be called for connections that the node itself began. It takes the lock.
func (e *Enforcer) Revoked() func(c policy.Connection) bool {
	e.lock.Lock()
	defer e.lock.Unlock()
	here := map[netip.Addr]attach.Record{}
	for _, records := range e.attached {
		for _, rec := range records {
			for _, address := range rec.Addresses {
				here[address.Addr()] = rec
			}
		}
	}
	return func(c policy.Connection) bool {
		source, fromHere := here[c.Source]
		destination, toHere := here[c.Destination]
		if !fromHere && !toHere || c.Source == c.Destination {
			return false
		}
		e.lock.Lock()
		defer e.lock.Unlock()
		return fromHere && e.ends(&source, policy.Egress, c) || toHere && e.ends(&destination, policy.Ingress, c)
	}
}

// ends reports whether the policies of the attachment's pod neither allow a connection nor keep it, or the attachment is closed.
func (x *state) ends(rec *attach.Record, d policy.Direction, c policy.Connection) bool {
	pod := PodOf(rec)
	switch {
	case x.lent:
		return false
	case !x.pods[pod].is(rec):
		return true
	case x.index.Allows(pod, d, c):
		return false
	}
	isolation, _ := x.index.Isolation(pod)
	if d == policy.Ingress {
		return !isolation.KeepsIngress
	}
	return !isolation.KeepsEgress
}
