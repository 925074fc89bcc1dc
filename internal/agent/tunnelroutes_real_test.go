//go:build real

package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/openflow/ovstest"
)

// underlay is a node whose address is on a userspace bridge, as a test has it.
type underlay struct {
	*ovstest.Switch
	bridge string
	routes *tunnelRoutes
}

func newUnderlay(t *testing.T) *underlay {
	t.Helper()
	s := ovstest.Start(t)
	u := &underlay{s, s.Name("br"), newTunnelRoutes(s.RunDir, slog.New(slog.DiscardHandler))}
	u.routes.socket = filepath.Join(s.RunDir, "vswitchd*.ctl")
	s.AddBridge(u.bridge)
	u.place(t)
	return u
}

// place puts addresses and routes on the bridge, as the node's network configuration does.
func (u *underlay) place(t *testing.T) {
	t.Helper()
	u.inside(t, func() error {
		device, err := netlink.LinkByName(u.bridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(device); err != nil {
			return err
		}
		address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1).To4(), Mask: net.CIDRMask(24, 32)}}
		if err := netlink.AddrReplace(device, address); err != nil {
			return err
		}
		return u.routeVia(device.Attrs().Index, 254)
	})
}

// routeVia routes another network by a router.
func (u *underlay) routeVia(index int, router byte) error {
	return netlink.RouteReplace(&netlink.Route{
		LinkIndex: index, Dst: &net.IPNet{IP: net.IPv4(198, 51, 100, 0).To4(), Mask: net.CIDRMask(24, 32)}, Gw: net.IPv4(192, 0, 2, router).To4(),
	})
}

func (u *underlay) inside(t *testing.T, do func() error) {
	t.Helper()
	if err := u.NetNS.Do(func(ns.NetNS) error { return do() }); err != nil {
		t.Fatal(err)
	}
}

func (u *underlay) sync(t *testing.T, ends ...string) {
	t.Helper()
	u.inside(t, func() error {
		var err error
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
			if err = u.routes.sync(t.Context(), addrs(ends...)); err == nil {
				return nil
			}
		}
		return err
	})
}

// has fails the test unless the switch's own routes are those, each "to" or "to via".
func (u *underlay) has(t *testing.T, want ...string) {
	t.Helper()
	wanted := map[netip.Addr]switchRoute{}
	for _, text := range want {
		end, gateway, far := strings.Cut(text, " ")
		route := switchRoute{device: u.bridge, source: netip.MustParseAddr("192.0.2.1")}
		if far {
			route.gateway = netip.MustParseAddr(gateway)
		}
		wanted[netip.MustParseAddr(end)] = route
	}
	shown := u.AppCtl("ovs/route/show")
	if got := userRoutes(shown); !maps.Equal(got, wanted) {
		t.Fatalf("want %v, the switch has\n%s", want, shown)
	}
}

func TestSwitchHasTunnelRoutes(t *testing.T) {
	u := newUnderlay(t)
	if u.AppCtl("ovs/route/add", "192.0.2.77/32", u.bridge); t.Failed() {
		return
	}
	u.sync(t, "192.0.2.2", "198.51.100.3")
	u.has(t, "192.0.2.2", "198.51.100.3 192.0.2.254", "192.0.2.77")
	u.sync(t, "192.0.2.2", "198.51.100.3")
	u.sync(t, "198.51.100.3")
	u.has(t, "198.51.100.3 192.0.2.254", "192.0.2.77")

	u.inside(t, func() error {
		device, err := netlink.LinkByName(u.bridge)
		if err != nil {
			return err
		}
		return u.routeVia(device.Attrs().Index, 253)
	})
	u.sync(t, "198.51.100.3")
	u.has(t, "198.51.100.3 192.0.2.253", "192.0.2.77")

	u.Stop("ovs-vswitchd", true)
	u.StartVSwitchd()
	u.has(t)
	u.place(t)
	u.sync(t, "192.0.2.2", "198.51.100.3")
	u.has(t, "192.0.2.2", "198.51.100.3 192.0.2.254")
	if err := u.routes.state(); err != nil {
		t.Error(err)
	}
}

// A tunnel out of a device that is not the switch's own cannot be: that is told, and no route is set.
func TestTunnelOutOfAnotherDevice(t *testing.T) {
	u := newUnderlay(t)
	u.inside(t, func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtup"}, PeerName: "wtdown"}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		device, err := netlink.LinkByName("wtup")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(device); err != nil {
			return err
		}
		return netlink.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(203, 0, 113, 1).To4(), Mask: net.CIDRMask(24, 32)}})
	})
	u.sync(t, "192.0.2.2", "203.0.113.2")
	u.has(t, "192.0.2.2")
	if err := u.routes.state(); err == nil || !strings.Contains(fmt.Sprint(err), "wtup") {
		t.Errorf("state: %v", err)
	}
	u.sync(t, "192.0.2.2")
	if err := u.routes.state(); err != nil {
		t.Errorf("state: %v", err)
	}
}
