// Package netconf parses flannel's network configuration (net-conf.json, or the value of <prefix>/config in etcd) and
// flanneld's command line.
//
// The format is that of flannel's decoder: keys match in any case, unknown keys are ignored, and the last of equal keys counts. Values are
// validated, and an error names the key and what is valid.
package netconf

import (
	"cmp"
	"fmt"
	"net/netip"
)

// Config is one network configuration.
type Config struct {
	// EnableIPv4 is true by default; EnableIPv6 and EnableNFTables are false.
	EnableIPv4, EnableIPv6, EnableNFTables bool
	// Network and IPv6Network are the ranges of all pods, masked; invalid if absent.
	Network, IPv6Network netip.Prefix
	// Subnets4 and Subnets6 are the subnets that the etcd store gives to nodes.
	Subnets4, Subnets6 Subnets
	// Backend connects the nodes. It is VXLAN if the configuration has none; then BackendDefaulted is set.
	Backend          Backend
	BackendDefaulted bool
}

// Subnets are the possible subnets of nodes. Zero values mean flannel's defaults until Etcd sets them.
type Subnets struct {
	// Len is the prefix length of a node's subnet.
	Len int
	// Min and Max are the network addresses of the first and the last subnet.
	Min, Max netip.Addr
}

// Backend is one of VXLAN, HostGW, WireGuard, IPIP, Alloc, Extension.
type Backend interface {
	// Type is the name in the configuration, in lower case.
	Type() string
}

// VXLAN connects nodes by VXLAN tunnels.
type VXLAN struct {
	// VNI is the network identifier, 1 by default.
	VNI uint32
	// Port is the UDP port; 0 is the kernel's, 8472.
	Port uint16
	// MTU is the outer MTU; 0 is the MTU of the external interface.
	MTU int
	// GBP sends packet marks with the group-based policy extension. Learning lets the device learn from packets.
	GBP, Learning bool
	// DirectRouting routes without a tunnel if the peer is on the same link.
	DirectRouting bool
}

// HostGW connects nodes by routes to each other's addresses, on one link.
type HostGW struct{}

// WireGuard connects nodes by WireGuard tunnels.
type WireGuard struct {
	// ListenPort and ListenPort6 are 51820 and 51821 by default.
	ListenPort, ListenPort6 uint16
	// MTU is the outer MTU; 0 is the MTU of the external interface.
	MTU int
	// PSK is a preshared key in base64; empty: none.
	PSK string
	// Keepalive is in seconds; 0 is off.
	Keepalive int
	// Mode is separate, auto, ipv4 or ipv6.
	Mode WireGuardMode
}

// WireGuardMode selects the tunnels and their outer families.
type WireGuardMode string

// The modes of the WireGuard backend.
const (
	ModeSeparate WireGuardMode = "separate"
	ModeAuto     WireGuardMode = "auto"
	ModeIPv4     WireGuardMode = "ipv4"
	ModeIPv6     WireGuardMode = "ipv6"
)

// IPIP connects nodes by IP-in-IP tunnels.
type IPIP struct {
	// DirectRouting routes without a tunnel if the peer is on the same link.
	DirectRouting bool
}

// Alloc acquires a subnet and connects nothing.
type Alloc struct{}

// Extension runs the administrator's commands.
type Extension struct {
	PreStartup, PostStartup, SubnetAdd, SubnetRemove string
}

// Type implements Backend.
func (VXLAN) Type() string { return "vxlan" }

// kernelPort is the kernel's default VXLAN port.
const kernelPort = 8472

// UDPPort is the port, or the kernel's.
func (b VXLAN) UDPPort() uint16 { return cmp.Or(b.Port, kernelPort) }

// TunnelPorts returns the UDP ports at which a node with this backend receives tunnels' packets.
func TunnelPorts(b Backend) []uint16 {
	switch b := b.(type) {
	case VXLAN:
		return []uint16{b.UDPPort()}
	case WireGuard:
		return []uint16{b.ListenPort, b.ListenPort6}
	default:
		return nil
	}
}

// Type implements Backend.
func (HostGW) Type() string { return "host-gw" }

// Type implements Backend.
func (WireGuard) Type() string { return "wireguard" }

// Type implements Backend.
func (IPIP) Type() string { return "ipip" }

// Type implements Backend.
func (Alloc) Type() string { return "alloc" }

