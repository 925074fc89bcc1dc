//go:build real

package link_test

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/nstest"
)

// A neighbour that knows the address elsewhere takes the new place over at once.
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
	nstest.Do(t, here, func() error { return link.Announce("wtnear", address) })
	nstest.Do(t, there, func() error {
		list, err := netlink.NeighList(index, unix.AF_INET)
		if err != nil {
			return err
		}
		for _, n := range list {
			if n.IP.Equal(address.AsSlice()) && bytes.Equal(n.HardwareAddr, mac) {
				return nil
			}
		}
		t.Errorf("neighbours are %v", list)
		return nil
	})
}
