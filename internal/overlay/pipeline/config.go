package pipeline

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Mode is the kind of isolation between pods.
type Mode string

// The modes.
const (
	// ModeSubnet is the flat network: no isolation, and every VNID is 0.
	ModeSubnet Mode = "subnet"
)

// Defaults of a Config.
const (
	// DefaultVXLANPort is the UDP port of VXLAN (RFC 7348, section 5).
	DefaultVXLANPort uint16 = 4789
	// DefaultConntrackZone collides neither with ovn-controller, which allocates zones from 1 upwards, nor with the host's netfilter, which
	// uses zone 0.
	DefaultConntrackZone uint16 = 65280
)

// Config is what the flows depend on besides pods and remote nodes. All addresses are IPv4.
type Config struct {
	// Mode is the kind of isolation; "" is ModeSubnet.
	Mode Mode
	// ClusterNetworks are the ranges of all pods, at least one.
	ClusterNetworks []netip.Prefix
	// ServiceNetwork is the range of the Services' addresses.
	ServiceNetwork netip.Prefix
	// LocalSubnet is the range of this node's pods, within a cluster network.
	LocalSubnet netip.Prefix
	// Gateway is tun0's address, within LocalSubnet.
	Gateway netip.Addr
	// GatewayMAC is tun0's MAC address; nil: PodMAC(Gateway).
	GatewayMAC net.HardwareAddr
	// NodeIP is the local address of this node's tunnels.
	NodeIP netip.Addr
	// VXLANPort is the UDP port of the tunnels, which is closed to pods; 0: DefaultVXLANPort.
	VXLANPort uint16
	// ClosedPorts are further UDP ports that are closed to pods: ports of other networks' tunnels.
	ClosedPorts []uint16
	// Metadata are addresses of clouds' metadata services. Pods reach only port 53 there.
	Metadata []netip.Addr
	// ClosedTCP are TCP ports that pods reach neither outside the pods' network nor at the gateway.
	ClosedTCP []uint16
	// Conntrack says that the switch serves Services and tracks the connections that this needs. Otherwise Services returns no flows.
	// A flat network without Services in the switch needs no connection tracking.
	Conntrack bool
	// SCTP says that the switch serves Services of SCTP. The kernel datapath's connection tracking can. The userspace datapath's does not
	// parse SCTP ports (Open vSwitch 3.1), so the host must serve them.
	SCTP bool
	// KeepApart gives a new connection another source port if its replies would look like those of a tracked connection. The kernel datapath's
	// connection tracking can. With the userspace datapath's of Open vSwitch 3.1, a connection that is translated to itself has two entries.
	// If a packet finds the second entry after the first has expired, as when a TCP port is used again, it ends ovs-vswitchd by an assertion
	// (in conn_update_state; Open vSwitch 3.3 has one entry).
	KeepApart bool
	// ConntrackZone is the conntrack zone; 0: DefaultConntrackZone.
	ConntrackZone uint16
}

// Validate returns an error that names everything that is wrong. The other methods expect a valid Config.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Mode == "" || c.Mode == ModeSubnet || c.isolates() || c.policies(), "mode %q: it is %q, %q or %q", c.Mode, ModeSubnet, ModeMultitenant, ModeNetworkPolicy)
	check(!c.policies() || c.Conntrack, "mode %q needs connection tracking", c.Mode)
	check(len(c.ClusterNetworks) > 0, "there is no cluster network")
	for _, network := range c.ClusterNetworks {
		check(canonical4(network), "cluster network %s is no IPv4 range in canonical form", network)
		check(!network.Overlaps(c.ServiceNetwork), "cluster network %s overlaps the service network %s", network, c.ServiceNetwork)
	}
	check(canonical4(c.ServiceNetwork), "service network %s is no IPv4 range in canonical form", c.ServiceNetwork)
	check(canonical4(c.LocalSubnet) && c.inCluster(c.LocalSubnet), "local subnet %s is not within a cluster network", c.LocalSubnet)
	check(c.LocalSubnet.Contains(c.Gateway), "gateway %s is not within the local subnet %s", c.Gateway, c.LocalSubnet)
	check(c.NodeIP.Is4() && !c.LocalSubnet.Contains(c.NodeIP), "node address %s is no IPv4 address outside the local subnet", c.NodeIP)
	for _, addr := range c.Metadata {
		check(addr.Is4() && !c.inCluster(host(addr)) && !c.ServiceNetwork.Contains(addr), "metadata address %s is no IPv4 address outside the pods' and the Services' network", addr)
	}
	check(!slices.Contains(c.ClosedTCP, 0), "closed TCP ports: 0 is no port")
	check(c.GatewayMAC == nil || unicastMAC(c.GatewayMAC), "gateway MAC %s is no unicast address", c.GatewayMAC)
	return errors.Join(errs...)
}

func canonical4(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is4() && p == p.Masked() }

// within reports whether all of inner is in outer.
func within(inner, outer netip.Prefix) bool {
	return outer.Contains(inner.Addr()) && inner.Bits() >= outer.Bits()
}

func (c *Config) inCluster(p netip.Prefix) bool {
	for _, network := range c.ClusterNetworks {
		if within(p, network) {
			return true
		}
	}
	return false
}

func (c *Config) vxlanPort() uint16 {
	if c.VXLANPort == 0 {
		return DefaultVXLANPort
	}
	return c.VXLANPort
}

// tunnelPorts returns all UDP ports of tunnels, in ascending order.
func (c *Config) tunnelPorts() []uint16 {
	ports := append([]uint16{c.vxlanPort()}, c.ClosedPorts...)
	slices.Sort(ports)
	return slices.Compact(ports)
}

func (c *Config) zone() uint16 {
	if c.ConntrackZone == 0 {
		return DefaultConntrackZone
	}
	return c.ConntrackZone
}

func (c *Config) gatewayMAC() net.HardwareAddr {
	if c.GatewayMAC == nil {
		return PodMAC(c.Gateway)
	}
	return c.GatewayMAC
}

// PodMAC returns the MAC address for an IPv4 address: 0a:58 and the four bytes of the address, as in OpenShift SDN. For any other address
// it returns nil.
func PodMAC(addr netip.Addr) net.HardwareAddr {
	if !addr.Is4() {
		return nil
	}
	b := addr.As4()
	return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

func unicastMAC(mac net.HardwareAddr) bool {
	const macBytes, multicastBit = 6, 1
	return len(mac) == macBytes && mac[0]&multicastBit == 0
}

func host(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }
