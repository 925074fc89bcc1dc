package podlink_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
)

func TestFakePods(t *testing.T) {
	ctx := context.Background()
	pods := podlink.NewFake("/run/netns/a")
	pair := podlink.Pair{
		HostName: "veth1", PodName: "eth0", Netns: "/run/netns/a", Owner: "attachment/1", HostGroup: 77,
		PodAddresses: []netip.Prefix{netip.MustParsePrefix("10.128.0.2/23")},
		PodRoutes:    []link.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.128.0.1")}},
	}
	first, err := pods.Create(ctx, pair)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := pods.Create(ctx, pair); err != nil || again.HostIndex != first.HostIndex {
		t.Fatalf("again: %+v, %v", again, err)
	}
	if err := pods.Check(ctx, pair); err != nil {
		t.Fatal(err)
	}
	pods.Alter("veth1", func(p *podlink.Pair) { p.MTU, p.PodRoutes = 1300, nil })
	var difference *podlink.Difference
	if err := pods.Check(ctx, pair); !errors.As(err, &difference) {
		t.Fatalf("altered: %v", err)
	}
	other := pair
	other.HostName = "veth2"
	if _, err := pods.Create(ctx, other); !errors.Is(err, link.ErrForeign) {
		t.Fatalf("a second eth0: %v", err)
	}
	other.Netns = "/run/netns/none"
	if _, err := pods.Create(ctx, other); !errors.Is(err, link.ErrNoNamespace) {
		t.Fatalf("no namespace: %v", err)
	}
	for range 2 {
		if err := pods.Delete(ctx, "veth1", "veth9"); err != nil {
			t.Fatal(err)
		}
	}
	if list, _ := pods.List(ctx); len(list) != 0 {
		t.Fatalf("left: %v", list)
	}
}
