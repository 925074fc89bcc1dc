package link

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Resolve has the kernel find anew, without waiting, the neighbours that packets to the addresses go by: the addresses
// themselves, or the gateways on the way. A userspace datapath learns its tunnels' neighbours from the answers; it drops
// the packet that makes it ask by itself, and a pod then waits a second for its own next try.
// Packets that the kernel has for a neighbour meanwhile wait in its queue. An address without a route is an error, and
// keeps no other.
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
		// Gone first: the kernel asks about none that it believes to know.
		if err := netlink.NeighDel(neighbour); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forgetting it: %w", err)
		}
		neighbour.State, neighbour.Flags = netlink.NUD_NONE, netlink.NTF_USE
		if err := netlink.NeighSet(neighbour); err != nil {
			return fmt.Errorf("asking for it: %w", err)
		}
	}
	return nil
}
