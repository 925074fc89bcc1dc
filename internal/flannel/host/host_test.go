package host_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/nft"
)

func TestRules(t *testing.T) {
	c := host.Config{Families: [2]host.Family{
		{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.1.0/24"), Local: netip.MustParseAddr("192.0.2.1")},
		{Network: netip.MustParsePrefix("2001:db8::/48"), Subnet: netip.MustParsePrefix("2001:db8:0:1::/64")},
	}, Masquerade: true, Tunnel: host.Tunnel{Port: 8472}}
	want := `ip postrouting: meta mark & 0x4000 == 0x4000 return
ip postrouting: ip saddr 10.5.1.0/24 ip daddr 10.5.0.0/16 return
ip postrouting: ip saddr 10.5.0.0/16 ip daddr 10.5.1.0/24 return
ip postrouting: ip saddr != 10.5.0.0/16 ip daddr 10.5.1.0/24 return
ip postrouting: ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
ip postrouting: ip saddr != 10.5.0.0/16 ip daddr 10.5.0.0/16 masquerade fully-random
ip raw: udp dport 8472 ip daddr 192.0.2.1 notrack
ip tunnel: ct status dnat fib daddr type != unicast counter drop
ip tunnel: ip daddr 192.0.2.1 ip saddr @nodes accept
ip tunnel: ip saddr != @nodes fib daddr type != unicast counter drop
ip tunnel: ip daddr @nodes ip saddr != 192.0.2.1 counter drop
ip tunnel-output: udp dport 8472 ip saddr 192.0.2.1 ip daddr @nodes notrack accept
ip tunnel-output: udp dport 8472 ip daddr @nodes ip saddr != 192.0.2.1 counter drop
ip tunnels: udp dport 8472 goto tunnel
ip6 postrouting: meta mark & 0x4000 == 0x4000 return
ip6 postrouting: ip6 saddr 2001:db8:0:1::/64 ip6 daddr 2001:db8::/48 return
ip6 postrouting: ip6 saddr 2001:db8::/48 ip6 daddr 2001:db8:0:1::/64 return
ip6 postrouting: ip6 saddr != 2001:db8::/48 ip6 daddr 2001:db8:0:1::/64 return
ip6 postrouting: ip6 saddr 2001:db8::/48 ip6 daddr != ff00::/8 masquerade fully-random
ip6 postrouting: ip6 saddr != 2001:db8::/48 ip6 daddr 2001:db8::/48 masquerade fully-random
ip6 tunnel: ct status dnat fib daddr type != unicast counter drop
ip6 tunnel: ip6 saddr != @nodes fib daddr type != unicast counter drop
ip6 tunnels: udp dport 8472 goto tunnel`
	if got := text(c.Rules()); got != want {
		t.Errorf("got\n%s", got)
	}
	c.SequentialPorts = true
	if got := text(c.Rules()); got != strings.ReplaceAll(want, " fully-random", "") {
		t.Errorf("with sequential ports\n%s", got)
	}
	c = host.Config{Families: [2]host.Family{c.Families[0]}}
	if got := text(c.Rules()); got != "" || len(c.Rules()) != 1 {
		t.Errorf("neither asked for: %s", got)
	}
}

// TestPods: pods of an agent reach no tunnel, in both families, whatever the network has.
func TestPods(t *testing.T) {
	v4 := host.Family{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.1.0/24"), Local: netip.MustParseAddr("192.0.2.1")}
	c := host.Config{Families: [2]host.Family{v4}, Tunnel: host.Tunnel{Port: 8472}, Pods: host.Pods{Bridge: "cni0", Closed: []uint16{4789}}}
	const pods = `tunnel-pods: iifname "cni0" ct direction reply accept
%[1]s tunnel-pods: iifname "cni0" counter drop
%[1]s tunnel-pods: ct status dnat fib daddr type != unicast counter drop
%[1]s tunnels: udp dport `
	closed := func(family string) string { return family + " " + fmt.Sprintf(pods, family) }
	want := `ip raw: iifgroup 78 drop
ip raw: udp dport 8472 ip daddr 192.0.2.1 iifname != "cni0" notrack
ip tunnel: ct status dnat fib daddr type != unicast counter drop
ip tunnel: ip daddr 192.0.2.1 ip saddr @nodes iifname != "cni0" accept
ip tunnel: ip saddr != @nodes fib daddr type != unicast counter drop
ip tunnel: ip daddr @nodes ip saddr != 192.0.2.1 counter drop
ip tunnel: goto tunnel-pods
ip tunnel-output: udp dport 8472 ip saddr 192.0.2.1 ip daddr @nodes notrack accept
ip tunnel-output: udp dport 8472 ip daddr @nodes ip saddr != 192.0.2.1 counter drop
` + closed("ip") + `vmap { 4789 : goto tunnel-pods, 8472 : goto tunnel }
ip6 raw: iifgroup 78 drop
` + closed("ip6") + `vmap { 4789 : goto tunnel-pods, 8472 : goto tunnel-pods }`
	if got := text(c.Rules()); got != want {
		t.Errorf("got\n%s", got)
	}
	c.Tunnel = host.Tunnel{}
	want = "ip raw: iifgroup 78 drop\n" + closed("ip") + "4789 goto tunnel-pods\nip6 raw: iifgroup 78 drop\n" + closed("ip6") + "4789 goto tunnel-pods"
	if got := text(c.Rules()); got != want {
		t.Errorf("without tunnels between nodes\n%s", got)
	}
}

func text(items map[nft.Key]nft.Item) string {
	var lists []*nft.ChainRules
	for _, item := range items {
		if list, ok := item.(*nft.ChainRules); ok {
			lists = append(lists, list)
		}
	}
	slices.SortFunc(lists, func(a, b *nft.ChainRules) int {
		return strings.Compare(string(a.Family)+" "+a.Chain, string(b.Family)+" "+b.Chain)
	})
	var lines []string
	for _, list := range lists {
		for _, rule := range list.Rules {
			lines = append(lines, fmt.Sprintf("%s %s: %s", list.Family, list.Chain, rule.Text))
		}
	}
	return strings.Join(lines, "\n")
}
