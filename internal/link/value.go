package link

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	// Protocol is Weft's number in the kernel's table of routing protocols (rtm_protocol, and the protocol of
	// a rule): 'W'. It is free in iproute2's rt_protos and above RTPROT_STATIC, so the kernel never uses it.
	Protocol = 87
	// AliasPrefix starts the alias (IFLA_IFALIAS) of every device that the engine manages; the owner follows.
	AliasPrefix = "weft-link/"
	// PodAliasPrefix starts the alias of a pod's host veth; the pair's owner follows.
	PodAliasPrefix = "weft-pod/"
	// TableMain is the routing table of a Route with Table 0 (RT_TABLE_MAIN).
	TableMain = 254
)

// Kind is the kind of an item.
type Kind string

// The kinds of items.
const (
	KindVeth       Kind = "veth"
	KindBridge     Kind = "bridge"
	KindDevice     Kind = "device"
	KindBridgePort Kind = "bridge-port"
	KindAddress    Kind = "address"
	KindNeighbour  Kind = "neighbour"
	KindRoute      Kind = "route"
	KindRule       Kind = "rule"
)

// Key names an item within everything the engine holds.
type Key struct {
	// Netns is the path of the network namespace; "" is the one the process runs in.
	Netns string
	Kind  Kind
	// Name is the device's name, or the text that identifies a neighbour, route or rule in the kernel.
	Name string
}

// String returns the key as errors show it.
func (k Key) String() string {
	if k.Netns == "" {
		return string(k.Kind) + " " + k.Name
	}
	return string(k.Kind) + " " + k.Name + " in " + k.Netns
}

// Item is one of *Veth, *Bridge, *Device, *BridgePort, *Address, *Neighbour, *Route, *Rule. Items must not be changed once they are handed
// over.
type Item interface {
	// Key identifies the item.
	Key() Key
	// Equal reports whether programming other in place of this item would change nothing.
	Equal(other Item) bool
	// String returns the item in the words of ip(8), for differences and logs.
	String() string
}

// Toggle is a setting with a third state that leaves it as it is.
type Toggle uint8

// The states of a Toggle.
const (
	// Leave does not touch the setting, and does not compare it.
	Leave Toggle = iota
	// On turns the setting on.
	On
	// Off turns the setting off.
	Off
)

// String returns "leave", "on" or "off".
func (t Toggle) String() string {
	switch t {
	case On:
		return "on"
	case Off:
		return "off"
	default:
		return "leave"
	}
}

// Matches reports whether a desired and an actual toggle agree, in either order of the arguments.
func (t Toggle) Matches(other Toggle) bool { return t == Leave || other == Leave || t == other }

// Sysctls are the per-device settings under /proc/sys/net/ipv4/conf and ipv6/conf that Weft uses. The zero value leaves all as they are.
type Sysctls struct {
	// DisableIPv6 On keeps the kernel from giving the device any IPv6 address (ipv6 disable_ipv6).
	DisableIPv6 Toggle
	// AcceptRA Off ignores router advertisements (ipv6 accept_ra 0; On is 1).
	AcceptRA Toggle
	// AcceptDAD Off skips duplicate address detection, unless that of "all" is on (ipv6 accept_dad 0; On is 1). Until it has ended, the kernel
	// uses no link-local address of the device, and resolves no neighbour for packets that it forwards there.
	AcceptDAD Toggle
	// Forwarding4 and Forwarding6 are the device's forwarding switches.
	Forwarding4, Forwarding6 Toggle
	// RouteLocalnet lets 127/8 be routed on the device (ipv4 route_localnet).
	RouteLocalnet Toggle
	// ProxyARP answers ARP for addresses routed elsewhere (ipv4 proxy_arp).
	ProxyARP Toggle
	// SendRedirects sends ICMP redirects to senders of packets with a shorter route (ipv4 send_redirects). Off has an effect only if that of
	// "all" is off as well.
	SendRedirects Toggle
	// RPFilter is reverse path filtering: Off is 0, On is 1 (strict). Loose mode is not supported.
	RPFilter Toggle
	// ARPNotify and NDiscNotify On announce the device's addresses when its MAC has changed or it was set up (ipv4 arp_notify, ipv6
	// ndisc_notify).
	ARPNotify, NDiscNotify Toggle
}

