package link

import (
	"fmt"
	"net"
	"strconv"
)

// Bridge is a kernel bridge that the engine creates. Its MAC, MTU, addresses and state are those of a [Device] item of the same name;
// without a MAC there, the kernel uses the MAC of a port. Deleting the item deletes the bridge.
type Bridge struct {
	Netns, Name string
	// Owner follows AliasPrefix in the alias.
	Owner string
	// Adopt takes over an existing bridge that the engine has not created. Without it, such a bridge is ErrForeign.
	Adopt bool
	// NFCallIPTables and NFCallIP6Tables On send bridged packets through the IPv4 and IPv6 hooks of netfilter, regardless of the sysctls
	// net.bridge.bridge-nf-call-*. They need the module br_netfilter, and have no effect without it.
	NFCallIPTables, NFCallIP6Tables Toggle
	// Promisc sets the bridge promiscuous.
	Promisc bool
}

// Key implements Item.
func (b *Bridge) Key() Key { return Key{Netns: b.Netns, Kind: KindBridge, Name: b.Name} }

// Equal implements Item. The owner is compared by the Device items, and Adopt matters only until the bridge is adopted.
func (b *Bridge) Equal(other Item) bool {
	o, ok := other.(*Bridge)
	return ok && b.Key() == o.Key() && b.Promisc == o.Promisc &&
		b.NFCallIPTables.Matches(o.NFCallIPTables) && b.NFCallIP6Tables.Matches(o.NFCallIP6Tables)
}

// String implements Item.
func (b *Bridge) String() string {
	return fmt.Sprintf("bridge %s nf_call_iptables %s nf_call_ip6tables %s promisc %t", b.Name, b.NFCallIPTables, b.NFCallIP6Tables, b.Promisc)
}

// BridgePort makes a device a port of a bridge. Deleting the item removes the device from the bridge.
type BridgePort struct {
	Netns, Bridge, Device string
	// Hairpin lets packets leave by the port on which they came in.
	Hairpin bool
	// Isolated blocks packets between this port and other isolated ports.
	Isolated bool
	// MAC, unless zero, is the only address behind the port: the bridge has a static entry for it, learns no other from the port's packets,
	// and sends packets to unknown addresses to other ports only. The port receives broadcast and multicast in any case.
	MAC [6]byte
}

// Key implements Item. A device is a port of one bridge at most.
func (p *BridgePort) Key() Key { return Key{Netns: p.Netns, Kind: KindBridgePort, Name: p.Device} }

// Equal implements Item.
func (p *BridgePort) Equal(other Item) bool {
	o, ok := other.(*BridgePort)
	return ok && *p == *o
}

// String implements Item.
func (p *BridgePort) String() string {
	text := "bridge port " + p.Device + " of " + p.Bridge + " hairpin " + strconv.FormatBool(p.Hairpin) + " isolated " + strconv.FormatBool(p.Isolated)
	if p.Pinned() {
		text += " only " + net.HardwareAddr(p.MAC[:]).String()
	}
	return text
}

// Pinned reports whether the port has only the address MAC.
func (p *BridgePort) Pinned() bool { return p.MAC != [6]byte{} }
