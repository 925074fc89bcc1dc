package judge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/policy/nftables"
)

// flushHeld flushes what has come for new pods that are isolated or not known, once their verdicts are in effect: packets that wait for their
// addresses, and connections if base chains have not always been in effect since the last sweep. Without base chains, packets to an address
// without a pod make an entry, of which the pod's first packet would be the reply. Packets go last: those of a connection may come until it ends.
func (j *Judge) flushHeld(fresh []attach.Record, connections bool) error {
	var addresses []netip.Addr
	j.compiled(func(c *nftables.Compiler) {
		for i := range fresh {
			if c.Holds(fresh[i].Key()) {
				addresses = append(addresses, fresh[i].Addrs()...)
			}
		}
	})
	if len(addresses) == 0 {
		return nil
	}
	if connections {
		if err := nftables.FlushPods(j.tracked, addresses...); err != nil {
			return err
		}
	}
	return dropQueued(j.kernel, j.bridge, addresses)
}

// revoke flushes the connections that policies do not allow any more, and those of the addresses that pods have left. While rules for such
// a pod are still in effect, its connections are left for a later flush.
func (j *Judge) revoke(ctx context.Context) error {
	departed := j.vacated.departed()
	var err error
	if len(departed) > 0 {
		err = j.tables[podsTable].settled(ctx, owners(departed)...)
	}
	if err != nil {
		departed = nil
	}
	err = errors.Join(err, nftables.Flush(j.tracked, j.enforcer.Revoked(), slices.Collect(maps.Keys(departed))...))
	if err == nil {
		j.vacated.flushed(departed)
	}
	return err
}

// sweepRanges flushes the connections of the node's ranges that belong to no attached pod. A pod that is attached meanwhile flushes its own.
func (j *Judge) sweepRanges() error {
	j.mu.Lock()
	ranges := j.ranges
	j.mu.Unlock()
	return nftables.FlushRanges(j.tracked, ranges, j.isTaken)
}

// flushAddresses flushes the connections of addresses, once no rules for their former pods are in effect.
func (j *Judge) flushAddresses(ctx context.Context, addresses map[netip.Addr]departure) error {
	if len(addresses) == 0 {
		return nil
	}
	if err := j.tables[podsTable].settled(ctx, owners(addresses)...); err != nil {
		return fmt.Errorf("table inet %s: %w", podsTable, err)
	}
	if err := nftables.FlushPods(j.tracked, slices.Collect(maps.Keys(addresses))...); err != nil {
		return err
	}
	j.vacated.flushed(addresses)
	return nil
}

// sweep flushes the connections of the node's ranges that belong to no attached pod: an earlier agent process has left them.
func (j *Judge) sweep(ranges []netip.Prefix) {
	j.mu.Lock()
	j.ranges = ranges
	j.mu.Unlock()
	if err := j.sweepRanges(); err != nil {
		j.log.Warn("connections of former pods could not be removed: each new pod's addresses are looked for instead", "error", err)
		return
	}
	j.vacated.sweep(ranges)
}

// isTaken reports whether an address is that of an admitted pod.
func (j *Judge) isTaken(address netip.Addr) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, is := j.taken[address]
	return is
}
