// Package uplink chooses the interface and the addresses by which a node reaches other nodes, as flanneld does. It is pure: the caller
// passes the node's interfaces and routes.
package uplink

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Address is one address of an interface.
type Address struct {
	Addr netip.Addr
	// Dynamic, Temporary and Deprecated are the kernel's flags; a dynamic address has a lifetime.
	Dynamic, Temporary, Deprecated bool
}

// Interface is one of the node's interfaces.
type Interface struct {
	Name      string
	Index     int
	MTU       int
	Addresses []Address
}

// Node has the node's interfaces and routes.
type Node struct {
	// Interfaces are in the kernel's order.
	Interfaces []Interface
	// Default4 and Default6 are the indexes of the interfaces of the default routes, the kernel's first one first.
	Default4, Default6 []int
	// Reach is the interface and the source address that the kernel chooses for Options.CanReach; Index 0: no route.
	Reach struct {
		Index  int
		Source netip.Addr
	}
}

// Options are the flags for the choice.
type Options struct {
	// Names are names or addresses (--iface), Patterns regular expressions on addresses, then on names (--iface-regex). The first match
	// counts.
	Names, Patterns []string
	// CanReach is an address that the interface must reach (--iface-can-reach).
	CanReach netip.Addr
	// Public and Public6 are advertised instead of the interface's addresses (--public-ip, --public-ipv6).
	Public, Public6 netip.Addr
	// InUse are the addresses that the node uses already. The interface's other addresses of the same scope are not better.
	InUse []netip.Addr
	// V4 and V6 are the families of the network.
	V4, V6 bool
}

// Uplink is the chosen interface with its addresses.
type Uplink struct {
	Name       string
	Index, MTU int
	// Addr and Addr6 are the interface's own addresses, Public and Public6 those that other nodes use.
	Addr, Addr6, Public, Public6 netip.Addr
}

// ErrNone reports that no interface is suitable.
var ErrNone = errors.New("no interface for the traffic between nodes")

// Choose returns the uplink.
func Choose(node Node, o Options) (Uplink, error) {
	if !o.V4 && !o.V6 {
		return Uplink{}, errors.New("neither IPv4 nor IPv6 is enabled in the network configuration")
	}
	var errs []error
	var attempts []func() (Uplink, error)
	for _, name := range o.Names {
		attempts = append(attempts, func() (Uplink, error) { return byName(node, o, name) })
	}
	for _, pattern := range o.Patterns {
		attempts = append(attempts, func() (Uplink, error) { return byPattern(node, o, pattern) })
	}
	if o.CanReach.IsValid() {
		attempts = append(attempts, func() (Uplink, error) { return byReach(node, o) })
	}
	if len(attempts) == 0 {
		attempts = append(attempts, func() (Uplink, error) { return byDefault(node, o) })
	}
	for _, attempt := range attempts {
		u, err := attempt()
		if err == nil {
			u, err = complete(node, o, u)
		}
		if err == nil {
			return u, nil
		}
		errs = append(errs, err)
	}
	return Uplink{}, fmt.Errorf("%w (name one with --iface; there are %s): %w", ErrNone, describe(node), errors.Join(errs...))
}

func describe(node Node) string {
	var words []string
	for _, i := range node.Interfaces {
		var addresses []string
		for _, a := range i.Addresses {
			addresses = append(addresses, a.Addr.String())
		}
		words = append(words, i.Name+" ["+strings.Join(addresses, " ")+"]")
	}
	return strings.Join(words, ", ")
}

func byName(node Node, o Options, name string) (Uplink, error) {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		for _, i := range node.Interfaces {
			if i.Name == name {
				return Uplink{Name: name, Index: i.Index}, nil
			}
		}
		return Uplink{}, fmt.Errorf("--iface=%s: no interface of that name", name)
	}
	if (addr.Is4() && !o.V4) || (addr.Is6() && !o.V6) {
		return Uplink{}, fmt.Errorf("--iface=%s: the network has no addresses of this family", name)
	}
	u, ok := holder(node, addr)
	if !ok {
		return Uplink{}, fmt.Errorf("--iface=%s: no interface has this address", name)
	}
	if o.V4 && o.V6 && addr.Is4() && o.Public6.IsValid() {
		if u6, ok := holder(node, o.Public6); ok && u6.Index != u.Index {
			return Uplink{}, fmt.Errorf("--iface=%s: %s has the address, and --public-ipv6=%s is on %s; both must be on one interface",
				name, u.Name, o.Public6, u6.Name)
		}
	}
	return u, nil
}

// holder returns the interface with an address, and uses that address.
func holder(node Node, addr netip.Addr) (Uplink, bool) {
	for _, i := range node.Interfaces {
		if slices.ContainsFunc(i.Addresses, func(a Address) bool { return a.Addr == addr }) {
			u := Uplink{Name: i.Name, Index: i.Index}
			u.set(addr)
			return u, true
		}
	}
	return Uplink{}, false
}

func (u *Uplink) set(addr netip.Addr) {
	if addr.Is4() {
		u.Addr = addr
	} else {
		u.Addr6 = addr
	}
}

