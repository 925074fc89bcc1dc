package whole

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// device is an item that is a link.
type device interface {
	Item
	shape() shape
	// sameLink reports whether a link like other can become this one without being created again.
	sameLink(other device) bool
}

// shape contains what the engine handles in the same way for devices of all kinds.
type shape struct {
	name string
	kind string // as in ip(8)
	// underlay is the device that the tunnel is bound to; empty: none.
	underlay string
	mtu      int
	mac      MAC // zero: the device has none
	// addresses are the only ones of their families; invalid ones leave their family alone.
	addresses []netip.Prefix
}

func (v *VXLAN) shape() shape {
	return shape{v.Name, "vxlan", v.Underlay, v.MTU, v.MAC, []netip.Prefix{v.Address}}
}

func (v *VXLAN) sameLink(other device) bool {
	o, ok := other.(*VXLAN)
	return ok && v.sameTunnel(o)
}

// IPIP is a device for IPv4 in IPv4 (RFC 2003) that is up: from one address to any peer.
type IPIP struct {
	Name  string
	Local netip.Addr
	MTU   int
	// Address is the device's only IPv4 address.
	Address netip.Prefix
}

// Key implements Item.
func (i *IPIP) Key() Key { return Key{KindIPIP, i.Name, ""} }

// Equal implements Item.
func (i *IPIP) Equal(other Item) bool {
	o, ok := other.(*IPIP)
	return ok && *i == *o
}

// String implements Item.
func (i *IPIP) String() string {
	return fmt.Sprintf("ipip %s local %s mtu %d inet %s", i.Name, i.Local, i.MTU, i.Address)
}

func (i *IPIP) shape() shape {
	return shape{name: i.Name, kind: "ipip", mtu: i.MTU, addresses: []netip.Prefix{i.Address}}
}

func (i *IPIP) sameLink(other device) bool {
	o, ok := other.(*IPIP)
	return ok && i.Local == o.Local
}

// Secret is a key that is not printed.
type Secret [32]byte

// String hides the key.
func (Secret) String() string { return "(hidden)" }

// GoString hides the key.
func (Secret) GoString() string { return "(hidden)" }

// WireGuard is a WireGuard device that is up.
type WireGuard struct {
	Name string
	// Port is the UDP port that the device listens on.
	Port    uint16
	Private Secret
	MTU     int
	// Addresses are the device's only IPv4 and IPv6 address, ignoring link-local ones; an invalid one leaves that family alone.
	Addresses [2]netip.Prefix
}

// Key implements Item.
func (w *WireGuard) Key() Key { return Key{KindWireGuard, w.Name, ""} }

// Equal implements Item. A family without an address is not compared.
func (w *WireGuard) Equal(other Item) bool {
	o, ok := other.(*WireGuard)
	if !ok || w.Name != o.Name || w.Port != o.Port || w.Private != o.Private || w.MTU != o.MTU {
		return false
	}
	for i, address := range w.Addresses {
		if address.IsValid() && o.Addresses[i].IsValid() && address != o.Addresses[i] {
			return false
		}
	}
	return true
}

// String implements Item.
func (w *WireGuard) String() string {
	var words strings.Builder
	fmt.Fprintf(&words, "wireguard %s listen-port %d mtu %d", w.Name, w.Port, w.MTU)
	for _, address := range w.Addresses {
		if address.IsValid() {
			words.WriteString(" inet " + address.String())
		}
	}
	return words.String()
}

func (w *WireGuard) shape() shape {
	return shape{name: w.Name, kind: "wireguard", mtu: w.MTU, addresses: w.Addresses[:]}
}

func (w *WireGuard) sameLink(other device) bool {
	_, ok := other.(*WireGuard)
	return ok
}

// PublicKey is the public key of a peer.
type PublicKey [32]byte

// String returns the key as wg(8) prints it.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Peer is a peer of a WireGuard device.
type Peer struct {
	Device string
	Public PublicKey
	// Endpoint is the peer's initial address. The kernel updates it when the peer sends from another address; that is not a difference from
	// the desired state.
	Endpoint netip.AddrPort
	// Allowed are the ranges behind the peer, IPv4 before IPv6; invalid ones are none.
	Allowed [2]netip.Prefix
	// Shared is an additional pre-shared key of both peers; zero: none.
	Shared Secret
	// Keepalive is in seconds; 0 is off.
	Keepalive int
}

// Key implements Item.
func (p *Peer) Key() Key { return Key{KindPeer, p.Device, p.Public.String()} }

// Equal implements Item.
func (p *Peer) Equal(other Item) bool {
	o, ok := other.(*Peer)
	return ok && *p == *o
}

// String implements Item.
func (p *Peer) String() string {
	words := fmt.Sprintf("peer %s dev %s endpoint %s", p.Public, p.Device, p.Endpoint)
	var ranges []string
	for _, r := range p.Allowed {
		if r.IsValid() {
			ranges = append(ranges, r.String())
		}
	}
	if slices.Sort(ranges); len(ranges) > 0 {
		words += " allowed-ips " + strings.Join(ranges, ",")
	}
	if p.Shared != (Secret{}) {
		words += " preshared-key " + p.Shared.String()
	}
	if p.Keepalive != 0 {
		words += fmt.Sprintf(" persistent-keepalive %d", p.Keepalive)
	}
	return words
}
