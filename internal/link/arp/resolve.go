package arp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Resolve makes the kernel resolve again, without waiting, the neighbours for packets to the addresses: the addresses themselves, or the
// gateways. A userspace datapath learns its tunnels' neighbours from the ARP replies. It drops the packet for which it sends an ARP request
// itself, and a pod then waits a second for its retry. Packets for a neighbour that is being resolved wait in the kernel's queue. An
// address without a route is an error and does not affect the others.
func Resolve(addresses ...netip.Addr) error {
	var errs []error
	for _, address := range addresses {
		if err := resolve(address); err != nil {
			errs = append(errs, fmt.Errorf("neighbour for %s: %w", address, err))
		}
	}
	return errors.Join(errs...)
}

func resolve(address netip.Addr) error {
	routes, err := netlink.RouteGet(address.AsSlice())
	if err != nil {
		return fmt.Errorf("its route: %w", err)
	}
	for _, route := range routes {
		neighbour := &netlink.Neigh{LinkIndex: route.LinkIndex, IP: route.Gw}
		if neighbour.IP == nil {
			neighbour.IP = address.AsSlice()
		}
		// Deleted first: the kernel does not resolve a neighbour that it considers valid.
		if err := netlink.NeighDel(neighbour); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete its neighbour entry: %w", err)
		}
		neighbour.State, neighbour.Flags = netlink.NUD_NONE, netlink.NTF_USE
		if err := netlink.NeighSet(neighbour); err != nil {
			return fmt.Errorf("request its resolution: %w", err)
		}
	}
	return nil
}
