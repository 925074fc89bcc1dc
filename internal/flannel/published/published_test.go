package published

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/nft"
)

func addresses(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// TestHostPortElements: a port at all addresses leads to the pod by both families, and one at an address, or at all of a family, only by
// that family.
func TestHostPortElements(t *testing.T) {
	pod := &hostport.Published{Pod: "shop/web", Addresses: addresses("10.244.3.7", "fd00:10:244:3::7"), Ports: []cni.HostPort{
		{Port: 8080, Protocol: "tcp", ContainerPort: 80},
		{Address: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: "udp", ContainerPort: 5353},
		{Address: netip.MustParseAddr("192.0.2.1"), Port: 53, Protocol: "udp", ContainerPort: 5354},
		{Address: netip.IPv4Unspecified(), Port: 54, Protocol: "udp", ContainerPort: 5355},
		{Address: netip.IPv6Unspecified(), Port: 54, Protocol: "udp", ContainerPort: 5356},
	}}
	var got []string
	for _, item := range elements(pod) {
		e, ok := item.(*nft.Element)
		if !ok {
			t.Fatalf("%T", item)
		}
		got = append(got, e.Set+" "+strings.Join(e.Match, " ")+" : "+strings.Join(e.Value, " "))
	}
	slices.Sort(got)
	want := []string{
		"hostports tcp 8080 : 10.244.3.7 80", "hostports udp 54 : 10.244.3.7 5355", "hostports-at 192.0.2.1 udp 53 : 10.244.3.7 5354",
		"hostports6 tcp 8080 : fd00:10:244:3::7 80", "hostports6 udp 54 : fd00:10:244:3::7 5356", "hostports6-at 2001:db8::1 udp 53 : fd00:10:244:3::7 5353",
		"self4 10.244.3.7 10.244.3.7 : ", "self6 fd00:10:244:3::7 fd00:10:244:3::7 : ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("elements\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestChainsOfHostPorts: only a pod with host ports brings the chains that translate, and those of two pods are equal.
func TestChainsOfHostPorts(t *testing.T) {
	chainsOf := func(items Items) (names []string) {
		for key, item := range items {
			if chain, ok := item.(*nft.Chain); ok && chain.Hook != "" {
				names = append(names, chain.Name)
				if rules, ok := items[(&nft.ChainRules{Family: chain.Family, Table: chain.Table, Chain: chain.Name}).Key()].(*nft.ChainRules); !ok || len(rules.Rules) == 0 {
					t.Errorf("%v has no rules", key)
				}
			}
		}
		slices.Sort(names)
		return names
	}
	if got := chainsOf(Static("cni0")); len(got) != 0 {
		t.Errorf("without pods: %v", got)
	}
	compile := Compile([]uint16{8472})
	web := compile(&hostport.Published{Pod: "shop/web", Addresses: addresses("10.244.3.7"), Ports: []cni.HostPort{{Port: 80, Protocol: "tcp", ContainerPort: 80}}})
	dns := compile(&hostport.Published{Pod: "shop/dns", Addresses: addresses("10.244.3.8"), Ports: []cni.HostPort{{Port: 53, Protocol: "udp", ContainerPort: 53}}})
	if got := chainsOf(web); !slices.Equal(got, []string{"hostports-from", "hostports-in", "hostports-out"}) {
		t.Errorf("chains %v", got)
	}
	shared := 0
	for key, item := range web {
		if other, both := dns[key]; both {
			shared++
			if !item.Equal(other) {
				t.Errorf("%v differs", key)
			}
		}
	}
	if shared != 6 {
		t.Errorf("%d items are of both pods", shared)
	}
}
