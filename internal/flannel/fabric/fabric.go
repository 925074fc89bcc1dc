// Package fabric compiles leases to what connects nodes: tunnel devices, neighbours, forwarding entries and routes, as the backend
// has them. It is pure.
package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/uplink"
	"weft.dev/weft/internal/link/whole"
)

// View is what a node's fragments depend on besides leases.
type View struct {
	Backend netconf.Backend
	Uplink  uplink.Uplink
	// Links are the ranges that the uplink reaches without a gateway; DirectRouting depends on them.
	Links []netip.Prefix
	// MAC and MAC6 are the addresses of the VXLAN devices.
	MAC, MAC6 lease.MAC
	// V4 and V6 are the families of the network.
	V4, V6 bool
}

// Fragment is what one owner has in the engine.
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

// Owns reports whether a device of that name is the fabric's, of whatever backend and network identifier.
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

// ErrBackend is returned for a backend that this package does not compile.
var ErrBackend = errors.New("backend is not implemented")

// Check says why a view cannot be compiled.
func (v *View) Check() error {
	switch v.Backend.(type) {
	case netconf.VXLAN, netconf.Alloc:
		return nil
	case netconf.HostGW:
		if (v.V4 && v.Uplink.Addr != v.Uplink.Public) || (v.V6 && v.Uplink.Addr6 != v.Uplink.Public6) {
			return fmt.Errorf("backend host-gw: the public address must be the interface's own (%s on %s): leave out --public-ip", v.Uplink.Addr, v.Uplink.Name)
		}
		return nil
	default:
		return fmt.Errorf("%w: %s; use vxlan, host-gw or alloc", ErrBackend, v.Backend.Type())
	}
}

// MTU is that of pods' interfaces.
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

// Lease returns what the node says of itself, without subnets.
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
	if b, ok := v.Backend.(netconf.VXLAN); ok {
		if v.V4 {
			l.Data = lease.VXLAN{VNI: b.VNI, MAC: v.MAC}
		}
		if v.V6 {
			l.Data6 = lease.VXLAN{VNI: b.VNI, MAC: v.MAC6}
		}
	}
	return l
}

// Own returns the node's own fragment: its devices.
func (v *View) Own(l lease.Lease) Fragment {
	out := Fragment{}
	b, ok := v.Backend.(netconf.VXLAN)
	if !ok {
		return out
	}
	names := Devices(b)
	add := func(name string, local netip.Addr, subnet netip.Prefix, mac lease.MAC, overhead int) {
		if !subnet.IsValid() || !local.IsValid() {
			return
		}
		device := &whole.VXLAN{
			Name: name, VNI: b.VNI, Port: b.Port, Underlay: v.Uplink.Name, Local: local, GBP: b.GBP, Learning: b.Learning,
			// The kernel takes no MTU above the underlay's less the overhead.
			MTU: min(outer(b.MTU, v.Uplink.MTU), v.Uplink.MTU) - overhead,
			MAC: whole.MAC(mac), Address: netip.PrefixFrom(subnet.Addr(), subnet.Addr().BitLen()),
		}
		out[device.Key()] = device
	}
	add(names[0], v.Uplink.Addr, l.Subnet, v.MAC, vxlanOverhead4)
	add(names[1], v.Uplink.Addr6, l.Subnet6, v.MAC6, vxlanOverhead6)
	return out
}

// Peer returns the fragment of another node's lease. A lease of another backend has none, and an error that says so.
func (v *View) Peer(l lease.Lease) (Fragment, error) {
	out := Fragment{}
	want := v.Lease().Backend
	if l.Backend != want {
		return out, fmt.Errorf("lease of %s has backend %q, this node has %q: no way between them", subnetText(l), l.Backend, want)
	}
	add := func(items ...whole.Item) {
		for _, item := range items {
			out[item.Key()] = item
		}
	}
	for _, f := range []struct {
		wanted bool
		subnet netip.Prefix
		public netip.Addr
		data   lease.Data
		six    int
	}{{v.V4, l.Subnet, l.PublicIP, l.Data, 0}, {v.V6, l.Subnet6, l.PublicIP6, l.Data6, 1}} {
		if !f.wanted || !f.subnet.IsValid() || !f.public.IsValid() {
			continue
		}
		direct := &whole.Route{Dst: f.subnet, Gateway: f.public, Device: v.Uplink.Name}
		switch b := v.Backend.(type) {
		case netconf.HostGW:
			add(direct)
		case netconf.VXLAN:
			data, ok := f.data.(lease.VXLAN)
			switch {
			case b.DirectRouting && v.linked(f.public):
				add(direct)
			case ok:
				device, gateway, mac := Devices(b)[f.six], f.subnet.Addr(), whole.MAC(data.MAC)
				add(&whole.Neighbour{Device: device, Address: gateway, MAC: mac},
					&whole.FDB{Device: device, MAC: mac, Remote: f.public},
					&whole.Route{Dst: f.subnet, Gateway: gateway, Device: device, OnLink: true})
			}
		}
	}
	return out, nil
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
