package egress

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// secondAnnouncement is the delay before an address is announced again: the first announcement may be lost, or come before a switch of the
// network forwards for the port.
const secondAnnouncement = 2 * time.Second

// Announce queues addresses to be announced, if the node holds them by then. It does not wait.
func (a *Addresses) Announce(come []netip.Addr) {
	if len(come) == 0 {
		return
	}
	for {
		select {
		case a.come <- come:
			return
		case waiting := <-a.come:
			come = slices.Concat(waiting, come)
		}
	}
}

// announceAll announces new egress IPs, and each a second time, until ctx ends.
func (a *Addresses) announceAll(ctx context.Context) error {
	var again []netip.Addr
	var due <-chan time.Time
	for {
		var now []netip.Addr
		select {
		case <-ctx.Done():
			return nil
		case now = <-a.come:
			again, due = slices.Concat(again, now), time.After(secondAnnouncement)
		case <-due:
			now, again, due = again, nil, nil
		}
		v, on := a.network.View()
		if !on {
			continue
		}
		if err := a.engines.Uplink.Announce(v.Uplink, a.held(now)...); err != nil {
			a.engines.Log.Warn("announcing egress addresses failed; neighbours resolve them when their entries expire", "error", err)
		}
	}
}

// held returns those of the addresses that this node holds.
func (a *Addresses) held(addresses []netip.Addr) []netip.Addr {
	a.mu.RLock()
	defer a.mu.RUnlock()
	here := map[netip.Addr]bool{}
	for _, way := range a.wanted.Ways {
		here[way.Address] = true
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(address netip.Addr) bool { return !here[address] })
}
