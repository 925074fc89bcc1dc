package host

import (
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
)

// Names that are the same on every node.
const (
	// Bridge is the switch's bridge.
	Bridge = "br0"
	// Tunnel is the bridge's tunnel port.
	Tunnel = "vxlan0"
	// Tun is the host's interface on the bridge.
	Tun = "tun0"
	// PodGroup is the device group (IFLA_GROUP) of all devices whose frames are for the switch alone: host veths, and underlay ports of a
	// userspace datapath.
	PodGroup uint32 = 77
	// NodesSet is the set of all nodes' addresses, in the table inet weft.
	NodesSet = "nodes"
	// AdminChain is the chain, in the table inet weft, of the administrator's own rules for packets of pods that leave the cluster. Its
	// content, and chains and sets named "admin-...", are never changed.
	AdminChain = "admin"

	table    = "weft"
	podsSet  = "pods"
	owner    = "cluster"
	nodeNote = "hostsubnet"
)

// Config is what the node's state is compiled from. All addresses are IPv4.
type Config struct {
	// ClusterNetworks are the ranges of all pods, at least one.
	ClusterNetworks []netip.Prefix
	// ServiceNetwork is the range of the Services' addresses.
	ServiceNetwork netip.Prefix
	// LocalSubnet is the range of this node's pods.
	LocalSubnet netip.Prefix
	// Gateway is tun0's address, within LocalSubnet.
	Gateway netip.Addr
	// GatewayMAC is tun0's MAC address. It must be the one in the flows (pipeline.PodMAC of Gateway).
	GatewayMAC net.HardwareAddr
	// NodeIP is the local address of this node's tunnels.
	NodeIP netip.Addr
	// VXLANPort is the UDP port of the tunnels; 0: 4789 (RFC 7348).
	VXLANPort uint16
	// ClosedPorts are further UDP ports that pods cannot send to: ports of other networks' tunnels.
	ClosedPorts []uint16
	// Metadata are addresses of clouds' metadata services. Pods reach only port 53 there.
	Metadata []netip.Addr
	// ClosedTCP are TCP ports that pods reach neither outside the pods' network nor on the node.
	ClosedTCP []uint16
	// MTU is the MTU of tun0 and of pods, in bytes.
	MTU int
	// RouteMTU is the MTU of the routes to pods and Services; 0: the interface's. It differs while the MTU is migrated.
	RouteMTU int
	// Datapath is the bridge's datapath type, ovsdb.DatapathSystem or ovsdb.DatapathNetdev.
	Datapath string
	// Outside is the source address, of no host, of packets to this node's pods that the host masquerades and that do not come from the node
	// itself. By it the switch distinguishes them from the node's own packets. Invalid: they have the gateway's address.
	Outside netip.Addr
	// Egress says that namespaces may have egress firewalls and egress IPs.
	Egress bool
	// RejectMAC is the source MAC address, of no device, of packets that the switch sends to the host to be rejected; nil: none are.
	RejectMAC net.HardwareAddr
}

func (c *Config) vxlanPort() uint16 {
	const standard = 4789
	if c.VXLANPort == 0 {
		return standard
	}
	return c.VXLANPort
}

// tunnelPorts returns all UDP ports of tunnels, in ascending order.
func (c *Config) tunnelPorts() []uint16 {
	ports := append([]uint16{c.vxlanPort()}, c.ClosedPorts...)
	slices.Sort(ports)
	return slices.Compact(ports)
}

// Tables returns Weft's tables of nftables.
func Tables() []nft.Table {
	return []nft.Table{{Family: nft.FamilyInet, Name: table}, {Family: nft.FamilyARP, Name: table}}
}

// Unmanaged returns the chains in these tables whose rules belong to the administrator.
func Unmanaged() []nft.Chain {
	return []nft.Chain{{Family: nft.FamilyInet, Table: table, Name: AdminChain}}
}

// Devices returns the devices that the overlay configures, even if another program created them.
func Devices() []link.Key { return []link.Key{{Kind: link.KindDevice, Name: Tun}} }

// Sysctl is a setting of the whole node.
type Sysctl struct {
	// Path is relative to /proc/sys; Value is what is written.
	Path, Value string
}

// Sysctls returns the settings that pods need on the node. Without forwarding no packet leaves by another interface than tun0. rp_filter
// may have any value: every packet from tun0 has a source address that is routed there. route_localnet is turned on for tun0 alone (Links);
// flows and rules keep pods from the loopback range.
//
// The host sends no redirects on tun0: a packet that it returns to the switch has no shorter path. A device sends redirects if its own
// setting or that of "all" says so. Other devices keep their own settings.
func Sysctls() []Sysctl {
	return []Sysctl{{Path: "net/ipv4/ip_forward", Value: "1"}, {Path: "net/ipv4/conf/all/send_redirects", Value: "0"}}
}
