package link_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/linktest"
	"weft.dev/weft/internal/reconcile"
)

func TestFakeConforms(t *testing.T) {
	linktest.Run(t, func(*testing.T) linktest.Subject {
		const other = "/run/netns/other"
		fake := link.NewFake(link.Key{Kind: link.KindDevice, Name: linktest.Device}, link.Key{Netns: other, Kind: link.KindDevice, Name: "lo"})
		return linktest.Subject{
			Engine: fake, Other: other,
			Restart:      func() reconcile.Engine[link.Key, link.Item] { return fake },
			RemoveDevice: func() { fake.RemoveDevice("", linktest.Device) },
			AddDevice:    func() { fake.AddDevice("", linktest.Device) },
			RemoveOther:  func() { fake.RemoveNamespace(other) },
			Forget:       func(item link.Item) { fake.Forget(item.Key()) },
		}
	})
}

func TestFakePods(t *testing.T) {
	ctx := context.Background()
	pods := link.NewFakePods("/run/netns/a")
	pair := link.Pair{
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
	pods.Alter("veth1", func(p *link.Pair) { p.MTU, p.PodRoutes = 1300, nil })
	var difference *link.Difference
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

func TestValidateName(t *testing.T) {
	for name, valid := range map[string]bool{
		"eth0": true, "veth0123456789a": true, "tun0.5": true, "a-b_c@d": true,
		"": false, "veth0123456789ab": false, "a/b": false, "..": false, ".": false, "a..b": false, "a b": false, "a\tb": false, "a\x00": false,
		"a:1": false, "é": false, "all": false, "default": false, "a%d": false, "a\n": false,
	} {
		if err := link.ValidateName(name); (err == nil) != valid || err != nil && !errors.Is(err, link.ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
