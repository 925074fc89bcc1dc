//go:build real

package podveth

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/shaping"
)

func testShape() podlink.Shape {
	return podlink.Shape{
		Receive: podlink.Shaper{Rate: 1_250_000, Burst: 31_250, Queue: 125_000},
		Send:    podlink.Shaper{Rate: 625_000, Burst: 15_625, Queue: 62_500},
	}
}

// wantShapes compares the shapes of the ports of a namespace, and the number of ifb devices.
func wantShapes(t *testing.T, pods *Pods, ports string, want map[string]podlink.Shape) {
	t.Helper()
	have, err := pods.Shapes(context.Background(), ports)
	if err != nil || len(have) != len(want) {
		t.Fatalf("shapes %v, %v; want %v", have, err, want)
	}
	receivers := 0
	for name, shape := range want {
		if !shape.Matches(have[name]) {
			t.Errorf("%s: %s, want %s", name, have[name], shape)
		}
		if shape.Receive.Rate != 0 {
			receivers++
		}
	}
	inNamespace(t, ports, func(h *netlink.Handle) error {
		links, err := h.LinkList()
		for _, dev := range links {
			if dev.Type() == "ifb" {
				receivers--
			}
		}
		return err
	})
	if receivers != 0 {
		t.Errorf("%d ifb devices too few", receivers)
	}
}

func TestShapeRealLifecycle(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	ports, first, second := nstest.New(t), nstest.New(t), nstest.New(t)
	if err := pods.CreatePreplugged(ctx, ports, prepluggedPairs(1)...); err != nil {
		t.Fatal(err)
	}
	for _, shape := range []podlink.Shape{testShape(), {Receive: testShape().Receive}, {Send: testShape().Send}} {
		pair := prepluggedPair(first, ports)
		pair.Shape = shape
		if _, err := pods.Create(ctx, pair); err != nil {
			t.Fatal(err)
		}
		wantShapes(t, pods, ports, map[string]podlink.Shape{"wts0": shape})
		wantPreplugged(t, pods, ports, false)
		if err := pods.Check(ctx, pair); err != nil {
			t.Error(err)
		}
		if _, err := pods.Create(ctx, pair); err != nil { // repeated
			t.Error(err)
		}
		wantShapes(t, pods, ports, map[string]podlink.Shape{"wts0": shape})
		other := pair
		other.Shape.Send.Rate++
		if err := pods.Check(ctx, other); !errors.As(err, new(*podlink.Difference)) {
			t.Errorf("another rate: %v", err)
		}
		if err := pods.Unplug(ctx, pair, func() {}); err != nil {
			t.Fatal(err)
		}
		wantShapes(t, pods, ports, nil)
		wantPreplugged(t, pods, ports, true)
	}
	// A port with a leftover shape is not free; the shape is removed before another pod uses the port.
	if err := pods.Reshape(ctx, ports, "wts0", testShape()); err != nil {
		t.Fatal(err)
	}
	wantPreplugged(t, pods, ports, false)
	plain := prepluggedPair(second, ports)
	if _, err := pods.Create(ctx, plain); err != nil {
		t.Fatal(err)
	}
	wantShapes(t, pods, ports, nil)
	if err := pods.Check(ctx, plain); err != nil {
		t.Error(err)
	}
	// A leftover of a port that was deleted is reported, and can be removed.
	if err := errors.Join(pods.Reshape(ctx, ports, "wts0", testShape()), pods.Delete(ctx, "wts0")); err != nil {
		t.Fatal(err)
	}
	listed := func(count int) {
		t.Helper()
		if found, err := pods.ListPreplugged(ctx, ports); err != nil || len(found) != count {
			t.Errorf("ifb devices: %v, %v, want %d", found, err, count)
		}
	}
	listed(1)
	if found, err := pods.ListPreplugged(ctx, ports); err != nil || !found["wts0"].Gone {
		t.Errorf("ifb devices: %v, %v", found, err)
	}
	if err := pods.Reshape(ctx, ports, "wts0", testShape()); !errors.Is(err, link.ErrNoDevice) {
		t.Errorf("shaping what is gone: %v", err)
	}
	for range 2 {
		if err := pods.Reshape(ctx, ports, "wts0", podlink.Shape{}); err != nil {
			t.Error(err)
		}
	}
	listed(0)
	wantShapes(t, pods, ports, nil)
	// Without a namespace there is nothing to shape.
	if found, err := pods.Shapes(ctx, ports+"-none"); err != nil || len(found) != 0 {
		t.Errorf("without a namespace: %v, %v", found, err)
	}
	if err := pods.Reshape(ctx, ports+"-none", "wts0", podlink.Shape{}); err != nil {
		t.Error(err)
	}
	if err := pods.Reshape(ctx, ports+"-none", "wts0", testShape()); !errors.Is(err, link.ErrNoDevice) {
		t.Error(err)
	}
}