// Matches reports whether the two agree in all fields that both set.
func (s Sysctls) Matches(other Sysctls) bool {
	for _, entry := range sysctlTable {
		if !(*entry.Get(&s)).Matches(*entry.Get(&other)) {
			return false
		}
	}
	return true
}

// Device is the configuration of a device that another program creates (the switch creates tun0) or that a [Veth] item creates. Setting a
// Device that does not exist is [ErrNoDevice]. Deleting the item removes its addresses and the alias, but not the device.
type Device struct {
	Netns, Name string
	// Owner is the object this device comes from; it follows AliasPrefix in the alias. At most 200 bytes.
	Owner string
	// MTU in bytes; 0 leaves it unchanged.
	MTU int
	// MAC address; empty leaves it unchanged.
	MAC net.HardwareAddr
	// Up is the administrative state.
	Up bool
	// Group is the device group (IFLA_GROUP), exactly; 0 is the kernel's default group.
	Group uint32
	// TxQLen is the length of the transmit queue; 0 leaves it unchanged.
	TxQLen int
	// TxOffload covers transmit checksumming and, with it, segmentation, which the kernel turns off without checksumming. The userspace
	// datapath needs Off.
	TxOffload Toggle
	Sysctls   Sysctls
	// Addresses is the exact list; others are removed, except IPv6 link-local addresses that the kernel made, and Address items.
	Addresses []netip.Prefix
	// NoPrefixRoute keeps the kernel from adding a route for each address's prefix (IFA_F_NOPREFIXROUTE).
	NoPrefixRoute bool

	// wholeAlias reports that Owner is the whole alias, without AliasPrefix.
	wholeAlias bool
}

// Key implements Item.
func (d *Device) Key() Key { return Key{Netns: d.Netns, Kind: KindDevice, Name: d.Name} }

// Equal implements Item. A field that one of the two leaves unchanged is not compared.
func (d *Device) Equal(other Item) bool {
	o, ok := other.(*Device)
	return ok && d.Key() == o.Key() && len(d.Differences(o)) == 0
}

// String implements Item.
func (d *Device) String() string {
	words := []string{"device", d.Name}
	add := func(name, value string) { words = append(words, name, value) }
	if d.MTU != 0 {
		add("mtu", strconv.Itoa(d.MTU))
	}
	if len(d.MAC) != 0 {
		add("address", d.MAC.String())
	}
	add("group", strconv.FormatUint(uint64(d.Group), 10))
	if d.TxOffload != Leave {
		add("tx-offload", d.TxOffload.String())
	}
	for _, address := range SortedPrefixes(d.Addresses) {
		add("inet", address.String())
	}
	if d.NoPrefixRoute {
		words = append(words, "noprefixroute")
	}
	for _, entry := range sysctlTable {
		if value := *entry.Get(&d.Sysctls); value != Leave {
			add(entry.Name, value.String())
		}
	}
	if d.Up {
		words = append(words, "up")
	} else {
		words = append(words, "down")
	}
	return strings.Join(append(words, "owner", strconv.Quote(d.Owner)), " ")
}

// Differences returns one line for each difference between the desired d and the actual o.
func (d *Device) Differences(o *Device) []string {
	var lines []string
	check := func(same bool, field string, want, have any) {
		if !same {
			lines = append(lines, fmt.Sprintf("%s is %v, not %v", field, have, want))
		}
	}
	check(d.Owner == o.Owner, "owner", d.Owner, o.Owner)
	check(d.MTU == o.MTU || d.MTU == 0 || o.MTU == 0, "mtu", d.MTU, o.MTU)
	check(bytes.Equal(d.MAC, o.MAC) || len(d.MAC) == 0 || len(o.MAC) == 0, "MAC", d.MAC, o.MAC)
	check(d.Up == o.Up, "up", d.Up, o.Up)
	check(d.Group == o.Group, "group", d.Group, o.Group)
	check(d.TxQLen == o.TxQLen || d.TxQLen == 0 || o.TxQLen == 0, "txqueuelen", d.TxQLen, o.TxQLen)
	check(d.TxOffload.Matches(o.TxOffload), "tx offload", d.TxOffload, o.TxOffload)
	want, have := SortedPrefixes(d.Addresses), SortedPrefixes(o.Addresses)
	check(slices.Equal(want, have), "addresses", want, have)
	check(d.NoPrefixRoute == o.NoPrefixRoute || len(want) == 0 || len(have) == 0, "noprefixroute", d.NoPrefixRoute, o.NoPrefixRoute)
	for _, entry := range sysctlTable {
		w, h := *entry.Get(&d.Sysctls), *entry.Get(&o.Sysctls)
		check(w.Matches(h), entry.Name, w, h)
	}
	return lines
}

