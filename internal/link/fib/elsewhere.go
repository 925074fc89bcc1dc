package fib

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Elsewhere returns how this network namespace routes packets to an address, or "" if by the named device or a default route. The
// namespace's own addresses are elsewhere, and so are addresses that its routes reject.
func Elsewhere(addr netip.Addr, except string) (string, error) {
	found, err := netlink.RouteGetWithOptions(net.IP(addr.AsSlice()), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case errors.Is(err, unix.ENETUNREACH):
		return "", nil
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EACCES):
		return fmt.Sprintf("the node's routes refuse %s", addr), nil
	case err != nil:
		return "", fmt.Errorf("looking up the route to %s: %w", addr, err)
	}
	for i := range found {
		route := &found[i]
		if route.Type == unix.RTN_LOCAL || route.Type == unix.RTN_BROADCAST {
			return fmt.Sprintf("%s is the node's own address", addr), nil
		}
		if route.Dst == nil {
			continue
		}
		if bits, _ := route.Dst.Mask.Size(); bits == 0 {
			continue
		}
		name := ""
		if device, err := netlink.LinkByIndex(route.LinkIndex); err == nil {
			name = device.Attrs().Name
		}
		if name != except {
			return fmt.Sprintf("the node routes %s by %s, device %q", addr, route.Dst, name), nil
		}
	}
	return "", nil
}
