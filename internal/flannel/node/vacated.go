package node

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/reconcile"
)

// vacated knows the addresses of the node whose connections may be tracked though no pod has them: those that a pod has left, and all that
// are outside the swept ranges. A pod that is given such an address would inherit the connections. For an address without a pod no new one
// is tracked, because the judge drops its packets.
type vacated struct {
	mu    sync.Mutex
	swept []netip.Prefix
	left  map[netip.Addr]departure
	count uint64
}

// departure is a pod's that has left an address: the owner of what the judge had for it, and a number of its own.
type departure struct {
	owner  reconcile.Owner
	number uint64
}

// leave notes that a pod is gone. What the judge has for it has been withdrawn before.
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

// flushed notes that the connections of these addresses were removed. One that was left again meanwhile stays.
func (v *vacated) flushed(addresses map[netip.Addr]departure) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for address, of := range addresses {
		if v.left[address] == of {
			delete(v.left, address)
		}
	}
}

// sweep notes that of the addresses in ranges only those of attached pods have connections.
func (v *vacated) sweep(ranges []netip.Prefix) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.swept = slices.Clone(ranges)
}

// doubtful returns those of a new pod's addresses that may have connections of others.
func (v *vacated) doubtful(rec *attach.Record) map[netip.Addr]departure {
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

// owners returns those whose withdrawal has to be in effect before the addresses' connections are removed.
func owners(addresses map[netip.Addr]departure) []reconcile.Owner {
	var out []reconcile.Owner
	for _, of := range addresses {
		if of.owner != "" && !slices.Contains(out, of.owner) {
			out = append(out, of.owner)
		}
	}
	return out
}
