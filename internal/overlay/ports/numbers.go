package ports

import (
	"net/netip"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
)

// Numbers picks addresses for pods and numbers for ports. What is in use, the records say: it only continues after what was picked last.
type Numbers struct {
	network string
	store   *attach.Store

	// mu guards the positions of the allocators. It is not held across I/O.
	mu      sync.Mutex
	pool    *ipam.Pool
	ofports ipam.Ofports
}

// Subnet returns the subnet of the addresses; the zero value before the first Resume.
func (n *Numbers) Subnet() netip.Prefix {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pool == nil {
		return netip.Prefix{}
	}
	return n.pool.Subnet()
}

// Resume begins to pick addresses of the pool's subnet, after those of the record last and after own's number of a port.
func (n *Numbers) Resume(pool *ipam.Pool, last, own *attach.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pool = pool
	for _, address := range last.Addresses {
		pool.Resume(address.Addr())
	}
	n.ofports.Resume(own.OFPort)
}

// pickPorts picks up to count numbers of ports that no record has, without those that skip names. It calls take for each, before it picks
// the next. It fails if there is none.
func (n *Numbers) pickPorts(count int, skip func(ofport uint32) bool, take func(ofport uint32)) error {
	inUse := n.store.InUse()
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range count {
		ofport, err := n.ofports.Pick(func(p uint32) bool { return held(inUse.OFPorts, p, attach.Key{}) || skip(p) })
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
func (n *Numbers) pick(key attach.Key, subnet netip.Prefix, port func() (uint32, error), skip func(ofport uint32) bool) (netip.Addr, uint32, error) {
	inUse := n.store.InUse()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pool.Subnet() != subnet {
		return netip.Addr{}, 0, cni.Errorf(cni.CodeTryAgainLater, "the node's subnet has just changed to %s: try again later", n.pool.Subnet())
	}
	address, err := n.pool.Pick(func(a netip.Addr) bool { return held(inUse.Addresses[n.network], a, key) })
	if err != nil {
		return netip.Addr{}, 0, cni.Errorf(cni.CodeTryAgainLater, "%w", err)
	}
	ofport, err := port()
	if err != nil || ofport != 0 {
		return address, ofport, err
	}
	ofport, err = n.ofports.Pick(func(p uint32) bool { return held(inUse.OFPorts, p, key) || skip(p) })
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

// Usage returns how many addresses of the subnet are in use, and how many there are; zeros before the first Resume.
func (n *Numbers) Usage() (used, all uint64) {
	n.mu.Lock()
	pool := n.pool
	n.mu.Unlock()
	if pool == nil {
		return 0, 0
	}
	return uint64(len(n.store.InUse().Addresses[n.network])), pool.Capacity()
}
