package fib

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
)

// OtherAddresses returns the IPv4 addresses of this network namespace, on any device, that are not [link.Address] items: other programs added
// them.
func OtherAddresses() (map[netip.Addr]struct{}, error) {
	list, err := rtnetlink.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	others := map[netip.Addr]struct{}{}
	for _, have := range list {
		if have.Label != link.AddressLabel {
			others[rtnetlink.ToPrefix(have.IPNet).Addr()] = struct{}{}
		}
	}
	return others, nil
}

// HoldsAddress reports whether this network namespace has an address as an [link.Address] item. It returns false if the addresses cannot be
// listed.
func HoldsAddress(address netip.Addr) bool {
	list, err := rtnetlink.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	return err == nil && slices.ContainsFunc(list, func(have netlink.Addr) bool {
		return have.Label == link.AddressLabel && rtnetlink.ToPrefix(have.IPNet).Addr() == address
	})
}
