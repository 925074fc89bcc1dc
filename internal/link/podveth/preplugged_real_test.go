//go:build real

package podveth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/link/podlink"
)

func prepluggedPairs(count int) []podlink.Preplugged {
	pairs := make([]podlink.Preplugged, 0, count)
	for i := range count {
		pairs = append(pairs, podlink.Preplugged{Name: fmt.Sprintf("wts%d", i), MTU: 1450, HostGroup: 77, TxOffloadOff: true})
	}
	return pairs
}

// inNamespace runs work with a handle of the namespace at path.
func inNamespace(t *testing.T, path string, work func(h *netlink.Handle) error) {
	t.Helper()
	nstest.Do(t, path, func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		return work(h)
	})
}

// prepluggedPair is testPair's pod on the first pre-plugged port.
func prepluggedPair(netns, ports string) podlink.Pair {
	pair := testPair(netns, 2)
	pair.HostName, pair.Preplugged = "wts0", ports
	return pair
}

func wantPreplugged(t *testing.T, pods *Pods, ports string, idle ...bool) {
	t.Helper()
	found, err := pods.ListPreplugged(context.Background(), ports)
	if err != nil || len(found) != len(idle) {
		t.Fatalf("ListPreplugged: %v, %v; want %d", found, err, len(idle))
	}
	for i, want := range idle {
		if got := found[fmt.Sprintf("wts%d", i)]; got.Idle != want || got.MTU != 1450 {
			t.Errorf("wts%d: %+v, want idle %v", i, got, want)
		}
	}
}

