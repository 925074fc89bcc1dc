package host

import (
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
)

// Names on every node.
const (
	// Bridge is the switch's bridge.
	Bridge = "br0"
	// Tunnel is the bridge's tunnel port.
	Tunnel = "vxlan0"
	// Tun is the host's interface.
	Tun = "tun0"
	// PodGroup is the device group (IFLA_GROUP) of every device whose frames are for the switch alone: pods' host ends, and
	// underlay ports of a userspace datapath.
	PodGroup uint32 = 77
	// NodesSet is the set of all nodes' addresses, in the table inet weft.
	NodesSet = "nodes"
	// AdminChain is the chain of the administrator's own rules for what pods send out of the cluster, in the table inet
	// weft. What is in it, and what stands beside it as "admin-...", is never touched.
	AdminChain = "admin"

	table    = "weft"
	podsSet  = "pods"
	owner    = "cluster"
	nodeNote = "hostsubnet"
)

// Config is what the node's state depends on. All addresses are IPv4.
type Config struct {
	// ClusterNetworks are the ranges of all pods, at least one.
	ClusterNetworks []netip.Prefix
	// ServiceNetwork is the range of the Services' addresses.
	ServiceNetwork netip.Prefix
	// LocalSubnet is the range of this node's pods.
	LocalSubnet netip.Prefix
	// Gateway is tun0's address, within LocalSubnet.
	Gateway netip.Addr
	// GatewayMAC is tun0's MAC address. It must be the one that the flows have (pipeline.PodMAC of Gateway).
	GatewayMAC net.HardwareAddr
	// NodeIP is where this node's tunnels end.
	NodeIP netip.Addr
	// VXLANPort is the UDP port of the tunnels. 0 is 4789 (RFC 7348).
	VXLANPort uint16
	// ClosedPorts are further UDP ports that pods can't send to: tunnels of other networks are there.
	ClosedPorts []uint16
	// Metadata are addresses of clouds' metadata services: pods reach port 53 there and nothing else.
	Metadata []netip.Addr
	// ClosedTCP are TCP ports at which pods reach nothing outside the pods' network, and not the node.
	ClosedTCP []uint16
	// MTU is tun0's, in bytes: the pods'.
	MTU int
	// RouteMTU is the MTU of the routes to pods and Services; 0 is the interface's. It differs while the MTU is migrated.
	RouteMTU int
	// Datapath is the bridge's datapath type, ovsdb.DatapathSystem or ovsdb.DatapathNetdev.
	Datapath string
	// Outside is the source address, nobody's, of what the host masquerades on its way to this node's pods and that does not come
	// from the node itself: the switch tells it by that from what the node sends. None: it has the gateway's.
	Outside netip.Addr
	// RejectMAC is the source address, nobody's, of what the switch hands over to be rejected; none: nothing is.
	RejectMAC net.HardwareAddr
}

func (c *Config) vxlanPort() uint16 {
	const standard = 4789
	if c.VXLANPort == 0 {
		return standard
	}
	return c.VXLANPort
}

// tunnelPorts are all UDP ports at which tunnels may be, in ascending order.
func (c *Config) tunnelPorts() []uint16 {
	ports := append([]uint16{c.vxlanPort()}, c.ClosedPorts...)
	slices.Sort(ports)
	return slices.Compact(ports)
}

// Tables are Weft's tables of nftables.
func Tables() []nft.Table {
	return []nft.Table{{Family: nft.FamilyInet, Name: table}, {Family: nft.FamilyARP, Name: table}}
}

// Unmanaged are the chains in them whose rules are the administrator's.
func Unmanaged() []nft.Chain {
	return []nft.Chain{{Family: nft.FamilyInet, Table: table, Name: AdminChain}}
}

// Devices are the devices that the overlay configures, whoever made them.
func Devices() []link.Key { return []link.Key{{Kind: link.KindDevice, Name: Tun}} }

// Sysctl is a setting of the node as a whole.
type Sysctl struct {
	// Path is below /proc/sys; Value is what is written.
	Path, Value string
}

// Sysctls are the settings that pods need of the node: without forwarding nothing leaves by another interface than tun0.
// rp_filter may be anything: all that comes in by tun0 has a source that is routed there. route_localnet is turned on for tun0 alone
// (Links); flows and rules keep pods from the loopback range.
//
// The host sends no redirects by tun0: a packet that it hands back to the switch has no shorter way. A device sends them if
// its own setting or that of all says so; the others keep their own.
func Sysctls() []Sysctl {
	return []Sysctl{{Path: "net/ipv4/ip_forward", Value: "1"}, {Path: "net/ipv4/conf/all/send_redirects", Value: "0"}}
}
