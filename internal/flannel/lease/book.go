package lease

import (
	"maps"
	"net/netip"
	"slices"
)

// Book follows the claims of a network. After a change it judges only the claims that the change can affect: the changed ones, and those
// that conflict with them, directly or through others. [Judge] of all claims takes longer than programming one lease, and its time grows
// with the cluster.
type Book struct {
	own      Own
	claims   map[string]Claim // nil before the first complete update
	accepted map[string]Lease
	index    index
}

// Verdict is the result of an update.
type Verdict struct {
	// Accepted has the leases to be programmed that were not accepted before, or differently.
	Accepted map[string]Lease
	// Gone names the leases that were accepted before and are not any more.
	Gone []string
	// Judged names the claims that were judged, removed ones included. Refused has the reasons why some of them, or one of their families, are
	// refused. For other claims, earlier verdicts are still valid.
	Judged  []string
	Refused map[string]error
}

// NewBook returns a book without claims.
func NewBook(own Own) *Book {
	return &Book{own: own, accepted: map[string]Lease{}, index: newIndex()}
}

// Known reports whether the book has had a complete update.
func (b *Book) Known() bool { return b.claims != nil }

// Has reports whether the lease with the name is accepted.
func (b *Book) Has(name string) bool {
	_, ok := b.accepted[name]
	return ok
}

// Accepted returns the accepted leases. The map is the book's own: it changes with the next update.
func (b *Book) Accepted() map[string]Lease { return b.accepted }

// Update applies an update of a store. Before the first complete update, others are ignored: no claim can be judged without all claims.
func (b *Book) Update(update Update) Verdict {
	if update.All {
		return b.replace(update)
	}
	if b.claims == nil {
		return Verdict{}
	}
	concerned := map[string]struct{}{}
	for _, names := range [][]string{slices.Collect(maps.Keys(update.Set)), update.Delete} {
		for _, name := range names {
			concerned[name] = struct{}{}
			if claim, ok := b.claims[name]; ok {
				b.index.conflicts(b.families(claim), concerned)
			}
		}
	}
	for name, claim := range update.Set {
		b.put(name, claim)
	}
	for _, name := range update.Delete {
		b.remove(name)
	}
	return b.judge(b.connected(concerned))
}

// replace applies a complete update.
func (b *Book) replace(update Update) Verdict {
	names := map[string]Claim{}
	for name := range b.claims {
		names[name] = Claim{} // it does not exist any more, unless it is listed again
	}
	for _, name := range update.Delete {
		names[name] = Claim{}
	}
	b.claims, b.index = make(map[string]Claim, len(update.Set)), newIndex()
	for name, claim := range update.Set {
		b.index.measure(b.families(claim)) // all lengths first, so that no claim has to be indexed twice
		names[name] = claim
	}
	for name, claim := range update.Set {
		b.put(name, claim)
	}
	for _, name := range update.Delete {
		b.remove(name)
		names[name] = Claim{}
	}
	return b.judge(names)
}

func (b *Book) put(name string, claim Claim) {
	b.remove(name)
	b.claims[name] = claim
	families := b.families(claim)
	if b.index.measure(families) { // the index lacks the new length
		lengths := b.index.lengths
		b.index = newIndex()
		b.index.lengths = lengths
		for other, claim := range b.claims {
			b.index.add(other, b.families(claim))
		}
		return
	}
	b.index.add(name, families)
}

func (b *Book) remove(name string) {
	if claim, ok := b.claims[name]; ok {
		b.index.remove(name, b.families(claim))
		delete(b.claims, name)
	}
}

// families returns the families of a claim that can conflict with other claims: the valid ones that are not refused regardless of others.
// So a hostile claim to a range wider than the network does not conflict with every other claim.
func (b *Book) families(claim Claim) [2]family {
	var out [2]family
	for i, v4 := range []bool{true, false} {
		if f := claim.Lease.family(v4); f.subnet.IsValid() && b.own.check(i, f) == nil {
			out[i] = f
		}
	}
	return out
}