// Type implements Backend.
func (Extension) Type() string { return "extension" }

const (
	defaultVNI           = 1
	maxVNI               = 1<<24 - 1
	defaultListenPort    = 51820
	defaultListenPort6   = 51821
	minMTU               = 576 // RFC 791: every host accepts it; a tunnel with less is a mistake
	maxMTU               = 65535
	maxKeepalive         = 65535 // the kernel's u16, seconds
	bits4, bits6         = 32, 128
	networkToSubnet      = 2 // a network holds at least four subnets
	longestSubnet4       = 30
	longestSubnet6       = 126
	usualSubnet4         = 24
	usualSubnet6         = 64
	longestNetworkFactor = 2
)

// Etcd returns the configuration with the subnets set and checked as the etcd store needs them. The Kubernetes store uses the nodes'
// subnets and does not call it.
func (c Config) Etcd() (Config, error) {
	if !c.EnableIPv4 && !c.EnableIPv6 {
		return Config{}, fmt.Errorf("EnableIPv4 and EnableIPv6 are both false: at least one is needed")
	}
	var err error
	if c.EnableIPv4 {
		f := family{"", c.Network, longestSubnet4, usualSubnet4}
		if c.Subnets4, err = c.Subnets4.complete(f); err != nil {
			return Config{}, err
		}
	}
	if c.EnableIPv6 {
		f := family{"IPv6", c.IPv6Network, longestSubnet6, usualSubnet6}
		if c.Subnets6, err = c.Subnets6.complete(f); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

// family has what the check of subnets needs of one family.
type family struct {
	prefix         string // of the keys
	network        netip.Prefix
	longest, usual int
}

func (s Subnets) complete(f family) (Subnets, error) {
	if !f.network.IsValid() {
		return Subnets{}, fmt.Errorf("%sNetwork is missing: the etcd store needs the range of all pods, such as 10.244.0.0/16", f.prefix)
	}
	bits := f.network.Bits()
	switch {
	case s.Len == 0 && bits+networkToSubnet > f.longest:
		return Subnets{}, fmt.Errorf("%sNetwork %s is too small: the longest that holds four subnets is a /%d",
			f.prefix, f.network, f.longest-longestNetworkFactor)
	case s.Len == 0:
		s.Len = max(f.usual, bits+networkToSubnet)
	case s.Len > f.longest:
		return Subnets{}, fmt.Errorf("%sSubnetLen %d is too long: at most %d leaves addresses for pods", f.prefix, s.Len, f.longest)
	case s.Len < bits+networkToSubnet:
		return Subnets{}, fmt.Errorf("%sSubnetLen %d: %sNetwork %s must hold at least four subnets, so at least %d",
			f.prefix, s.Len, f.prefix, f.network, bits+networkToSubnet)
	}
	if !s.Min.IsValid() {
		s.Min = second(f.network, s.Len)
	}
	if !s.Max.IsValid() {
		s.Max = netip.PrefixFrom(last(f.network), s.Len).Masked().Addr()
	}
	for _, bound := range []struct {
		key  string
		addr netip.Addr
	}{{"SubnetMin", s.Min}, {"SubnetMax", s.Max}} {
		if !f.network.Contains(bound.addr) {
			return Subnets{}, fmt.Errorf("%s%s %s is outside %sNetwork %s", f.prefix, bound.key, bound.addr, f.prefix, f.network)
		}
		if aligned := netip.PrefixFrom(bound.addr, s.Len).Masked().Addr(); aligned != bound.addr {
			return Subnets{}, fmt.Errorf("%s%s %s is not the first address of a /%d; %s is", f.prefix, bound.key, bound.addr, s.Len, aligned)
		}
	}
	if s.Max.Less(s.Min) {
		return Subnets{}, fmt.Errorf("%sSubnetMax %s is below %sSubnetMin %s", f.prefix, s.Max, f.prefix, s.Min)
	}
	return s, nil
}

// second returns the network address of the second subnet of a length: flannel does not use the first.
func second(network netip.Prefix, length int) netip.Addr {
	raw := network.Masked().Addr().AsSlice()
	raw[(length-1)/8] |= 1 << (7 - (length-1)%8)
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}

// last returns the last address of a range.
func last(network netip.Prefix) netip.Addr {
	raw := network.Masked().Addr().AsSlice()
	for bit := network.Bits(); bit < len(raw)*8; bit++ {
		raw[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}
