//go:build real

package daemon_test

import (
	"errors"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestMasquerade: in each direction the source address is the one that flannel's iptables rules result in.
func TestMasquerade(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	startWeft(n1, weft, etcd)
	startFlanneld(n2, flanneld, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Reach(t, p2.Address)
	u.Space.IP("route add 10.5.0.0/16 via " + n1.Address()) // the outside host, which sends everything through n1
	// flanneld's nftables rules miss the packets through this node to another's pod.
	sources(t, "Weft's daemon", u, n1, [2]*flanneltest.Pod{p1, p2})
	gateway := strings.TrimSuffix(n1.Subnet("FLANNEL_SUBNET"), "/24")
	if got := flanneltest.Source(t, n1.Space, p1.Space, p1.Address); got != gateway {
		t.Errorf("this node to its pod: the source is %s, want %s", got, gateway)
	}
	// kube-proxy's mark with another bit set: it requests masquerading by kube-proxy's own rule, which does not exist here. flanneld compares
	// the whole mark.
	for _, args := range []string{
		"add table ip tagging", "add chain ip tagging prerouting { type filter hook prerouting priority mangle; }",
		"add rule ip tagging prerouting ip saddr " + p1.Address + " meta mark set 0x14000",
	} {
		if _, err := n1.Run("nft", args); err != nil {
			t.Fatal(err)
		}
	}
	if got := flanneltest.Source(t, p1.Space, u.Space, "192.0.2.254"); got != p1.Address {
		t.Errorf("with kube-proxy's mark the source is %s, want %s", got, p1.Address)
	}
	if _, err := n1.Run("nft", "insert", "rule", "ip", "weft-flannel", "postrouting", "return"); err != nil {
		t.Fatal(err)
	}
	flanneltest.Eventually(t, "a rule put first is removed", func() error {
		out, err := n1.Run("nft", "list", "chain", "ip", "weft-flannel", "postrouting")
		if err == nil && strings.Contains(out, "\t\treturn") {
			err = errors.New(out)
		}
		return err
	})
}

// sources checks the sources that flannel's masquerading results in: of a pod of n1, the first, and one of another node, and of the outside
// host, which sends everything for pods through n1.
func sources(t *testing.T, with string, u *flanneltest.Underlay, n1 *flanneltest.Node, pods [2]*flanneltest.Pod) {
	t.Helper()
	p1, p2 := pods[0], pods[1]
	tunnel := strings.TrimSuffix(n1.Subnet("FLANNEL_SUBNET"), "1/24") + "0"
	for _, c := range []struct {
		name          string
		from, to      *flanneltest.Space
		address, want string
	}{
		{"pod to outside", p1.Space, u.Space, "192.0.2.254", n1.Address()},
		{"pod to pod", p1.Space, p2.Space, p2.Address, p1.Address},
		{"outside to this node's pod", u.Space, p1.Space, p1.Address, "192.0.2.254"},
		{"outside through this node to another's pod", u.Space, p2.Space, p2.Address, tunnel},
	} {
		if got := flanneltest.Source(t, c.from, c.to, c.address); got != c.want {
			t.Errorf("with %s, %s: the source is %s, want %s", with, c.name, got, c.want)
		}
	}
}
