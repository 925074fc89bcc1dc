//go:build real

package arp_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link/arp"
	"weft.dev/weft/internal/link/fib"
	"weft.dev/weft/internal/link/nstest"
)

// An address that another host has is found by ARP, unless that host is the neighbour at a known address; an address that no host has is
// free.
func TestAddressConflict(t *testing.T) {
	here, there := nstest.New(t), nstest.New(t)
	taken, node, free := netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.101")
	up := func(name string, addresses ...netip.Addr) {
		device, err := netlink.LinkByName(name)
		if err != nil {
			t.Error(err)
			return
		}
		for _, address := range addresses {
			if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(24, 32)}}); err != nil {
				t.Error(err)
			}
		}
		if err := netlink.LinkSetUp(device); err != nil {
			t.Error(err)
		}
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	nstest.Do(t, here, func() error {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtnear"}, PeerName: "wtfar", PeerHardwareAddr: mac})
		up("wtnear", netip.MustParseAddr("192.0.2.1"))
		return err
	})
	move(t, here, there, "wtfar")
	nstest.Do(t, there, func() error { up("wtfar", node, taken); return nil })
	nstest.Do(t, here, func() error {
		near, err := netlink.LinkByName("wtnear")
		if err != nil {
			return err
		}
		if err := within(func() error {
			if near, err = netlink.LinkByName("wtnear"); err == nil && near.Attrs().OperState != netlink.OperUp {
				return fmt.Errorf("the device is %s", near.Attrs().OperState)
			}
			return err
		}); err != nil {
			return err
		}
		for address, want := range map[netip.Addr]string{taken: mac.String(), free: ""} {
			got, err := arp.AddressConflict("wtnear", address, []netip.Addr{node})
			if err != nil || got.String() != want {
				t.Errorf("%s: held by %q (%v), want %q", address, got, err, want)
			}
		}
		if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: near.Attrs().Index, IP: node.AsSlice(), HardwareAddr: mac, State: netlink.NUD_REACHABLE}); err != nil {
			return err
		}
		if got, err := arp.AddressConflict("wtnear", taken, []netip.Addr{node}); err != nil || got != nil {
			t.Errorf("a node's address: held by %q (%v), want no foreign host", got, err)
		}
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 254)}); err != nil {
			return err
		}
		gateways, err := fib.Gateways()
		if _, found := gateways[netip.MustParseAddr("192.0.2.254")]; !found || len(gateways) != 1 {
			t.Errorf("gateways are %v (%v)", gateways, err)
		}
		return nil
	})
}
