package overlay

import (
	"net/netip"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
)

// numbers picks addresses for pods and numbers for ports. What is in use, the records say: it only continues after what was picked last.
type numbers struct {
	store *attach.Store

	// mu guards the positions of the allocators. It is not held across I/O.
	mu      sync.Mutex
	pool    *ipam.Pool
	ofports ipam.Ofports
}

// subnet returns the subnet of the addresses; the zero value before the first resume.
func (a *numbers) subnet() netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pool == nil {
		return netip.Prefix{}
	}
	return a.pool.Subnet()
}

// resume begins to pick addresses of the pool's subnet, after those of the record last and after own's number of a port.
func (a *numbers) resume(pool *ipam.Pool, last, own *attach.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pool = pool
	for _, address := range last.Addresses {
		pool.Resume(address.Addr())
	}
	a.ofports.Resume(own.OFPort)
}

// pickPorts picks up to count numbers of ports that no record has, without those that skip names. It calls take for each, before it picks
// the next. It fails if there is none.
func (a *numbers) pickPorts(count int, skip func(ofport uint32) bool, take func(ofport uint32)) error {
	inUse := a.store.InUse()
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range count {
		ofport, err := a.ofports.Pick(func(p uint32) bool { return held(inUse.OFPorts, p, attach.Key{}) || skip(p) })
		if err != nil && i > 0 {
			break
		}
		if err != nil {
			return err
		}
		take(ofport)
	}
	return nil
}

// pick picks an address of the subnet, and the number of a port unless port returns one, for an attachment. port is called once the address
// is picked; it must not block. skip names numbers that are not picked.
func (a *numbers) pick(key attach.Key, subnet netip.Prefix, port func() (uint32, error), skip func(ofport uint32) bool) (netip.Addr, uint32, error) {
	inUse := a.store.InUse()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pool.Subnet() != subnet {
		return netip.Addr{}, 0, cni.Errorf(cni.CodeTryAgainLater, "the node's subnet has just changed to %s: try again later", a.pool.Subnet())
	}
	address, err := a.pool.Pick(func(a netip.Addr) bool { return held(inUse.Addresses[NetworkName], a, key) })
	if err != nil {
		return netip.Addr{}, 0, cni.Errorf(cni.CodeTryAgainLater, "%w", err)
	}
	ofport, err := port()
	if err != nil || ofport != 0 {
		return address, ofport, err
	}
	ofport, err = a.ofports.Pick(func(p uint32) bool { return held(inUse.OFPorts, p, key) || skip(p) })
	if err != nil {
		return netip.Addr{}, 0, cni.Errorf(cni.CodeTryAgainLater, "%w", err)
	}
	return address, ofport, nil
}

// held reports whether another attachment than key claims what.
func held[K comparable](claims map[K]attach.Key, what K, key attach.Key) bool {
	holder, ok := claims[what]
	return ok && holder != key
}

// usage returns how many addresses of the subnet are in use, and how many there are; zeros before the first resume.
func (a *numbers) usage() (used, all uint64) {
	a.mu.Lock()
	pool := a.pool
	a.mu.Unlock()
	if pool == nil {
		return 0, 0
	}
	return uint64(len(a.store.InUse().Addresses[NetworkName])), pool.Capacity()
}
