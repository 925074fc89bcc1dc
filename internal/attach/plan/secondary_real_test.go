//go:build real

package plan_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/podveth"
)

// A second interface of a pod on the same network has only its subnet's route. The first interface's routes are the same before, while
// and after the second exists.
func TestSecondInterfaceLeavesRoutes(t *testing.T) {
	home, pod := nstest.New(t), nstest.New(t)
	var pods *podveth.Pods
	nstest.Do(t, home, func() (err error) {
		pods, err = podveth.New()
		return err
	})
	defer pods.Close()
	settings := &plan.Settings{
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetworks: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}, HostGroup: 77,
	}
	pair := func(ifName, address, port string, secondary bool) podlink.Pair {
		rec := attach.Record{
			ContainerID: "c1", IfName: ifName, Netns: pod, HostInterface: port, MTU: 1450, Secondary: secondary, Created: time.Unix(1, 0),
			Addresses: []netip.Prefix{netip.MustParsePrefix(address)}, Gateway: []netip.Addr{netip.MustParseAddr("10.128.0.1")},
		}
		rec.MAC = plan.MAC(rec.Addresses).String()
		pair, err := plan.Pair(&rec, settings)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	first, second := pair("eth0", "10.128.0.2/23", "wtsa", false), pair("net1", "10.128.0.3/23", "wtsb", true)
	ctx := context.Background()
	for _, p := range []podlink.Pair{first, second} {
		if _, err := pods.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		if p.PodName == "eth0" {
			continue
		}
		if own := routesOf(t, pod, "net1"); !slices.Equal(own, []string{"10.128.0.0/23"}) {
			t.Errorf("routes of net1: %v", own)
		}
	}
	want := []string{"0.0.0.0/0", "10.128.0.0/14", "10.128.0.0/23", "172.30.0.0/16", "224.0.0.0/4"}
	for _, p := range []podlink.Pair{first, second} {
		if err := pods.Check(ctx, p); err != nil {
			t.Error(err)
		}
	}
	if have := routesOf(t, pod, "eth0"); !slices.Equal(have, want) {
		t.Errorf("routes of eth0 beside net1: %v, want %v", have, want)
	}
	if err := pods.Delete(ctx, second.HostName); err != nil {
		t.Fatal(err)
	}
	if have := routesOf(t, pod, "eth0"); !slices.Equal(have, want) {
		t.Errorf("routes of eth0 after net1: %v, want %v", have, want)
	}
}

// routesOf returns the destinations of a device's routes of the main table.
func routesOf(t *testing.T, netns, device string) (list []string) {
	t.Helper()
	nstest.Do(t, netns, func() error {
		dev, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		routes, err := netlink.RouteList(dev, netlink.FAMILY_V4)
		for _, r := range routes {
			list = append(list, r.Dst.String())
		}
		slices.Sort(list)
		return err
	})
	return list
}