// A pod's own pair cannot be shaped: the pod could change it.
func TestShapeNeedsAPrepluggedPair(t *testing.T) {
	pods, _ := newPods(t)
	pair := testPair(nstest.New(t), 2)
	pair.Shape = testShape()
	if _, err := pods.Create(context.Background(), pair); !errors.Is(err, podlink.ErrUnshaped) {
		t.Error(err)
	}
}

// Every change of a shape by another program is detected and corrected.
func TestShapeRealDamage(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	ports, netns := nstest.New(t), nstest.New(t)
	if err := pods.CreatePreplugged(ctx, ports, prepluggedPairs(1)...); err != nil {
		t.Fatal(err)
	}
	pair := prepluggedPair(netns, ports)
	pair.Shape = testShape()
	if _, err := pods.Create(ctx, pair); err != nil {
		t.Fatal(err)
	}
	root := func(dev netlink.Link) *netlink.GenericQdisc {
		return &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: dev.Attrs().Index, Parent: netlink.HANDLE_ROOT}, QdiscType: "pfifo"}
	}
	for what, damage := range map[string]func(h *netlink.Handle, far, receiver netlink.Link) error{
		"no shaper of what is sent": func(h *netlink.Handle, far, _ netlink.Link) error {
			return h.QdiscDel(root(far))
		},
		"another qdisc for what is sent": func(h *netlink.Handle, far, _ netlink.Link) error { return h.QdiscReplace(root(far)) },
		"a foreign tbf": func(h *netlink.Handle, far, _ netlink.Link) error {
			return h.QdiscReplace(&netlink.Tbf{
				QdiscAttrs: netlink.QdiscAttrs{LinkIndex: far.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: shaping.ShaperHandle},
				Rate:       1e9, Limit: 1e6, Buffer: 1e6,
			})
		},
		"another qdisc for what is received": func(h *netlink.Handle, _, receiver netlink.Link) error { return h.QdiscReplace(root(receiver)) },
		"no redirection": func(h *netlink.Handle, far, _ netlink.Link) error {
			return h.QdiscDel(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: far.Attrs().Index, Parent: netlink.HANDLE_INGRESS}})
		},
		"no filter": func(h *netlink.Handle, far, _ netlink.Link) error {
			filters, err := h.FilterList(far, shaping.IngressHandle)
			if err != nil {
				return err
			}
			for _, filter := range filters {
				if err := h.FilterDel(filter); err != nil {
					return err
				}
			}
			return nil
		},
		"down":    func(h *netlink.Handle, _, receiver netlink.Link) error { return h.LinkSetDown(receiver) },
		"removed": func(h *netlink.Handle, _, receiver netlink.Link) error { return h.LinkDel(receiver) },
	} {
		t.Run(what, func(t *testing.T) {
			inNamespace(t, ports, func(h *netlink.Handle) error {
				far, err := h.LinkByName("wts0")
				if err != nil {
					return err
				}
				receiver, err := h.LinkByName("wts0-in")
				if err != nil {
					return err
				}
				return damage(h, far, receiver)
			})
			have, err := pods.Shapes(ctx, ports)
			if err != nil || pair.Shape.Matches(have["wts0"]) {
				t.Fatalf("not seen: %v, %v", have, err)
			}
			if err := pods.Check(ctx, pair); !errors.As(err, new(*podlink.Difference)) {
				t.Errorf("Check: %v", err)
			}
			if err := pods.Reshape(ctx, ports, "wts0", pair.Shape); err != nil {
				t.Fatal(err)
			}
			wantShapes(t, pods, ports, map[string]podlink.Shape{"wts0": pair.Shape})
			if err := pods.Check(ctx, pair); err != nil {
				t.Errorf("put back: %v", err)
			}
		})
	}
	if err := pods.Unplug(ctx, pair, func() {}); err != nil {
		t.Fatal(err)
	}
	wantShapes(t, pods, ports, nil)
}

// Every limit that a pod may have is read back as it was set.
func TestShapeRealRates(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	ports := nstest.New(t)
	if err := pods.CreatePreplugged(ctx, ports, prepluggedPairs(1)...); err != nil {
		t.Fatal(err)
	}
	for _, shaper := range []podlink.Shaper{
		{Rate: 125, Burst: 2900, Queue: 46_400},
		{Rate: 125, Burst: 131_070, Queue: 2_097_120}, // the burst takes longer than the kernel's 32-bit field can hold
		{Rate: 1_000_000, Burst: 25_000, Queue: 100_000},
		{Rate: math.MaxUint32 - 1, Burst: 107_374_182, Queue: 429_496_729},
		{Rate: math.MaxUint32 + 1, Burst: 107_374_182, Queue: 429_496_729},
		{Rate: 125_000_000_000_000, Burst: math.MaxInt32, Queue: math.MaxInt32},
	} {
		shape := podlink.Shape{Receive: shaper, Send: shaper}
		if err := pods.Reshape(ctx, ports, "wts0", shape); err != nil {
			t.Errorf("%s: %v", shaper, err)
			continue
		}
		wantShapes(t, pods, ports, map[string]podlink.Shape{"wts0": shape})
	}
}
