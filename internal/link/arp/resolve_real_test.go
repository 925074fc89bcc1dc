//go:build real

package arp_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link/arp"
	"weft.dev/weft/internal/link/nstest"
)

// neighbour waits until the kernel has a hardware address for an address, and returns it.
func neighbour(index int, address string) (net.HardwareAddr, error) {
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		list, err := netlink.NeighList(index, netlink.FAMILY_V4)
		if err != nil {
			return nil, err
		}
		for _, n := range list {
			if n.IP.String() == address && n.State&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY) != 0 {
				return n.HardwareAddr, nil
			}
		}
		<-time.After(5 * time.Millisecond)
	}
	return nil, fmt.Errorf("no neighbour %s", address)
}

// TestResolveFindsNeighboursAnew: also a neighbour for which the kernel has a wrong entry, and the gateway to a remote address.
func TestResolveFindsNeighboursAnew(t *testing.T) {
	here, there := nstest.New(t), nstest.New(t)
	var mac net.HardwareAddr
	nstest.Do(t, there, func() error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: "wtthere"})
		pair.PeerName = "wthere"
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		device, err := netlink.LinkByName("wtthere")
		if err != nil {
			return err
		}
		mac = device.Attrs().HardwareAddr
		if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 2), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		return netlink.LinkSetUp(device)
	})
	move(t, there, here, "wthere")
	nstest.Do(t, here, func() error {
		device, err := netlink.LinkByName("wthere")
		if err != nil {
			return err
		}
		index := device.Attrs().Index
		if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(device); err != nil {
			return err
		}
		wrong := &netlink.Neigh{
			LinkIndex: index, IP: net.IPv4(192, 0, 2, 2), State: netlink.NUD_REACHABLE, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		}
		if err := netlink.NeighSet(wrong); err != nil {
			return err
		}
		far := &netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: net.IPv4(198, 51, 100, 0), Mask: net.CIDRMask(24, 32)}, Gw: net.IPv4(192, 0, 2, 2)}
		if err := netlink.RouteAdd(far); err != nil {
			return err
		}
		if err := arp.Resolve(netip.MustParseAddr("198.51.100.7")); err != nil {
			return err
		}
		have, err := neighbour(index, "192.0.2.2")
		if err == nil && have.String() != mac.String() {
			err = fmt.Errorf("192.0.2.2 is at %s, want %s", have, mac)
		}
		return err
	})
	nstest.Do(t, here, func() error {
		if err := arp.Resolve(netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("192.0.2.2")); err == nil {
			return fmt.Errorf("an address without a route: no error")
		}
		return nil
	})
}

// move moves a device from one namespace to another.
func move(t *testing.T, from, to, name string) {
	t.Helper()
	handle, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	nstest.Do(t, from, func() error {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(device, int(handle.Fd()))
	})
}
