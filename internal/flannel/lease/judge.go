package lease

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Claim is a lease with its origin.
type Claim struct {
	// Since orders claims: of two that conflict, and of which none is in use, the one with the lower value wins. It is the creation time of
	// the Node, or the revision that created the etcd key; a node cannot choose it.
	Since int64
	Lease Lease
}

// Own is the part of this node and network with which other nodes' leases are compared.
type Own struct {
	// Lease is this node's lease.
	Lease Lease
	// Network and Network6 are the ranges of all pods; a subnet outside them is refused.
	Network, Network6 netip.Prefix
}

// Judge returns the leases that may be programmed, by the names of the claims, and why others may not. A claim is refused if it overlaps
// another node's subnet, has another node's tunnel address (the MAC address or public key), or would route traffic to this node's address
// or into the pods' own range. If only one of a claim's two families is refused, the other is used.
//
// A claim that is one of the leases in use precedes those that are new or have changed: otherwise a node could cut off a younger one by
// publishing that one's tunnel address.
func Judge(claims map[string]Claim, own Own, inUse map[string]Lease) (map[string]Lease, map[string]error) {
	rank := func(name string) int {
		if l, has := inUse[name]; has && l == claims[name].Lease {
			return 0
		}
		return 1
	}
	names := slices.SortedFunc(maps.Keys(claims), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(claims[a].Since, claims[b].Since), cmp.Compare(a, b))
	})
	j := judge{own: own, identities: map[any]string{}}
	for i, v4 := range []bool{true, false} {
		j.families[i] = newTaken()
		for name := range claims {
			claim := claims[name]
			if subnet := claim.Lease.family(v4).subnet; subnet.IsValid() {
				j.families[i].lengths[subnet.Bits()] = struct{}{}
			}
		}
		f := own.Lease.family(v4)
		if f.subnet.IsValid() {
			j.families[i].lengths[f.subnet.Bits()] = struct{}{}
			j.add(i, f, "this node")
		}
	}
	accepted, refused := make(map[string]Lease, len(claims)), map[string]error{}
	for _, name := range names {
		l, err := j.claim(name, claims[name].Lease)
		if err != nil {
			refused[name] = err
		}
		if l.Subnet.IsValid() || l.Subnet6.IsValid() {
			accepted[name] = l
		}
	}
	return accepted, refused
}

type judge struct {
	own        Own
	families   [2]taken
	identities map[any]string
}

func (j *judge) add(i int, f family, name string) {
	j.families[i].add(f, name)
	if identity := identity(f.data, i); identity != nil {
		j.identities[identity] = name
	}
}

func (j *judge) claim(name string, l Lease) (Lease, error) {
	var errs []error
	for i, v4 := range []bool{true, false} {
		f := l.family(v4)
		if !f.subnet.IsValid() {
			continue
		}
		if err := j.family(name, i, f); err != nil {
			errs = append(errs, err)
			l.setFamily(v4, family{})
			continue
		}
		j.add(i, f, name)
	}
	return l, errors.Join(errs...)
}

func (j *judge) family(name string, i int, f family) error {
	if err := j.own.check(i, f); err != nil {
		return err
	}
	if holder, conflict := j.families[i].overlaps(f.subnet); conflict {
		return fmt.Errorf("subnet %s overlaps that of %s", f.subnet, holder)
	}
	if identity := identity(f.data, i); identity != nil {
		if holder, ok := j.identities[identity]; ok && holder != name {
			return fmt.Errorf("%s of subnet %s is that of %s", describe(f.data), f.subnet, holder)
		}
	}
	return nil
}

// check returns why a claim's family, IPv4 or, for 1, IPv6, is refused regardless of other nodes' claims.
func (o *Own) check(i int, f family) error {
	network, own := []netip.Prefix{o.Network, o.Network6}[i], o.Lease.family(i == 0)
	switch {
	case !network.IsValid() || !network.Contains(f.subnet.Addr()) || f.subnet.Bits() < network.Bits():
		return fmt.Errorf("subnet %s is outside the network %s", f.subnet, network)
	case own.subnet.IsValid() && f.subnet.Overlaps(own.subnet):
		return fmt.Errorf("subnet %s overlaps that of this node", f.subnet)
	case f.publicIP == own.publicIP:
		return fmt.Errorf("public address %s of subnet %s is this node's own", f.publicIP, f.subnet)
	case network.Contains(f.publicIP):
		return fmt.Errorf("public address %s of subnet %s is in the network %s of pods", f.publicIP, f.subnet, network)
	}
	return nil
}

// taken has the subnets and identities of the claims admitted so far, in one family.
type taken struct {
	lengths map[int]struct{} // the prefix lengths of all claims
	subnets map[netip.Prefix]string
	covers  map[netip.Prefix]string // shorter prefixes that contain a subnet
}

func newTaken() taken {
	return taken{map[int]struct{}{}, map[netip.Prefix]string{}, map[netip.Prefix]string{}}
}

func (t *taken) add(f family, name string) {
	t.subnets[f.subnet] = name
	for length := range t.lengths {
		if length < f.subnet.Bits() {
			t.covers[netip.PrefixFrom(f.subnet.Addr(), length).Masked()] = name
		}
	}
}

func (t *taken) overlaps(subnet netip.Prefix) (string, bool) {
	if holder, ok := t.covers[subnet]; ok {
		return holder, true
	}
	for length := range t.lengths {
		if length <= subnet.Bits() {
			if holder, ok := t.subnets[netip.PrefixFrom(subnet.Addr(), length).Masked()]; ok {
				return holder, true
			}
		}
	}
	return "", false
}

// vtep is the MAC address of the VXLAN device of a family.
type vtep struct {
	family int
	mac    MAC
}

// identity is what distinguishes nodes on the tunnel; nil if the backend has none. One WireGuard device may serve both families, so a
// public key counts for both.
func identity(d Data, family int) any {
	switch d := d.(type) {
	case VXLAN:
		return vtep{family, d.MAC}
	case WireGuard:
		return d.PublicKey
	}
	return nil
}

func describe(d Data) string {
	switch d := d.(type) {
	case VXLAN:
		return "MAC address " + d.MAC.String()
	case WireGuard:
		return "public key " + Marshal(d)
	}
	return "data"
}