// Veth is a pair of devices that the engine creates. Its ends are configured by Device items. Deleting it deletes both ends.
type Veth struct {
	Netns, Name string
	// PeerNetns is the namespace of the other end; "" is the process's own.
	PeerNetns, PeerName string
	// Owner follows AliasPrefix in both ends' aliases.
	Owner string
}

// Key implements Item.
func (v *Veth) Key() Key { return Key{Netns: v.Netns, Kind: KindVeth, Name: v.Name} }

// Equal implements Item. The owner is compared by the Device items.
func (v *Veth) Equal(other Item) bool {
	o, ok := other.(*Veth)
	return ok && v.Key() == o.Key() && v.PeerNetns == o.PeerNetns && v.PeerName == o.PeerName
}

// String implements Item.
func (v *Veth) String() string {
	words := []string{"veth", v.Name, "peer", v.PeerName}
	if v.PeerNetns != "" {
		words = append(words, "in", v.PeerNetns)
	}
	return strings.Join(words, " ")
}

// Scope of a route. The zero value follows from the gateway: link without one, global with one.
type Scope uint8

// The scopes of routes (rtnetlink(7)), shifted so that the zero value is free.
const (
	ScopeAuto Scope = iota
	ScopeGlobal
	ScopeLink
	ScopeHost
)

// Route is a unicast route marked with Protocol, or a route that discards.
type Route struct {
	Netns string
	// Dst is the destination; 0.0.0.0/0 or ::/0 is the default route. It is masked when programmed.
	Dst netip.Prefix
	// Gateway is the next hop; the zero value makes the route directly connected.
	Gateway netip.Addr
	// Device is the outgoing device's name. "" with Blackhole only.
	Device string
	// Source is the preferred source address; the zero value leaves the choice to the kernel.
	Source netip.Addr
	Scope  Scope
	// MTU in bytes; 0 uses the device's.
	MTU int
	// Table is the routing table; 0 is TableMain.
	Table int
	// Metric is the route's priority, lower first; 0 is the kernel's default (0 for IPv4, 1024 for IPv6).
	Metric int
	// OnLink treats the gateway as reachable on the device even without a route to it.
	OnLink bool
	// Blackhole discards silently instead of forwarding.
	Blackhole bool
}

// Normalised returns the route with explicit values for zero values, for comparison.
func (r *Route) Normalised() Route {
	n := *r
	n.Dst = n.Dst.Masked()
	if n.Table == 0 {
		n.Table = TableMain
	}
	if n.Metric == 0 && n.Dst.Addr().Is6() {
		n.Metric = ipv6DefaultMetric
	}
	if n.Dst.Addr().Is6() || n.Blackhole {
		n.Scope = ScopeGlobal // the kernel keeps no scope for IPv6
	} else if n.Scope == ScopeAuto {
		n.Scope = ScopeLink
		if n.Gateway.IsValid() {
			n.Scope = ScopeGlobal
		}
	}
	if n.Blackhole {
		n.Device, n.Gateway, n.OnLink = "", netip.Addr{}, false
	}
	return n
}

// ipv6DefaultMetric is IP6_RT_PRIO_USER of the kernel's include/net/ip6_route.h.
const ipv6DefaultMetric = 1024

// Key implements Item. The kernel identifies routes by table, destination and metric.
func (r *Route) Key() Key {
	n := r.Normalised()
	name := n.Dst.String() + " table " + strconv.Itoa(n.Table) + " metric " + strconv.Itoa(n.Metric)
	return Key{Netns: r.Netns, Kind: KindRoute, Name: name}
}

// Equal implements Item.
func (r *Route) Equal(other Item) bool {
	o, ok := other.(*Route)
	return ok && r.Normalised() == o.Normalised()
}

