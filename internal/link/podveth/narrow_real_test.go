//go:build real

package podveth

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/link/podlink"
)

// Linux has no IPv6 on a device with an MTU below 1280. Pods with such an MTU are created, checked and repaired like others, also when the
// MTU changes across that limit in either direction, with veths of their own and on pre-plugged ports.
func TestPodsRealNarrowMTU(t *testing.T) {
	pods, home := newPods(t)
	ctx := context.Background()
	pair := testPair(nstest.New(t), 2)
	for i, mtu := range []int{1279, 1280, 576, 1450} {
		pair.MTU = mtu
		for j := range pair.PodRoutes {
			pair.PodRoutes[j].MTU = 0
		}
		if _, err := pods.Create(ctx, pair); err != nil {
			t.Fatalf("MTU %d: %v", mtu, err)
		}
		if err := pods.Check(ctx, pair); err != nil {
			t.Errorf("MTU %d, change %d: %v", mtu, i, err)
		}
	}

	far, ports := nstest.New(t), nstest.New(t)
	pair = testPair(far, 3)
	pair.MTU, pair.Preplugged, pair.TxOffloadOff = 1000, ports, true
	preplugged := podlink.Preplugged{Name: pair.HostName, MTU: pair.MTU, HostGroup: 77, TxOffloadOff: true}
	if err := pods.CreatePreplugged(ctx, ports, preplugged); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(ctx, pair); err != nil {
		t.Fatal(err)
	}
	if err := pods.Check(ctx, pair); err != nil {
		t.Error(err)
	}

	v6 := testPair(nstest.New(t), 4)
	v6.MTU, v6.PodAddresses, v6.PodRoutes = 1279, []netip.Prefix{netip.MustParsePrefix("fd00::2/64")}, nil
	if _, err := pods.Create(ctx, v6); err == nil {
		t.Error("a pod with an IPv6 address and an MTU of 1279 was created")
	}
	nstest.Do(t, home, func() error {
		_, err := netlink.LinkByName(v6.HostName)
		if missing := (netlink.LinkNotFoundError{}); !errors.As(err, &missing) {
			t.Errorf("%s is left: %v", v6.HostName, err)
		}
		return nil
	})
}
