// Package fabric compiles leases to what connects nodes: tunnel devices, neighbours, forwarding entries and routes, as the backend
// requires. It is pure.
package fabric

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/uplink"
	"weft.dev/weft/internal/link/whole"
)

// View is what a node's fragments depend on, besides leases.
type View struct {
	Backend netconf.Backend
	Uplink  uplink.Uplink
	// Links are the ranges that the uplink reaches without a gateway; DirectRouting depends on them.
	Links []netip.Prefix
	// MAC and MAC6 are the addresses of the VXLAN devices.
	MAC, MAC6 lease.MAC
	// Private and Public are the WireGuard devices' keys.
	Private whole.Secret
	Public  whole.PublicKey
	// Output is the output of the extension backend's start command.
	Output string
	// Network and Network6 are the ranges of all pods.
	Network, Network6 netip.Prefix
	// V4 and V6 are the families of the network.
	V4, V6 bool
	// Nexthops: routes through IPv4 tunnels refer to nexthop objects.
	Nexthops bool
}

// Fragment is one owner's fragment for the engine.
type Fragment = map[whole.Key]whole.Item

// Overhead of the tunnels, in bytes: VXLAN adds an outer Ethernet, IP, UDP and VXLAN header to the inner frame.
const (
	vxlanOverhead4     = 50
	vxlanOverhead6     = 70
	wireguardOverhead  = 80
	ipipOverhead       = 20
	devicePrefix4      = "flannel."
	devicePrefix6      = "flannel-v6."
	wireguardDevice    = "flannel-wg"
	ipipDevice         = "flannel.ipip"
	wireguardDeviceSix = "flannel-wg-v6"
)

// Owns reports whether a device of that name belongs to this package, for any backend and network identifier.
func Owns(name string) bool {
	for _, prefix := range []string{devicePrefix4, devicePrefix6} {
		if vni, ok := strings.CutPrefix(name, prefix); ok {
			if _, err := strconv.ParseUint(vni, 10, 24); err == nil {
				return true
			}
		}
	}
	return name == wireguardDevice || name == wireguardDeviceSix || name == ipipDevice
}

// Check returns why this node cannot serve a view, nil if it can. Package netconf has checked whether the backend fits the families.
func (v *View) Check() error {
	_, direct := v.Backend.(netconf.HostGW)
	if direct && ((v.V4 && v.Uplink.Addr != v.Uplink.Public) || (v.V6 && v.Uplink.Addr6 != v.Uplink.Public6)) {
		return fmt.Errorf("backend host-gw: the public address must be the interface's own (%s on %s): leave out --public-ip", v.Uplink.Addr, v.Uplink.Name)
	}
	return nil
}

// MTU is the MTU of pods' interfaces.
func (v *View) MTU() int {
	switch b := v.Backend.(type) {
	case netconf.VXLAN:
		overhead := vxlanOverhead4
		if v.V6 {
			overhead = vxlanOverhead6
		}
		return outer(b.MTU, v.Uplink.MTU) - overhead
	case netconf.WireGuard:
		return outer(b.MTU, v.Uplink.MTU) - wireguardOverhead
	case netconf.IPIP:
		return v.Uplink.MTU - ipipOverhead
	default:
		return v.Uplink.MTU
	}
}

func outer(configured, uplink int) int {
	if configured != 0 {
		return configured
	}
	return uplink
}

// Devices returns the names of the VXLAN devices, IPv4 first.
func Devices(b netconf.VXLAN) [2]string {
	vni := strconv.FormatUint(uint64(b.VNI), 10)
	return [2]string{devicePrefix4 + vni, devicePrefix6 + vni}
}

// Lease returns the node's own lease, without subnets.
func (v *View) Lease() lease.Lease {
	l := lease.Lease{Backend: v.Backend.Type()}
	if _, ok := v.Backend.(netconf.Alloc); ok {
		l.Backend = ""
	}
	if v.V4 {
		l.PublicIP = v.Uplink.Public
	}
	if v.V6 {
		l.PublicIP6 = v.Uplink.Public6
	}
	var data, data6 lease.Data
	switch b := v.Backend.(type) {
	case netconf.VXLAN:
		data, data6 = lease.VXLAN{VNI: b.VNI, MAC: v.MAC}, lease.VXLAN{VNI: b.VNI, MAC: v.MAC6}
	case netconf.WireGuard:
		data, data6 = lease.WireGuard{PublicKey: v.Public, Port: b.ListenPort}, lease.WireGuard{PublicKey: v.Public, Port: port6(b)}
	case netconf.Extension:
		if v.Output != "" {
			data = lease.Extension{Output: v.Output}
		}
	}
	if v.V4 {
		l.Data = data
	}
	if v.V6 {
		l.Data6 = data6
	}
	return l
}

