package engines

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/overlay"
)

// Facts returns what the overlay needs to know of the node, except for the datapath: the interface with its address.
func (k *Kernel) Facts(address netip.Addr) (overlay.Node, error) {
	uplink, network, err := linkWith(address)
	if err != nil {
		return overlay.Node{}, err
	}
	k.links.Attend(uplink.Attrs().Name)
	return overlay.Node{Uplink: uplink.Attrs().Name, MTU: uplink.Attrs().MTU, Network: network}, nil
}

// dumpAttempts bounds how often the kernel's addresses are listed again because the list changed during the dump. While pods are created
// and deleted, it does so nearly every time. The entries of an interrupted dump are still used.
const dumpAttempts = 10

// linkWith returns the interface that has an address, and the prefix of the address there.
func linkWith(address netip.Addr) (netlink.Link, netip.Prefix, error) {
	for attempt := 1; ; attempt++ {
		all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, netip.Prefix{}, fmt.Errorf("addresses of this node: %w", err)
		}
		at := slices.IndexFunc(all, func(have netlink.Addr) bool {
			ip, ok := netip.AddrFromSlice(have.IP)
			return ok && ip.Unmap() == address
		})
		switch {
		case at >= 0:
			link, err := netlink.LinkByIndex(all[at].LinkIndex)
			if err != nil {
				return nil, netip.Prefix{}, fmt.Errorf("interface with address %s: %w", address, err)
			}
			bits, _ := all[at].Mask.Size()
			return link, netip.PrefixFrom(address, bits).Masked(), nil
		case err == nil:
			return nil, netip.Prefix{}, fmt.Errorf("hostIP %s: no interface of this node has it; the Node's first IPv4 InternalIP must be an address of the node", address)
		case attempt == dumpAttempts:
			return nil, netip.Prefix{}, fmt.Errorf("addresses of this node: %w", err)
		}
	}
}
