package overlay

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Datapath is what forwards for the switch.
type Datapath interface {
	// Purge makes it forget what it has made of flows: it asks the switch anew. Connections stay known.
	Purge(ctx context.Context) error
}

// DefaultPurgeRest is how long the datapath is not purged of what need not be purged at once. A purge has the switch look at the next
// packet of everything that it forwards; once a second that is nothing beside its own dumps of what it has, which are as frequent.
const DefaultPurgeRest = time.Second

// What changed of policies, of egress firewalls, or of the ports that tunnels may have, has the datapath purged once it is committed, and
// nothing else does: at once, if something that was allowed may be so no more; within Options.PurgeRest, all that comes until then
// together, if something is allowed that was not, for whose packets the datapath may otherwise go by old flows as long as they come; or
// if a pod is gone, for which nobody sends. An ADD opens a new port, of whose packets the datapath has seen none.

// narrow notes whether something is allowed no more, since it was last asked. gone says that it is because a pod is gone.
func (x *policies) narrow(gone bool) {
	if x.rules == nil || !x.rules.Narrowed() {
		return
	}
	if gone {
		x.later = true
	} else {
		x.purge = true
	}
}

// purgeDue notes that the datapath is to be purged, if so.
func (n *Network) purgeDue(due bool) {
	n.opening.Lock()
	defer n.opening.Unlock()
	n.policies.purge = n.policies.purge || due
}

// purgeLater notes that the datapath is to be purged soon.
func (n *Network) purgeLater() {
	n.opening.Lock()
	defer n.opening.Unlock()
	n.policies.later = true
}

// purge has the datapath go by the flows that are committed, at once, if that is due. What fails is due again.
func (n *Network) purge(ctx context.Context) error {
	n.opening.Lock()
	due := n.policies.purge
	if !due {
		n.purgeSoon()
	}
	n.opening.Unlock()
	if !due {
		return nil
	}
	return n.purgeNow(ctx)
}

// purgeNow purges the datapath if that is due in whichever way, once what was handed over is in effect. While that fails, it is due
// again.
func (n *Network) purgeNow(ctx context.Context) error {
	n.opening.Lock()
	due, handed := n.policies.purge || n.policies.later, slices.Collect(maps.Keys(n.policies.handed))
	n.policies.purge, n.policies.later = false, false
	n.opening.Unlock()
	if !due || n.engines.Datapath == nil {
		return nil
	}
	if len(handed) > 0 {
		n.purgeDue(n.inEffect(ctx, handed) != nil) // whose it is, has the error
	}
	err := n.engines.Datapath.Purge(ctx)
	if err != nil {
		n.purgeDue(true)
	}
	return named("the datapath's flows", err)
}

// purgeSoon has keepPurged purge if that is due. The caller holds opening.
func (n *Network) purgeSoon() {
	if !n.policies.later && !n.policies.purge {
		return
	}
	select {
	case n.soon <- struct{}{}:
	default: // it is about to
	}
}

// keepPurged purges soon what need not be purged at once, until ctx ends.
func (n *Network) keepPurged(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.soon:
		}
		timer := time.NewTimer(n.opts.PurgeRest)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := n.purgeNow(ctx); err != nil && ctx.Err() == nil {
			n.opts.Log.Warn("the datapath may go by old flows, trying again", "error", err)
		}
		n.opening.Lock()
		n.purgeSoon()
		n.opening.Unlock()
	}
}