func TestPrepluggedRealLifecycle(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	ports, first, second := nstest.New(t), nstest.New(t), nstest.New(t)
	if err := pods.CreatePreplugged(ctx, ports, prepluggedPairs(3)...); err != nil {
		t.Fatal(err)
	}
	wantPreplugged(t, pods, ports, true, true, true)
	if err := pods.CreatePreplugged(ctx, ports, prepluggedPairs(4)...); err == nil {
		t.Error("made again over those that are there")
	}
	wantPreplugged(t, pods, ports, true, true, true)

	pair := prepluggedPair(first, ports)
	if err := pods.Check(ctx, pair); err == nil {
		t.Fatal("Check found an interface that was not made")
	}
	before := newLinkSettings(t, first)
	created, err := pods.Create(ctx, pair)
	if err != nil {
		t.Fatal(err)
	}
	if created.PodMAC.String() != pair.PodMAC.String() || created.HostIndex == 0 || created.PodIndex == 0 || len(created.HostMAC) != 6 {
		t.Errorf("created %+v", created)
	}
	if after := newLinkSettings(t, first); after != before {
		t.Errorf("links that others make in the pod begin with %s, not with %s", after, before)
	}
	for range 2 {
		if err := pods.Check(ctx, pair); err != nil {
			t.Fatal(err)
		}
		if again, err := pods.Create(ctx, pair); err != nil || again.PodIndex != created.PodIndex {
			t.Fatalf("second Create: %+v, %v", again, err)
		}
	}
	wantPreplugged(t, pods, ports, false, true, true)
	checkOffloads(t, ports, pair.HostName)

	other := prepluggedPair(second, ports)
	if _, err := pods.Create(ctx, other); !errors.Is(err, podlink.ErrOccupied) {
		t.Errorf("a second pod on it: %v", err)
	}
	if err := pods.Unplug(ctx, other, func() {}); !errors.Is(err, podlink.ErrOccupied) {
		t.Errorf("Unplug of a pod that is not on it: %v", err)
	}
	if err := pods.Check(ctx, pair); err != nil {
		t.Errorf("after another pod's trial: %v", err)
	}
	for range 2 {
		if err := pods.Unplug(ctx, pair, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	wantPreplugged(t, pods, ports, true, true, true)
	if _, err := pods.Create(ctx, other); err != nil {
		t.Fatal(err)
	}
	if err := pods.Check(ctx, other); err != nil {
		t.Error(err)
	}
	if err := pods.Delete(ctx, "wts0", "wts1", "wts2"); err != nil {
		t.Fatal(err)
	}
	wantPreplugged(t, pods, ports)
	inNamespace(t, second, func(h *netlink.Handle) error {
		if _, err := h.LinkByName("eth0"); err == nil {
			t.Error("the pod's interface outlives its port")
		}
		return nil
	})
}

// What a pod with rights over its namespace does to its interface does not free the port, and affects nothing of the next pod's.
func TestPrepluggedRealHostilePod(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	ports, pod, next := nstest.New(t), nstest.New(t), nstest.New(t)
	if err := pods.CreatePreplugged(ctx, ports, prepluggedPairs(1)...); err != nil {
		t.Fatal(err)
	}
	pair := prepluggedPair(pod, ports)
	if _, err := pods.Create(ctx, pair); err != nil {
		t.Fatal(err)
	}
	inNamespace(t, pod, func(h *netlink.Handle) error {
		eth0, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		second := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mine", ParentIndex: eth0.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE}
		if err := h.LinkAdd(second); err == nil {
			t.Error("the pod has a second interface on its port")
		}
		return errors.Join(h.LinkSetDown(eth0), h.LinkSetName(eth0, "hidden")) // the veth peer shows nothing of it
	})
	if err := pods.Unplug(ctx, pair, func() {}); !errors.Is(err, podlink.ErrOccupied) {
		t.Errorf("Unplug of a hidden interface: %v", err)
	}
	other := prepluggedPair(next, ports)
	other.PodMAC = net.HardwareAddr{0x0a, 0x58, 10, 128, 9, 9}
	if _, err := pods.Create(ctx, other); !errors.Is(err, podlink.ErrOccupied) || !errors.Is(err, podlink.ErrUnusable) {
		t.Errorf("the next pod on it: %v", err)
	}
	inNamespace(t, pod, func(h *netlink.Handle) error {
		hidden, err := h.LinkByName("hidden")
		if err == nil && hidden.Attrs().HardwareAddr.String() == other.PodMAC.String() {
			t.Error("the hidden interface has the next pod's address")
		}
		return err
	})
}

// A missing port, and a missing namespace of ports, are distinguished from a missing namespace of the pod.
func TestPrepluggedRealGone(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	pod := nstest.New(t)
	if err := pods.CreatePreplugged(ctx, "/run/netns/wt-never", prepluggedPairs(1)...); !errors.Is(err, link.ErrNoNamespace) {
		t.Errorf("CreatePreplugged: %v", err)
	}
	if found, err := pods.ListPreplugged(ctx, "/run/netns/wt-never"); err != nil || len(found) != 0 {
		t.Errorf("ListPreplugged: %v, %v", found, err)
	}
	if _, err := pods.Create(ctx, prepluggedPair(pod, "/run/netns/wt-never")); !errors.Is(err, podlink.ErrUnusable) || errors.Is(err, link.ErrNoNamespace) {
		t.Errorf("Create: %v", err)
	}
	if err := pods.Unplug(ctx, prepluggedPair(pod, "/run/netns/wt-never"), func() {}); !errors.Is(err, link.ErrNoDevice) {
		t.Errorf("Unplug: %v", err)
	}
	ports := nstest.New(t)
	if _, err := pods.Create(ctx, prepluggedPair(pod, ports)); !errors.Is(err, link.ErrNoDevice) {
		t.Errorf("Create: %v", err)
	}
	if err := pods.Unplug(ctx, prepluggedPair(pod, ports), func() {}); !errors.Is(err, link.ErrNoDevice) {
		t.Errorf("Unplug: %v", err)
	}
	if err := pods.CreatePreplugged(ctx, ports, prepluggedPairs(1)...); err != nil {
		t.Fatal(err)
	}
	if err := pods.Unplug(ctx, prepluggedPair("/run/netns/wt-never", ports), func() {}); err != nil {
		t.Errorf("Unplug of a pod whose namespace is gone: %v", err)
	}
	if err := pods.Unplug(ctx, prepluggedPair("/etc/passwd", ports), func() {}); err != nil {
		t.Errorf("Unplug of a pod whose namespace never was: %v", err)
	}
}
