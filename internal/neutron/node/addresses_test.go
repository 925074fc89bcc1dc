package node

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/nft"
)

// The rules have the addresses of the Services of all namespaces, from the start on, and follow them.
func TestServiceAddresses(t *testing.T) {
	first, _ := serviceOf("blue", "first", 80)
	first.Spec.ClusterIPs = []string{"10.96.0.7", "fd00::7"}
	headless, _ := serviceOf("red", "headless", 80)
	headless.Spec.ClusterIP = "None"
	held := rules{}
	a := &addresses{objects: fakeCache(t, first, headless), set: func(r rules) { maps.Copy(held, r) }}
	check := func(when string, want ...string) {
		t.Helper()
		got, expected := ruleItems{}, ruleItems{}
		for _, items := range held {
			maps.Copy(got, items)
		}
		for _, text := range want {
			maps.Copy(expected, host.Service([]netip.Addr{netip.MustParseAddr(text)}))
		}
		same := func(x, y nft.Item) bool { return x.Equal(y) }
		if !maps.EqualFunc(got, expected, same) {
			t.Errorf("%s: %v, want %v", when, slices.Collect(maps.Keys(got)), want)
		}
	}
	second, _ := serviceOf("red", "second", 80)
	second.Spec.ClusterIP = "10.96.0.8"
	a.changed(second, false)
	check("before the start")
	if err := a.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("at the start", "10.96.0.7")
	a.changed(second, false)
	check("with a new Service", "10.96.0.7", "10.96.0.8")
	a.changed(first, true)
	check("without a deleted Service", "10.96.0.8")
}
