package daemon

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/extension"
	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/uplink"
	"weft.dev/weft/internal/link/whole"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
)

// generationOf returns a generation of node 192.0.2.1 with a backend.
func generationOf(backend netconf.Backend) *presence {
	addr := netip.MustParseAddr("192.0.2.1")
	own := lease.Lease{Subnet: netip.MustParsePrefix("10.5.1.0/24"), PublicIP: addr, Backend: backend.Type()}
	network := netip.MustParsePrefix("10.5.0.0/16")
	view := &fabric.View{
		Backend: backend, V4: true, Network: network, Uplink: uplink.Uplink{Name: "eth0", MTU: 1500, Addr: addr, Public: addr},
		Links: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
	}
	return newPresence(&Options{Flags: &netconf.Flags{}}, netconf.Config{Network: network, EnableIPv4: true, Backend: backend}, view, own)
}

// claims are the claims of nodes 192.0.2.N.
func claims(backend netconf.Backend, nodes ...byte) lease.Update {
	all := lease.Update{All: true, Set: map[string]lease.Claim{}}
	for _, n := range nodes {
		l := lease.Lease{
			Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, n, 0}), 24), PublicIP: netip.AddrFrom4([4]byte{192, 0, 2, n}), Backend: backend.Type(),
		}
		if _, tunnel := backend.(netconf.VXLAN); tunnel {
			l.Data = lease.VXLAN{VNI: 1, MAC: lease.MAC{2, 0, 0, 0, 0, n}}
		}
		all.Set[string('a'+rune(n))] = lease.Claim{Lease: l}
	}
	return all
}

// TestGenerationsThatEndEarly: packets of a removed node are not accepted any more, and it is not connected, even if a generation since
// then ended before it knew the leases, or before its rules were in effect.
func TestGenerationsThatEndEarly(t *testing.T) {
	vxlan, gateway := netconf.VXLAN{VNI: 1}, netconf.HostGW{}
	for _, c := range []struct {
		name string
		// between are the generations after the one that served nodes 2 and 3, by the updates that the store reports in them; nil: none. None of
		// them reaches its rules. The last generation serves node 2 alone.
		between []*lease.Update
		last    netconf.Backend
	}{
		{"none ended early", nil, vxlan},
		{"one before it knew the leases", []*lease.Update{nil}, vxlan},
		{"one before its rules", []*lease.Update{new(claims(vxlan, 2))}, vxlan},
		{"one that still knew the node", []*lease.Update{new(claims(vxlan, 2, 3)), nil}, vxlan},
		{"the backend has changed since", []*lease.Update{new(claims(vxlan, 2)), nil}, gateway},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &engines{}
			e.links = reconcile.NewLoop[whole.Key, whole.Item](nil, reconcile.Options[whole.Key, whole.Item]{})
			e.rules = reconcile.NewLoop[nft.Key, nft.Item](nil, reconcile.Options[nft.Key, nft.Item]{})
			e.commands = reconcile.NewLoop[extension.Key, extension.Item](nil, reconcile.Options[extension.Key, extension.Item]{})
			others := newPeers(e, slog.New(slog.DiscardHandler))
			begin := func(backend netconf.Backend, update *lease.Update) *presence {
				p := generationOf(backend)
				others.begin(p)
				if update != nil {
					others.report(p, *update)
					others.forget(p)
				}
				return p
			}
			others.rule(begin(vxlan, new(claims(vxlan, 2, 3))))
			if got := programmed(e); !slices.Contains(got, "element 192.0.2.3") || !slices.Contains(got, "route 10.5.3.0/24") {
				t.Fatalf("at first: %v", got)
			}
			for _, update := range c.between {
				begin(vxlan, update)
			}
			others.rule(begin(c.last, new(claims(c.last, 2))))
			want := []string{"element 192.0.2.2", "route 10.5.2.0/24"}
			if c.last == netconf.Backend(gateway) {
				want = want[1:]
			}
			if got := programmed(e); !slices.Equal(got, want) {
				t.Errorf("in the end: %v, want %v", got, want)
			}
		})
	}
}

// programmed returns the desired routes and the desired elements of set nodes.
func programmed(e *engines) []string {
	var all []string
	links, _ := e.links.Desired()
	for key, item := range links {
		if route, is := item.(*whole.Route); is && key.Kind == whole.KindRoute {
			all = append(all, "route "+route.Dst.String())
		}
	}
	rules, _ := e.rules.Desired()
	for _, item := range rules {
		if element, is := item.(*nft.Element); is {
			all = append(all, "element "+strings.Join(element.Match, " "))
		}
	}
	slices.Sort(all)
	return all
}
