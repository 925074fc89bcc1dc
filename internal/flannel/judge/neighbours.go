package judge

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dropQueued drops the packets that wait in the kernel until the MAC addresses of these addresses are resolved on the bridge: some hundreds for
// an address, for seconds. They have passed the forward hook.
func dropQueued(kernel *netlink.Handle, bridge string, addresses []netip.Addr) error {
	link, err := kernel.LinkByName(bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	for _, address := range addresses {
		err := kernel.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: address.AsSlice()})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("bridge %s: remove the neighbour entry of %s: %w", bridge, address, err)
		}
	}
	return nil
}
