package link

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ForgetUDP has the kernel forget the connections of this network namespace to UDP ports of its own, at one of its addresses or, where
// none is given, at all. An address that is not the namespace's own has none.
func ForgetUDP(ports ...netip.AddrPort) error {
	if len(ports) == 0 {
		return nil
	}
	own, err := ownAddresses()
	if err != nil {
		return fmt.Errorf("forgetting the connections to UDP ports: %w", err)
	}
	if err := forget(toUDP{ports, own}); err != nil {
		return fmt.Errorf("forgetting the connections to UDP ports %v: %w", ports, err)
	}
	return nil
}

// forget has the kernel forget the connections that a filter finds. Those of a switch's zones are the switch's.
func forget(filter netlink.CustomConntrackFilter) error {
	_, err := dump(func() ([]struct{}, error) {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, hosts{filter})
		return nil, err
	})
	return err
}

// hosts finds what a filter finds of the host's own zone.
type hosts struct{ netlink.CustomConntrackFilter }

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (h hosts) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return flow.Zone == 0 && h.CustomConntrackFilter.MatchConntrackFlow(flow)
}

// ownAddresses returns the addresses of all devices of this network namespace.
func ownAddresses() (map[netip.Addr]bool, error) {
	all, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	own := make(map[netip.Addr]bool, len(all))
	for _, address := range all {
		own[toAddr(address.IP)] = true
	}
	return own, err
}

// toUDP finds connections to UDP ports of own addresses.
type toUDP struct {
	ports []netip.AddrPort
	own   map[netip.Addr]bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (u toUDP) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to := toAddr(flow.Forward.DstIP)
	if flow.Forward.Protocol != unix.IPPROTO_UDP || !u.own[to] && !to.IsLoopback() {
		return false
	}
	return slices.ContainsFunc(u.ports, func(port netip.AddrPort) bool {
		return port.Port() == flow.Forward.DstPort && (!port.Addr().IsValid() || port.Addr() == to)
	})
}

// ForgetLedTo has the kernel forget the connections of this network namespace that are led to an address for which they were not. All
// addresses cost one look at the table.
func ForgetLedTo(addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	to := make(ledTo, len(addresses))
	for _, address := range addresses {
		to[address] = true
	}
	if err := forget(to); err != nil {
		return fmt.Errorf("forgetting the connections that are led to %v: %w", addresses, err)
	}
	return nil
}

// ledTo finds connections whose destination is translated to one of the addresses.
type ledTo map[netip.Addr]bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (l ledTo) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return l[toAddr(flow.Reverse.SrcIP)] && !flow.Forward.DstIP.Equal(flow.Reverse.SrcIP)
}
