//go:build real

package daemon_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestMixedNodes: pods of a node with Weft's daemon and of one with flanneld reach each other, also after either program restarts. When
// Weft's daemon starts, it detects that a third node's lease was added, changed or removed while it was stopped.
func TestMixedNodes(t *testing.T) {
	weft, flanneld := programs(t)
	for _, backend := range []string{`{"Type":"vxlan"}`, `{"Type":"host-gw"}`, `{"Type":"vxlan","VNI":7,"Port":4789,"DirectRouting":true}`} {
		t.Run(backend, func(t *testing.T) {
			u := flanneltest.NewUnderlay(t)
			etcd := u.Etcd()
			etcd.Put(configKey, `{"Network":"10.5.0.0/16",`+below+`"EnableNFTables":true,"Backend":`+backend+`}`)
			n1, n2 := u.Node(), u.Node()
			ours, theirs := startWeft(n1, weft, etcd), startFlanneld(n2, flanneld, etcd)
			p1, p2 := n1.Pod(), n2.Pod()
			p1.Reach(t, p2.Address)
			p2.Reach(t, p1.Address)
			before, subnet := entries(n1), n1.Subnet("FLANNEL_SUBNET")
			ours.Stop()
			p2.Reach(t, p1.Address)
			ours = startWeft(n1, weft, etcd)
			p1.Reach(t, p2.Address)
			if after := entries(n1); after != before || n1.Subnet("FLANNEL_SUBNET") != subnet {
				t.Errorf("after a restart\n%s\nbefore\n%s", after, before)
			}
			theirs.Kill()
			startFlanneld(n2, flanneld, etcd)
			p1.Reach(t, p2.Address)
			p2.Reach(t, p1.Address)

			peer, moved := subnetsPrefix+"10.5.200.0-24", subnetsPrefix+"10.5.202.0-24"
			etcd.Put(peer, value(t, etcd, n2, "192.0.2.200", "02:00:00:00:00:c8"))
			etcd.Put(moved, value(t, etcd, n2, "192.0.2.202", "02:00:00:00:00:ca"))
			has(t, n1, "10.5.200.0/24", true)
			has(t, n1, "10.5.202.0/24", true)
			ours.Kill()
			etcd.Delete(peer)
			etcd.Put(moved, value(t, etcd, n2, "192.0.2.203", "02:00:00:00:00:cb"))
			etcd.Put(subnetsPrefix+"10.5.201.0-24", value(t, etcd, n2, "192.0.2.201", "02:00:00:00:00:c9"))
			startWeft(n1, weft, etcd)
			has(t, n1, "10.5.201.0/24", true)
			has(t, n1, "10.5.200.0/24", false) // flanneld leaves it
			flanneltest.Eventually(t, "entries of a node that went meanwhile go, and of one that moved are new", func() error {
				got := entries(n1)
				if strings.Contains(got, "02:00:00:00:00:c8") || strings.Contains(got, "02:00:00:00:00:ca") || strings.Contains(got, "192.0.2.202") {
					return errors.New(got)
				}
				if !strings.Contains(got, "02:00:00:00:00:cb") && !strings.Contains(got, "10.5.202.0/24 via 192.0.2.203") {
					return errors.New(got)
				}
				return nil
			})
			p1.Reach(t, p2.Address)
		})
	}
}

// value is the lease of another node, with the backend data of n.
func value(t *testing.T, etcd *flanneltest.Etcd, n *flanneltest.Node, public, mac string) string {
	t.Helper()
	for _, kv := range etcd.List(subnetsPrefix) {
		if !strings.Contains(kv.Value, n.Address()+`"`) {
			continue
		}
		text := strings.Replace(kv.Value, n.Address()+`"`, public+`"`, 1)
		if _, after, ok := strings.Cut(text, `"VtepMAC":"`); ok {
			text = strings.Replace(text, after[:17], mac, 1)
		}
		return text
	}
	t.Fatalf("no lease of %s", n.Address())
	return ""
}

// TestTakeover: a node switches from flanneld to Weft's daemon and back under 500 packets a second in each direction, and no packet is
// lost: the device stays the same.
func TestTakeover(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	theirs := startFlanneld(n1, flanneld, etcd)
	startFlanneld(n2, flanneld, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Reach(t, p2.Address)
	before, subnet := entries(n1), n1.Subnet("FLANNEL_SUBNET")
	control := p1.Stream(p2.Address)
	control.Stop(t)

	there, back := p1.Stream(p2.Address), p2.Stream(p1.Address)
	theirs.Stop()
	ours := startWeft(n1, weft, etcd)
	flanneltest.Eventually(t, "Weft's daemon is ready", func() error {
		if !strings.Contains(ours.Log(), "msg=ready") {
			return errors.New(ours.Log())
		}
		return nil
	})
	if after := entries(n1); after != before || n1.Subnet("FLANNEL_SUBNET") != subnet {
		t.Errorf("after the takeover\n%s\nbefore\n%s", after, before)
	}
	if tables, err := n1.Run("nft", "list", "tables"); err != nil || strings.Contains(tables, "flannel-ipv4") {
		t.Errorf("flanneld's rules are left: %s %v", tables, err)
	}
	ours.Stop()
	if err := os.Remove(n1.SubnetFile()); err != nil {
		t.Fatal(err)
	}
	startFlanneld(n1, flanneld, etcd)
	if n1.Subnet("FLANNEL_SUBNET") != subnet || entries(n1) != before {
		t.Errorf("after the return\n%s\nbefore\n%s", entries(n1), before)
	}
	there.Stop(t)
	back.Stop(t)
}

// TestTakeoverOfIPTables: a node whose flanneld has made iptables rules, as it does by default, switches to Weft's daemon and back. The rules stay
// meanwhile, and change nothing.
func TestTakeoverOfIPTables(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	theirs := startFlanneld(n1, flanneld, etcd)
	startWeft(n2, weft, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	u.Space.IP("route add 10.5.0.0/16 via " + n1.Address())
	works := func(with string) {
		t.Helper()
		p1.Reach(t, p2.Address)
		p2.Reach(t, p1.Address)
		sources(t, with, u, n1, [2]*flanneltest.Pod{p1, p2})
		if out, err := n1.Run("iptables", "-t", "nat", "-S", "FLANNEL-POSTRTG"); err != nil {
			t.Errorf("with %s: flanneld's rules: %s %v", with, out, err)
		}
	}
	works("flanneld")
	theirs.Stop()
	ours := startWeft(n1, weft, etcd)
	logs(t, ours, "msg=ready")
	works("Weft's daemon")
	ours.Stop()
	startFlanneld(n1, flanneld, etcd)
	works("flanneld again")
}
