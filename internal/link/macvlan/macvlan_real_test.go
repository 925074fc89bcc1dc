//go:build real

package macvlan_test

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/podveth"
)

func TestMacvlan(t *testing.T) {
	node, first, second := nstest.New(t), nstest.New(t), nstest.New(t)
	var pods *podveth.Pods
	nstest.Do(t, node, func() error {
		uplink := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtup", MTU: 1400}, PeerName: "wtfar"}
		if err := netlink.LinkAdd(uplink); err != nil {
			return err
		}
		for i, address := range []string{"192.0.2.1/24", "192.0.2.2/32"} {
			parsed, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			if i == 1 {
				parsed.Label = link.AddressLabel
			}
			if err := netlink.AddrAdd(uplink, parsed); err != nil {
				return err
			}
		}
		for _, name := range []string{"wtup", "wtfar"} {
			device, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetUp(device)
			}
			if err != nil {
				return err
			}
		}
		var err error
		pods, err = podveth.New()
		return err
	})
	defer pods.Close()
	ctx := t.Context()
	if _, err := pods.MacvlanParent(ctx, ""); !errors.Is(err, link.ErrNoDevice) || !strings.Contains(err.Error(), "default route") {
		t.Errorf("without a default route: %v", err)
	}
	if _, err := pods.MacvlanParent(ctx, "wtnone"); !errors.Is(err, link.ErrNoDevice) {
		t.Errorf("a device that is not there: %v", err)
	}
	nstest.Do(t, node, func() error {
		return netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 9)})
	})
	for _, name := range []string{"", "wtup"} {
		parent, err := pods.MacvlanParent(ctx, name)
		if err != nil || parent.Name != "wtup" || parent.MTU != 1400 || !slices.Equal(parent.Addresses, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) {
			t.Errorf("%q: %+v, %v", name, parent, err)
		}
	}
	nstest.Do(t, node, func() error {
		far, err := netlink.LinkByName("wtfar")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetGroup(far, 77), netlink.LinkSetAlias(far, link.AliasPrefix+"cluster"))
	})
	for name, want := range map[string]podlink.MacvlanParent{"lo": {Loopback: true}, "wtfar": {Group: 77, Weft: true}, "wtup": {}} {
		parent, err := pods.MacvlanParent(ctx, name)
		if err != nil || parent.Loopback != want.Loopback || parent.Group != want.Group || parent.Weft != want.Weft {
			t.Errorf("%s: %+v, %v", name, parent, err)
		}
	}
	of := func(space, owner string) podlink.Macvlan {
		return podlink.Macvlan{Netns: space, Name: "macvlan0", Parent: "wtup", Owner: owner}
	}
	macs := map[string]bool{}
	for _, m := range []podlink.Macvlan{of(first, "a"), of(second, "b"), of(first, "a")} {
		mac, err := pods.CreateMacvlan(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		macs[mac.String()] = true
		if err := pods.CheckMacvlan(ctx, m); err != nil {
			t.Error(err)
		}
	}
	if len(macs) != 2 {
		t.Errorf("MACs %v", macs)
	}
	nstest.Do(t, first, func() error {
		have, err := netlink.LinkByName("macvlan0")
		if err != nil {
			return err
		}
		macvlan, ok := have.(*netlink.Macvlan)
		if !ok || macvlan.Mode != netlink.MACVLAN_MODE_PRIVATE || macvlan.MTU != 1400 || macvlan.Flags&net.FlagUp == 0 {
			t.Errorf("%+v", have)
		}
		return netlink.LinkSetDown(have)
	})
	var different *podlink.Difference
	if err := pods.CheckMacvlan(ctx, of(first, "a")); !errors.As(err, &different) || !strings.Contains(err.Error(), "is down") {
		t.Errorf("down: %v", err)
	}
	if _, err := pods.CreateMacvlan(ctx, of(first, "c")); !errors.Is(err, link.ErrForeign) {
		t.Errorf("another's: %v", err)
	}
	if err := pods.DeleteMacvlan(ctx, of(first, "c")); err != nil {
		t.Error(err)
	}
	if _, err := pods.CreateMacvlan(ctx, of(first, "a")); err != nil {
		t.Error(err)
	}
	if err := pods.CheckMacvlan(ctx, of(first, "a")); err != nil {
		t.Errorf("another's deletion, or none that is completed: %v", err)
	}
	for _, mtu := range []int{1300, 0} {
		m := of(first, "a")
		m.MTU = mtu
		if _, err := pods.CreateMacvlan(ctx, m); err != nil {
			t.Error(err)
		}
		nstest.Do(t, first, func() error {
			have, err := netlink.LinkByName("macvlan0")
			if want := cmp.Or(mtu, 1400); err == nil && have.Attrs().MTU != want {
				t.Errorf("MTU %d, want %d", have.Attrs().MTU, want)
			}
			return err
		})
	}
	for range 2 {
		if err := pods.DeleteMacvlan(ctx, of(first, "a")); err != nil {
			t.Error(err)
		}
	}
	if err := pods.CheckMacvlan(ctx, of(first, "a")); !errors.As(err, &different) {
		t.Errorf("deleted: %v", err)
	}
	if err := pods.DeleteMacvlan(ctx, of(first+"-gone", "a")); err != nil {
		t.Errorf("without its namespace: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("no namespace"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pods.DeleteMacvlan(ctx, of(file, "a")); err != nil {
		t.Errorf("something else where its namespace was: %v", err)
	}
	if _, err := pods.CreateMacvlan(ctx, of(first+"-gone", "a")); !errors.Is(err, link.ErrNoNamespace) {
		t.Errorf("into no namespace: %v", err)
	}
}