// String implements Item.
func (r *Route) String() string {
	n := r.Normalised()
	words := []string{"route", n.Dst.String()}
	if n.Blackhole {
		words[0] = "route blackhole"
	}
	if n.Gateway.IsValid() {
		words = append(words, "via", n.Gateway.String())
	}
	if n.Device != "" {
		words = append(words, "dev", n.Device)
	}
	if n.Source.IsValid() {
		words = append(words, "src", n.Source.String())
	}
	if n.MTU != 0 {
		words = append(words, "mtu", strconv.Itoa(n.MTU))
	}
	return strings.Join(append(words, "table", strconv.Itoa(n.Table), "metric", strconv.Itoa(n.Metric)), " ")
}

// Neighbour is a permanent neighbour entry.
type Neighbour struct {
	Netns, Device string
	Address       netip.Addr
	MAC           net.HardwareAddr
}

// Key implements Item.
func (n *Neighbour) Key() Key {
	return Key{Netns: n.Netns, Kind: KindNeighbour, Name: n.Address.String() + " dev " + n.Device}
}

// Equal implements Item.
func (n *Neighbour) Equal(other Item) bool {
	o, ok := other.(*Neighbour)
	return ok && n.Key() == o.Key() && bytes.Equal(n.MAC, o.MAC)
}

// String implements Item.
func (n *Neighbour) String() string {
	return "neighbour " + n.Address.String() + " lladdr " + n.MAC.String() + " dev " + n.Device
}

// Rule is a rule of policy routing, marked with Protocol.
type Rule struct {
	Netns string
	// Priority orders the rules, lower first. It is never 0, the priority of the kernel's own rule.
	Priority int
	// IPv6 selects the family if neither Source nor Destination does.
	IPv6 bool
	// Source and Destination restrict the rule; the zero value does not.
	Source, Destination netip.Prefix
	// InDevice restricts the rule to packets that arrived on it.
	InDevice string
	// Mark and Mask restrict the rule to packets whose mark agrees under the mask; Mask 0 does not restrict.
	Mark, Mask uint32
	// Table is the table to look up; 0 is TableMain.
	Table int
}

// Family6 reports whether the rule is one of IPv6.
func (r *Rule) Family6() bool {
	return r.IPv6 || (r.Source.IsValid() && r.Source.Addr().Is6()) || (r.Destination.IsValid() && r.Destination.Addr().Is6())
}

// Key implements Item. The name contains all selectors of the rule: the kernel allows any number of equal rules.
func (r *Rule) Key() Key {
	words := []string{strconv.Itoa(r.Priority)}
	if r.Family6() {
		words = append(words, "inet6")
	}
	if r.Source.IsValid() {
		words = append(words, "from", r.Source.Masked().String())
	}
	if r.Destination.IsValid() {
		words = append(words, "to", r.Destination.Masked().String())
	}
	if r.InDevice != "" {
		words = append(words, "iif", r.InDevice)
	}
	if r.Mask != 0 {
		words = append(words, "fwmark", fmt.Sprintf("%#x/%#x", r.Mark, r.Mask))
	}
	return Key{Netns: r.Netns, Kind: KindRule, Name: strings.Join(words, " ")}
}

// LookupTable is the table that the rule looks up: its own, or TableMain.
func (r *Rule) LookupTable() int {
	if r.Table == 0 {
		return TableMain
	}
	return r.Table
}

// Equal implements Item.
func (r *Rule) Equal(other Item) bool {
	o, ok := other.(*Rule)
	return ok && r.Key() == o.Key() && r.LookupTable() == o.LookupTable()
}

// String implements Item.
func (r *Rule) String() string {
	return "rule " + r.Key().Name + " lookup " + strconv.Itoa(r.LookupTable())
}

// SortedPrefixes returns the prefixes sorted, each once.
func SortedPrefixes(in []netip.Prefix) []netip.Prefix {
	out := slices.Clone(in)
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(out)
}

// Alias is the device's alias.
func (d *Device) Alias() string {
	if d.wholeAlias {
		return d.Owner
	}
	return AliasPrefix + d.Owner
}

// Restriction returns what restores d after other was programmed over it: the fields that other sets, with d's values.
func (d *Device) Restriction(other *Device, alias string) *Device {
	back := *d
	back.Netns, back.Owner, back.wholeAlias = other.Netns, alias, true
	if other.TxOffload == Leave {
		back.TxOffload = Leave
	}
	for _, entry := range SysctlEntries() {
		if *entry.Get(&other.Sysctls) == Leave {
			*entry.Get(&back.Sysctls) = Leave
		}
	}
	return &back
}
