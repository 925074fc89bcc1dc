package whole

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Protocol is this engine's number in the kernel's table of routing protocols. It differs from that of package link, whose engine removes
// routes with its own number for which it has no item: both engines run in one agent.
const Protocol = 88

// Kind is the kind of an item.
type Kind string

// The kinds of items.
const (
	KindVXLAN     Kind = "vxlan"
	KindIPIP      Kind = "ipip"
	KindWireGuard Kind = "wireguard"
	KindPeer      Kind = "peer"
	KindNeighbour Kind = "neighbour"
	KindFDB       Kind = "fdb"
	KindNexthop   Kind = "nexthop"
	KindRoute     Kind = "route"
)

// Key names an item. Keys are comparable.
type Key struct {
	Kind Kind
	// Device is the device's name; empty for a route and a nexthop, which are identified by their destination and gateway alone.
	Device string
	// Name is the neighbour's address, the FDB entry's MAC address, the peer's public key, the nexthop's gateway or the route's destination;
	// empty for a device.
	Name string
}

// String returns the key as errors show it.
func (k Key) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s", k.Kind, k.Device, k.Name)), " ")
}

// Item is one of *VXLAN, *IPIP, *WireGuard, *Peer, *Neighbour, *FDB, *Nexthop, *Route. Items must not be changed once they are handed over.
type Item interface {
	Key() Key
	// Equal reports whether programming other in place of this item would change nothing.
	Equal(other Item) bool
	// String returns the item in the words of ip(8) and bridge(8).
	String() string
}

// MAC is an Ethernet address as a comparable value.
type MAC [6]byte

// String returns the address as six pairs of digits.
func (m MAC) String() string {
	return net.HardwareAddr(m[:]).String()
}

// DefaultPort is the UDP port of a VXLAN device whose Port is 0: the kernel's own default.
const DefaultPort = 8472

// VXLAN is a VXLAN device that is up.
type VXLAN struct {
	Name string
	VNI  uint32
	Port uint16
	// Underlay is the outgoing device of tunnel packets, Local their source address.
	Underlay string
	Local    netip.Addr
	MTU      int
	MAC      MAC
	// GBP and Learning are the device's flags of that name.
	GBP, Learning bool
	// Address is the device's only address of its family, ignoring link-local ones.
	Address netip.Prefix
}

// Key implements Item.
func (v *VXLAN) Key() Key { return Key{KindVXLAN, v.Name, ""} }

// sameTunnel reports whether the two differ only in what can be changed on an existing device.
func (v *VXLAN) sameTunnel(o *VXLAN) bool {
	return v.VNI == o.VNI && v.port() == o.port() && v.Underlay == o.Underlay && v.Local == o.Local && v.GBP == o.GBP && v.Learning == o.Learning
}

func (v *VXLAN) port() uint16 {
	if v.Port == 0 {
		return DefaultPort
	}
	return v.Port
}

// Equal implements Item.
func (v *VXLAN) Equal(other Item) bool {
	o, ok := other.(*VXLAN)
	return ok && v.Name == o.Name && v.sameTunnel(o) && v.MTU == o.MTU && v.MAC == o.MAC && v.Address == o.Address
}

// String implements Item.
func (v *VXLAN) String() string {
	words := fmt.Sprintf("vxlan %s id %d dev %s local %s dstport %d mtu %d address %s inet %s", v.Name, v.VNI, v.Underlay, v.Local, v.port(),
		v.MTU, v.MAC, v.Address)
	if v.GBP {
		words += " gbp"
	}
	if v.Learning {
		words += " learning"
	}
	return words
}

// Neighbour is a permanent neighbour entry.
type Neighbour struct {
	Device  string
	Address netip.Addr
	MAC     MAC
}

// Key implements Item.
func (n *Neighbour) Key() Key { return Key{KindNeighbour, n.Device, n.Address.String()} }

// Equal implements Item.
func (n *Neighbour) Equal(other Item) bool {
	o, ok := other.(*Neighbour)
	return ok && *n == *o
}

// String implements Item.
func (n *Neighbour) String() string {
	return fmt.Sprintf("neighbour %s dev %s lladdr %s", n.Address, n.Device, n.MAC)
}

// FDB is a permanent forwarding entry: frames to MAC are sent through the tunnel to Remote.
type FDB struct {
	Device string
	MAC    MAC
	Remote netip.Addr
}

// Key implements Item.
func (f *FDB) Key() Key { return Key{KindFDB, f.Device, f.MAC.String()} }

// Equal implements Item.
func (f *FDB) Equal(other Item) bool {
	o, ok := other.(*FDB)
	return ok && *f == *o
}

// String implements Item.
func (f *FDB) String() string { return fmt.Sprintf("fdb %s dev %s dst %s", f.MAC, f.Device, f.Remote) }

// Nexthop is a nexthop object of one IPv4 gateway, which is reachable on the device without a route to it. The kernel looks for the gateway
// of a route without such an object among all gateways of the device, one after the other (fib_find_info): a route beside 5,000 others
// takes six times as long.
type Nexthop struct {
	Device  string
	Gateway netip.Addr
}

// ID is the object's identifier: the gateway's address.
func (n *Nexthop) ID() uint32 {
	addr := n.Gateway.As4()
	return binary.BigEndian.Uint32(addr[:])
}

// Key implements Item.
func (n *Nexthop) Key() Key { return Key{KindNexthop, "", n.Gateway.String()} }

// Equal implements Item.
func (n *Nexthop) Equal(other Item) bool {
	o, ok := other.(*Nexthop)
	return ok && *n == *o
}

// String implements Item.
func (n *Nexthop) String() string {
	return fmt.Sprintf("nexthop id %d via %s dev %s onlink", n.ID(), n.Gateway, n.Device)
}

// Route is a route of the main table with the default metric: through a gateway, into a device, or one that discards.
type Route struct {
	Dst netip.Prefix
	// Gateway is invalid if all of Dst is directly behind the device.
	Gateway netip.Addr
	Device  string
	// OnLink treats the gateway as reachable on the device even without a route to it.
	OnLink bool
	// Blackhole discards; Gateway and Device are then empty.
	Blackhole bool
	// Nexthop refers to the [Nexthop] of Gateway. A route that names its gateway itself is equal: packets take the same way. The engine makes
	// such a route too, if it cannot make the object.
	Nexthop bool
}

// Key implements Item.
func (r *Route) Key() Key { return Key{KindRoute, "", r.Dst.String()} }

// Equal implements Item.
func (r *Route) Equal(other Item) bool {
	o, ok := other.(*Route)
	if !ok {
		return false
	}
	a, b := *r, *o
	a.Nexthop, b.Nexthop = false, false
	return a == b
}

// String implements Item.
func (r *Route) String() string {
	if r.Blackhole {
		return "route blackhole " + r.Dst.String()
	}
	if !r.Gateway.IsValid() {
		return fmt.Sprintf("route %s dev %s", r.Dst, r.Device)
	}
	words := fmt.Sprintf("route %s via %s dev %s", r.Dst, r.Gateway, r.Device)
	if r.OnLink {
		words += " onlink"
	}
	return words
}

// deviceOf returns the device of an item: the one it is on, or the item's own.
func deviceOf(item Item) string {
	switch item := item.(type) { // without their keys, which take a while to compute
	case *Neighbour:
		return item.Device
	case *FDB:
		return item.Device
	case *Nexthop:
		return item.Device
	case *Route:
		return item.Device
	}
	return item.Key().Device
}
