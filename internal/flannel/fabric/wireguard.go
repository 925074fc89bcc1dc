package fabric

import (
	"encoding/base64"
	"fmt"
	"net/netip"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/link/whole"
)

// port6 is the port on which IPv6 tunnel packets arrive. Only the mode separate has a separate device for them. flanneld advertises
// ListenPortV6 in the other modes too, although nothing listens on it then.
func port6(b netconf.WireGuard) uint16 {
	if b.Mode == netconf.ModeSeparate {
		return b.ListenPort6
	}
	return b.ListenPort
}

// shared returns the preshared key of the configuration, which the parser has validated.
func shared(b netconf.WireGuard) whole.Secret {
	raw, err := base64.StdEncoding.DecodeString(b.PSK)
	if err != nil || len(raw) != len(whole.Secret{}) {
		return whole.Secret{}
	}
	return whole.Secret(raw)
}

// wireguardDevices returns the node's devices, and the routes of all pods' ranges into them.
func (v *View) wireguardDevices(b netconf.WireGuard, l lease.Lease) []whole.Item {
	one := func(name string, port uint16) *whole.WireGuard {
		return &whole.WireGuard{Name: name, Port: port, Private: v.Private, MTU: v.MTU()}
	}
	four, six := one(wireguardDevice, b.ListenPort), one(wireguardDeviceSix, b.ListenPort6)
	if b.Mode != netconf.ModeSeparate {
		six = four
	}
	var out []whole.Item
	add := func(d *whole.WireGuard, family int, subnet, network netip.Prefix) {
		if !subnet.IsValid() {
			return
		}
		d.Addresses[family] = first(subnet)
		out = append(out, d)
		if network.IsValid() {
			out = append(out, &whole.Route{Dst: network, Device: d.Name})
		}
	}
	add(four, 0, l.Subnet, v.Network)
	add(six, 1, l.Subnet6, v.Network6)
	return out
}

// wireguardPeer returns a lease's peers: one on each device.
func (v *View) wireguardPeer(b netconf.WireGuard, l lease.Lease) ([]whole.Item, error) {
	data, has4 := l.Data.(lease.WireGuard)
	data6, has6 := l.Data6.(lease.WireGuard)
	has4 = has4 && v.V4 && l.Subnet.IsValid() && l.PublicIP.IsValid()
	has6 = has6 && v.V6 && l.Subnet6.IsValid() && l.PublicIP6.IsValid()
	if !has4 && !has6 {
		return nil, nil
	}
	create := func(device string, key [32]byte, endpoint netip.AddrPort) *whole.Peer {
		return &whole.Peer{Device: device, Public: key, Endpoint: endpoint, Shared: shared(b), Keepalive: b.Keepalive}
	}
	if b.Mode == netconf.ModeSeparate {
		var out []whole.Item
		if has4 {
			peer := create(wireguardDevice, data.PublicKey, endpoint(l.PublicIP, data.Port, b.ListenPort))
			peer.Allowed[0] = l.Subnet
			out = append(out, peer)
		}
		if has6 {
			peer := create(wireguardDeviceSix, data6.PublicKey, endpoint(l.PublicIP6, data6.Port, b.ListenPort6))
			peer.Allowed[1] = l.Subnet6
			out = append(out, peer)
		}
		return out, nil
	}
	if has4 && has6 && data.PublicKey != data6.PublicKey {
		return nil, fmt.Errorf("lease of %s has two public keys; with Mode %q a node has one device, and one key", subnetText(l), b.Mode)
	}
	if !has4 {
		data = data6
	}
	to, err := v.singleEndpoint(b, l, data.Port, [2]bool{has4, has6})
	if err != nil {
		return nil, err
	}
	peer := create(wireguardDevice, data.PublicKey, to)
	if has4 {
		peer.Allowed[0] = l.Subnet
	}
	if has6 {
		peer.Allowed[1] = l.Subnet6
	}
	return []whole.Item{peer}, nil
}

// endpoint is the address and port of a peer. A node with an old flanneld does not advertise its port: then this node's own port is used.
func endpoint(public netip.Addr, advertised, own uint16) netip.AddrPort {
	if advertised == 0 {
		advertised = own
	}
	return netip.AddrPortFrom(public, advertised)
}

// singleEndpoint chooses the family of the only tunnel to a peer. A dual-stack peer's IPv4 port is used for both families, because one
// device listens on one port, and flanneld advertises another one for IPv6.
func (v *View) singleEndpoint(b netconf.WireGuard, l lease.Lease, port uint16, has [2]bool) (netip.AddrPort, error) {
	mode := b.Mode
	if mode == netconf.ModeAuto {
		mode = v.choose(l, has)
	}
	public, usable := l.PublicIP, has[0]
	if mode == netconf.ModeIPv6 {
		public, usable = l.PublicIP6, has[1]
	}
	if !usable {
		return netip.AddrPort{}, fmt.Errorf("lease of %s has no public address for wireguard's Mode %q", subnetText(l), b.Mode)
	}
	return endpoint(public, port, b.ListenPort), nil
}

// choose applies flannel's rule for Mode auto: IPv4 if the peer has a public address of it, else IPv6 if both nodes have one, else IPv4.
func (v *View) choose(l lease.Lease, has [2]bool) netconf.WireGuardMode {
	switch {
	case !has[1]:
		return netconf.ModeIPv4
	case !has[0]:
		return netconf.ModeIPv6
	case !l.PublicIP.IsPrivate() && v.Uplink.Public.IsValid():
		return netconf.ModeIPv4
	case !l.PublicIP6.IsPrivate() && v.Uplink.Public6.IsValid() && !v.Uplink.Public6.IsPrivate():
		return netconf.ModeIPv6
	}
	return netconf.ModeIPv4
}