// Own returns the node's own fragment: its devices.
func (v *View) Own(l lease.Lease) Fragment {
	out := Fragment{}
	switch b := v.Backend.(type) {
	case netconf.VXLAN:
		add(out, v.vxlanDevices(b, l)...)
	case netconf.WireGuard:
		add(out, v.wireguardDevices(b, l)...)
	case netconf.IPIP:
		if l.Subnet.IsValid() {
			add(out, &whole.IPIP{Name: ipipDevice, Local: v.Uplink.Addr, MTU: v.MTU(), Address: first(l.Subnet)})
		}
	}
	return out
}

func add(f Fragment, items ...whole.Item) {
	for _, item := range items {
		f[item.Key()] = item
	}
}

// first returns the network address of a subnet as a single address: the address of a node's tunnel device.
func first(subnet netip.Prefix) netip.Prefix {
	if !subnet.IsValid() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(subnet.Addr(), subnet.Addr().BitLen())
}

func (v *View) vxlanDevices(b netconf.VXLAN, l lease.Lease) []whole.Item {
	names := Devices(b)
	var out []whole.Item
	add := func(name string, local netip.Addr, subnet netip.Prefix, mac lease.MAC, overhead int) {
		if !subnet.IsValid() || !local.IsValid() {
			return
		}
		out = append(out, &whole.VXLAN{
			Name: name, VNI: b.VNI, Port: b.Port, Underlay: v.Uplink.Name, Local: local, GBP: b.GBP, Learning: b.Learning,
			// The kernel accepts no MTU above the underlay's minus the overhead.
			MTU: min(outer(b.MTU, v.Uplink.MTU), v.Uplink.MTU) - overhead,
			MAC: whole.MAC(mac), Address: first(subnet),
		})
	}
	add(names[0], v.Uplink.Addr, l.Subnet, v.MAC, vxlanOverhead4)
	add(names[1], v.Uplink.Addr6, l.Subnet6, v.MAC6, vxlanOverhead6)
	return out
}

// Peer returns the fragment of another node's lease. For a lease of another backend it returns an error and no fragment.
func (v *View) Peer(l lease.Lease) (Fragment, error) {
	out := Fragment{}
	want := v.Lease().Backend
	if l.Backend != want {
		return out, fmt.Errorf("lease of %s has backend %q, this node has %q: no way between them", subnetText(l), l.Backend, want)
	}
	if b, ok := v.Backend.(netconf.WireGuard); ok {
		items, err := v.wireguardPeer(b, l)
		add(out, items...)
		return out, err
	}
	if v.V4 && l.Subnet.IsValid() && l.PublicIP.IsValid() {
		add(out, v.way(l.Subnet, l.PublicIP, l.Data, 0)...)
	}
	if v.V6 && l.Subnet6.IsValid() && l.PublicIP6.IsValid() {
		add(out, v.way(l.Subnet6, l.PublicIP6, l.Data6, 1)...)
	}
	return out, nil
}

// way returns the items that reach a peer's subnet in one family.
func (v *View) way(subnet netip.Prefix, public netip.Addr, data lease.Data, six int) []whole.Item {
	direct := &whole.Route{Dst: subnet, Gateway: public, Device: v.Uplink.Name}
	if v.Direct() && v.linked(public) {
		return []whole.Item{direct}
	}
	switch b := v.Backend.(type) {
	case netconf.HostGW:
		return []whole.Item{direct}
	case netconf.IPIP:
		return []whole.Item{&whole.Route{Dst: subnet, Gateway: public, Device: ipipDevice, OnLink: true}}
	case netconf.VXLAN:
		vtep, ok := data.(lease.VXLAN)
		if !ok {
			return nil
		}
		device, gateway, mac := Devices(b)[six], subnet.Addr(), whole.MAC(vtep.MAC)
		nexthop := v.Nexthops && gateway.Is4()
		items := []whole.Item{
			&whole.Neighbour{Device: device, Address: gateway, MAC: mac},
			&whole.FDB{Device: device, MAC: mac, Remote: public},
			&whole.Route{Dst: subnet, Gateway: gateway, Device: device, OnLink: true, Nexthop: nexthop},
		}
		if nexthop {
			items = append(items, &whole.Nexthop{Device: device, Gateway: gateway})
		}
		return items
	}
	return nil
}

// Direct reports whether peers are reached without a tunnel that are on one of the uplink's links.
func (v *View) Direct() bool {
	switch b := v.Backend.(type) {
	case netconf.VXLAN:
		return b.DirectRouting
	case netconf.IPIP:
		return b.DirectRouting
	}
	return false
}

// linked reports whether an address is reached on the uplink without a gateway.
func (v *View) linked(addr netip.Addr) bool {
	for _, p := range v.Links {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

func subnetText(l lease.Lease) string {
	if l.Subnet.IsValid() {
		return l.Subnet.String()
	}
	return l.Subnet6.String()
}