func byPattern(node Node, o Options, pattern string) (Uplink, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return Uplink{}, fmt.Errorf("--iface-regex=%s: %w", pattern, err)
	}
	match := func(i Interface, v4 bool) netip.Addr {
		for _, addr := range usable(i, v4, o.InUse) {
			if re.MatchString(addr.String()) {
				return addr
			}
		}
		return netip.Addr{}
	}
	for _, i := range node.Interfaces {
		addr, addr6 := match(i, true), match(i, false)
		if (!o.V4 || addr.IsValid()) && (!o.V6 || addr6.IsValid()) {
			return Uplink{Name: i.Name, Index: i.Index, Addr: addr, Addr6: addr6}, nil
		}
	}
	for _, i := range node.Interfaces {
		if re.MatchString(i.Name) {
			return Uplink{Name: i.Name, Index: i.Index}, nil
		}
	}
	return Uplink{}, fmt.Errorf("--iface-regex=%s: no interface matches by its addresses or its name", pattern)
}

func byReach(node Node, o Options) (Uplink, error) {
	i, ok := byIndex(node, node.Reach.Index)
	if !ok {
		return Uplink{}, fmt.Errorf("--iface-can-reach=%s: no route", o.CanReach)
	}
	u := Uplink{Name: i.Name, Index: i.Index}
	if node.Reach.Source.IsValid() {
		u.set(node.Reach.Source)
	}
	return u, nil
}

func byDefault(node Node, o Options) (Uplink, error) {
	for _, public := range []netip.Addr{o.Public, o.Public6} {
		if !public.IsValid() {
			continue
		}
		if u, ok := holder(node, public); ok {
			return u, nil
		} // otherwise it is the address of a translating gateway
	}
	first := func(indexes []int, family string) (Interface, error) {
		for _, index := range indexes {
			if i, ok := byIndex(node, index); ok {
				return i, nil
			}
		}
		return Interface{}, fmt.Errorf("no %s default route", family)
	}
	var found []Interface
	for _, f := range []struct {
		wanted  bool
		indexes []int
		name    string
	}{{o.V4, node.Default4, "IPv4"}, {o.V6, node.Default6, "IPv6"}} {
		if !f.wanted {
			continue
		}
		i, err := first(f.indexes, f.name)
		if err != nil {
			return Uplink{}, err
		}
		found = append(found, i)
	}
	if len(found) == 2 && found[0].Index != found[1].Index {
		return Uplink{}, fmt.Errorf("the IPv4 default route is by %s and the IPv6 default route by %s; both must be by one interface",
			found[0].Name, found[1].Name)
	}
	return Uplink{Name: found[0].Name, Index: found[0].Index}, nil
}

func byIndex(node Node, index int) (Interface, bool) {
	for _, i := range node.Interfaces {
		if i.Index == index && index != 0 {
			return i, true
		}
	}
	return Interface{}, false
}

// complete sets the addresses that the choice left open.
func complete(node Node, o Options, u Uplink) (Uplink, error) {
	i, _ := byIndex(node, u.Index)
	if u.MTU = i.MTU; u.MTU == 0 {
		return Uplink{}, fmt.Errorf("interface %s has no MTU", i.Name)
	}
	for _, f := range []struct {
		wanted, v4   bool
		addr, public *netip.Addr
		given        netip.Addr
	}{{o.V4, true, &u.Addr, &u.Public, o.Public}, {o.V6, false, &u.Addr6, &u.Public6, o.Public6}} {
		if !f.wanted {
			*f.addr = netip.Addr{}
			continue
		}
		if !f.addr.IsValid() {
			addresses := usable(i, f.v4, o.InUse)
			if len(addresses) == 0 {
				return Uplink{}, fmt.Errorf("interface %s has no usable IPv%d address", i.Name, map[bool]int{true: 4, false: 6}[f.v4])
			}
			*f.addr = addresses[0]
		}
		*f.public = *f.addr
		if f.given.IsValid() {
			*f.public = f.given
		}
	}
	return u, nil
}

// usable returns an interface's addresses of one family, best first: global before link-local, those in use before others, permanent before
// dynamic, other before temporary. Deprecated ones are left out.
//
// Without those in use, an address that is added later, such as one that several nodes share, would replace the node's: it may be permanent
// where the node's is dynamic, and the kernel lists the newest IPv6 address first.
func usable(i Interface, v4 bool, inUse []netip.Addr) []netip.Addr {
	addresses := slices.DeleteFunc(slices.Clone(i.Addresses), func(a Address) bool { return a.Deprecated || a.Addr.Is4() != v4 })
	rank := func(a Address) int {
		r := 0
		for _, worse := range []bool{a.Addr.IsLinkLocalUnicast(), !slices.Contains(inUse, a.Addr), a.Dynamic, a.Temporary} {
			r *= 2
			if worse {
				r++
			}
		}
		return r
	}
	slices.SortStableFunc(addresses, func(a, b Address) int { return cmp.Compare(rank(a), rank(b)) })
	out := make([]netip.Addr, len(addresses))
	for n, a := range addresses {
		out[n] = a.Addr
	}
	return out
}
