package address

import (
	"fmt"
	"net/netip"
	"sync"
)

// Pool chooses addresses. What is in use is the caller's to know; a Pool has only the order of assignment, and a Book.
type Pool struct {
	// Book has the addresses that are kept for pods of other names.
	Book *Book

	mu   sync.Mutex
	last map[int]netip.Addr // the address assigned last, by range
}

// Wish is what a pod would have.
type Wish struct {
	// Name is the name for which addresses are kept.
	Name Name
	// Asked has the addresses that the pod asks for, by range; invalid: none. It gets these or none.
	Asked []netip.Addr
}

// Wanted returns the addresses that the pod asks for, and those that are kept for it in the other ranges, by range; invalid: any.
func (p *Pool) Wanted(ranges []netip.Prefix, wish Wish) []netip.Addr {
	wanted := make([]netip.Addr, len(ranges))
	copy(wanted, wish.Asked)
	for _, addr := range p.Book.For(wish.Name) {
		if at, is := Place(ranges, addr); is && !wanted[at].IsValid() {
			wanted[at] = addr
		}
	}
	return wanted
}

// Choose returns an address of each range for a pod, none of which is taken.
func (p *Pool) Choose(ranges []netip.Prefix, wish Wish, taken func(netip.Addr) bool) ([]netip.Addr, error) {
	addresses := p.Wanted(ranges, wish)
	for i, subnet := range ranges {
		addr, asked := addresses[i], i < len(wish.Asked) && wish.Asked[i].IsValid()
		of, kept := p.Book.Holder(addr, wish.Name)
		switch {
		case addr.IsValid() && !taken(addr) && (!kept || !asked):
			continue
		case asked && taken(addr):
			return nil, fmt.Errorf("address %s, which the pod asks for, is another pod's", addr)
		case asked:
			return nil, fmt.Errorf("address %s, which the pod asks for, is kept for the next pod %s (annotation %s)", addr, of, AnnotationSticky)
		}
		var err error
		if addresses[i], err = p.pick(i, subnet, wish.Name, taken); err != nil {
			return nil, err
		}
	}
	return addresses, nil
}

// pick returns the next free address after the last assigned one: so an address is not reused as soon as it becomes free. If there is none,
// it returns the address of those kept for other pods that is kept for the shortest time.
func (p *Pool) pick(i int, subnet netip.Prefix, name Name, taken func(netip.Addr) bool) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := Gateway(subnet).Next()
	from := first
	if last := p.last[i]; ForPod(subnet, last) {
		from = last.Next()
	}
	for range 2 { // to the end, and once more from the beginning
		for addr := from; ForPod(subnet, addr); addr = addr.Next() {
			if _, kept := p.Book.Holder(addr, name); kept || taken(addr) {
				continue
			}
			if p.last == nil {
				p.last = map[int]netip.Addr{}
			}
			p.last[i] = addr
			return addr, nil
		}
		from = first
	}
	for _, addr := range p.Book.Kept(subnet) {
		if ForPod(subnet, addr) && !taken(addr) {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of this node's subnet %s is free: remove pods, or give nodes larger podCIDRs", subnet)
}
