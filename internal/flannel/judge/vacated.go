package judge

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/reconcile"
)

// vacated records the node's addresses that may have tracked connections although no pod has them: those that a pod has left, and all
// outside the swept ranges. A new pod with such an address would inherit the connections. Other hosts' packets to an address without a pod
// make entries too, except while the base chains drop them: flushHeld is about those.
type vacated struct {
	mu    sync.Mutex
	swept []netip.Prefix
	left  map[netip.Addr]departure
	count uint64
}

// departure is a pod that has left an address: the owner of the judge's fragment for it, and a unique number.
type departure struct {
	owner  reconcile.Owner
	number uint64
}

// leave records that a pod was removed. The judge's fragment for it has been withdrawn before.
func (v *vacated) leave(rec *attach.Record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count++
	for _, address := range rec.Addresses {
		v.left[address.Addr()] = departure{reconcile.Owner(rec.Key().Owner()), v.count}
	}
}

// departed returns the addresses that pods have left.
func (v *vacated) departed() map[netip.Addr]departure {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.left)
}

// flushed records that the connections of these addresses were flushed. An address that was left again meanwhile stays.
func (v *vacated) flushed(addresses map[netip.Addr]departure) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for address, of := range addresses {
		if v.left[address] == of {
			delete(v.left, address)
		}
	}
}

// sweep records that in the ranges only addresses of attached pods have connections.
func (v *vacated) sweep(ranges []netip.Prefix) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.swept = slices.Clone(ranges)
}

// reused returns the addresses of a new pod that may have connections of other pods.
func (v *vacated) reused(rec *attach.Record) map[netip.Addr]departure {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[netip.Addr]departure{}
	for _, address := range rec.Addresses {
		addr := address.Addr()
		swept := slices.ContainsFunc(v.swept, func(r netip.Prefix) bool { return r.Contains(addr) })
		if of, left := v.left[addr]; left || !swept {
			out[addr] = of
		}
	}
	return out
}

// owners returns the owners whose withdrawal has to be in effect before the addresses' connections are flushed.
func owners(addresses map[netip.Addr]departure) []reconcile.Owner {
	var out []reconcile.Owner
	for _, of := range addresses {
		if of.owner != "" && !slices.Contains(out, of.owner) {
			out = append(out, of.owner)
		}
	}
	return out
}