// connected returns the named claims and all that conflict with one of them, directly or through others: judging these alone gives the same
// result as judging all claims. A name that does not exist any more has an empty claim.
func (b *Book) connected(names map[string]struct{}) map[string]Claim {
	out := map[string]Claim{}
	for len(names) > 0 {
		next := map[string]struct{}{}
		for name := range names {
			if _, done := out[name]; !done {
				out[name] = b.claims[name]
				b.index.conflicts(b.families(out[name]), next)
			}
		}
		names = next
	}
	return out
}

// judge judges claims with which no other claims conflict.
func (b *Book) judge(claims map[string]Claim) Verdict {
	accepted, refused := Judge(claims, b.own, b.accepted)
	v := Verdict{Accepted: map[string]Lease{}, Judged: slices.Collect(maps.Keys(claims)), Refused: refused}
	for name := range claims {
		before, had := b.accepted[name]
		now, has := accepted[name]
		switch {
		case has && (!had || before != now):
			v.Accepted[name], b.accepted[name] = now, now
		case had && !has:
			v.Gone = append(v.Gone, name)
			delete(b.accepted, name)
		}
	}
	return v
}

// index finds the claims that conflict with a claim.
type index struct {
	// lengths are the prefix lengths of subnets so far, by family.
	lengths [2]map[int]struct{}
	// subnets and identities have the names of claims by their subnets and by their tunnel addresses. within has them by the wider prefixes,
	// of those lengths, that contain the subnets.
	subnets, within map[netip.Prefix][]string
	identities      map[any][]string
}

func newIndex() index {
	return index{
		lengths: [2]map[int]struct{}{{}, {}},
		subnets: map[netip.Prefix][]string{}, within: map[netip.Prefix][]string{}, identities: map[any][]string{},
	}
}

// measure records the lengths of a claim's subnets, and reports whether one of them is new.
func (x *index) measure(families [2]family) (added bool) {
	for i, f := range families {
		if _, known := x.lengths[i][f.subnet.Bits()]; f.subnet.IsValid() && !known {
			x.lengths[i][f.subnet.Bits()] = struct{}{}
			added = true
		}
	}
	return added
}

func (x *index) add(name string, families [2]family) {
	x.note(families, func(names []string) []string { return append(names, name) })
}

func (x *index) remove(name string, families [2]family) {
	x.note(families, func(names []string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return n == name })
	})
}

// note changes the lists that have, or get, a claim's name.
func (x *index) note(families [2]family, change func([]string) []string) {
	for i, f := range families {
		if !f.subnet.IsValid() {
			continue
		}
		note(x.subnets, f.subnet, change)
		for _, wider := range x.wider(i, f.subnet) {
			note(x.within, wider, change)
		}
		if key := identity(f.data, i); key != nil {
			note(x.identities, key, change)
		}
	}
}

func note[K comparable](lists map[K][]string, key K, change func([]string) []string) {
	if names := change(lists[key]); len(names) > 0 {
		lists[key] = names
	} else {
		delete(lists, key)
	}
}

// wider returns the prefixes that contain a subnet, of the lengths that subnets of the family have had.
func (x *index) wider(i int, subnet netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for length := range x.lengths[i] {
		if length < subnet.Bits() {
			out = append(out, netip.PrefixFrom(subnet.Addr(), length).Masked())
		}
	}
	return out
}

// conflicts adds the names of the claims that have the tunnel address of a claim, or whose subnets overlap with its subnets; the claim
// itself is included.
func (x *index) conflicts(families [2]family, names map[string]struct{}) {
	add := func(found []string) {
		for _, name := range found {
			names[name] = struct{}{}
		}
	}
	for i, f := range families {
		if !f.subnet.IsValid() {
			continue
		}
		add(x.subnets[f.subnet])
		add(x.within[f.subnet])
		for _, wider := range x.wider(i, f.subnet) {
			add(x.subnets[wider])
		}
		if key := identity(f.data, i); key != nil {
			add(x.identities[key])
		}
	}
}
