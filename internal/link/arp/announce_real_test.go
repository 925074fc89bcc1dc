//go:build real

package arp_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/arp"
	"weft.dev/weft/internal/link/nstest"
)

// A neighbour with an old entry for the address updates it at once.
func TestAnnounceMovesNeighbours(t *testing.T) {
	here, there := nstest.New(t), nstest.New(t)
	address := netip.MustParseAddr("192.0.2.100")
	old, mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	nstest.Do(t, here, func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtnear", HardwareAddr: mac}, PeerName: "wtfar"}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		return netlink.LinkSetUp(pair)
	})
	move(t, here, there, "wtfar")
	var index int
	nstest.Do(t, there, func() error {
		far, err := netlink.LinkByName("wtfar")
		if err != nil {
			return err
		}
		index = far.Attrs().Index
		if err := netlink.LinkSetUp(far); err != nil {
			return err
		}
		if err := netlink.AddrAdd(far, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 9), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: address.AsSlice(), HardwareAddr: old, State: netlink.NUD_STALE})
	})
	nstest.Do(t, here, func() error {
		return within(func() error { // until then packets are lost
			near, err := netlink.LinkByName("wtnear")
			if err == nil && near.Attrs().OperState != netlink.OperUp {
				err = fmt.Errorf("the device is %s", near.Attrs().OperState)
			}
			return err
		})
	})
	nstest.Do(t, here, func() error { return arp.Announce("wtnear", address) })
	nstest.Do(t, there, func() error {
		return within(func() error {
			list, err := netlink.NeighList(index, unix.AF_INET)
			if err != nil {
				return err
			}
			for _, n := range list {
				if n.IP.Equal(address.AsSlice()) && bytes.Equal(n.HardwareAddr, mac) {
					return nil
				}
			}
			return fmt.Errorf("neighbours are %v", list)
		})
	})
}

// within waits until a condition holds that the kernel brings about asynchronously.
func within(condition func() error) error {
	deadline := time.After(60 * time.Second)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-deadline:
			return err
		case <-ticker.C:
		}
	}
}
