//go:build real

package daemon_test

import (
	"errors"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestTunnelIsForNodes: a host can send packets into the tunnel only while it has a lease. flanneld's device accepts them from any host.
func TestTunnelIsForNodes(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n1 := u.Node()
	startWeft(n1, weft, etcd)
	p1 := n1.Pod()
	_, mac, _ := strings.Cut(n1.IP("-o link show flannel.1"), "link/ether ")
	mac, _, _ = strings.Cut(mac, " ")
	first := strings.TrimSuffix(n1.Subnet("FLANNEL_SUBNET"), "1/24") + "0"
	for _, args := range []string{
		"link add vx type vxlan id 1 local 192.0.2.254 dstport 8472 nolearning", "link set vx address 02:00:00:00:00:c8 up", "addr add 10.5.200.0/32 dev vx",
		"neigh add " + first + " lladdr " + mac + " dev vx", "route add " + first + "/24 via " + first + " dev vx onlink src 10.5.200.0",
	} {
		u.Space.IP(args)
	}
	if _, err := u.Space.Run("bridge", "fdb", "add", mac, "dev", "vx", "dst", n1.Address()); err != nil {
		t.Fatal(err)
	}
	dropped := func(want bool) {
		t.Helper()
		before := flanneltest.Drops(t, n1, "tunnel")
		flanneltest.Eventually(t, "packets of the host", func() error {
			_, err := u.Space.Run("ping", "-c1", "-W1", p1.Address)
			switch after := flanneltest.Drops(t, n1, "tunnel"); {
			case want && err == nil:
				t.Fatal("the pod answers")
			case want && after == before:
				return errors.New("no packet is dropped")
			case !want:
				return err
			}
			return nil
		})
	}
	dropped(true)
	if _, err := u.Space.Run("bridge", "fdb", "replace", mac, "dev", "vx", "dst", "192.0.2.255"); err != nil {
		t.Fatal(err)
	}
	u.Space.IP("addr change 192.0.2.254/24 brd 192.0.2.255 dev br0")
	dropped(true)
	if _, err := u.Space.Run("bridge", "fdb", "replace", mac, "dev", "vx", "dst", n1.Address()); err != nil {
		t.Fatal(err)
	}
	etcd.Put(subnetsPrefix+"10.5.200.0-24", `{"PublicIP":"192.0.2.254","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:c8"}}`)
	dropped(false)
	etcd.Delete(subnetsPrefix + "10.5.200.0-24")
	has(t, n1, "10.5.200.0/24", false)
	flanneltest.Eventually(t, "the host's address goes", func() error {
		out, err := n1.Run("nft", "list", "set", "ip", "weft-flannel", "nodes")
		if err == nil && strings.Contains(out, "192.0.2.254") {
			err = errors.New(out)
		}
		return err
	})
	dropped(true)
}
