//go:build real

package fib_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/fib"
	"weft.dev/weft/internal/link/nstest"
)

// An address that a node reaches by a default route, by no route, or by the named device, is free; its own addresses and those that its
// other routes reach are not.
func TestElsewhere(t *testing.T) {
	nstest.Do(t, nstest.New(t), func() error {
		var errs []error
		parse := func(s string) *netlink.Addr {
			a, err := netlink.ParseAddr(s)
			errs = append(errs, err)
			return a
		}
		for name, addr := range map[string]string{"up": "192.168.7.5/24", "ours": "169.254.0.3/32"} {
			device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
			errs = append(errs, netlink.LinkAdd(device), netlink.LinkSetUp(device), netlink.AddrAdd(device, parse(addr)))
		}
		up, err := netlink.LinkByName("up")
		errs = append(errs, err)
		ours, err := netlink.LinkByName("ours")
		if errs = append(errs, err); errors.Join(errs...) != nil {
			return errors.Join(errs...)
		}
		errs = append(errs,
			netlink.RouteAdd(&netlink.Route{LinkIndex: ours.Attrs().Index, Dst: parse("10.244.0.5/32").IPNet, Scope: netlink.SCOPE_LINK}),
			netlink.RouteAdd(&netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: parse("10.8.0.0/16").IPNet}),
		)
		check := func(routes string, want map[string]bool) {
			for addr, wanted := range want {
				where, err := fib.Elsewhere(netip.MustParseAddr(addr), "ours")
				if err != nil || (where != "") != wanted {
					t.Errorf("%s: %s: %q, %v; want one: %v", routes, addr, where, err, wanted)
				}
			}
		}
		check("without a default route", map[string]bool{
			"10.244.0.5": false, "10.244.0.6": false, "192.168.7.5": true, "192.168.7.53": true, "192.168.7.255": true, "10.8.1.1": true, "169.254.0.3": true,
		})
		errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: parse("192.168.7.1/32").IP}))
		check("with a default route", map[string]bool{"10.244.0.5": false, "10.244.0.6": false, "192.168.7.53": true})
		return errors.Join(errs...)
	})
}
