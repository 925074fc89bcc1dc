//go:build real

package daemon_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// logs waits until a program has printed a text.
func logs(t *testing.T, p *flanneltest.Process, text string) {
	t.Helper()
	flanneltest.Eventually(t, "the log has "+text, func() error {
		if !strings.Contains(p.Log(), text) {
			return errors.New(p.Log())
		}
		return nil
	})
}

// gone waits until a node does not have such a device.
func gone(t *testing.T, n *flanneltest.Node, device string) {
	t.Helper()
	flanneltest.Eventually(t, device+" goes", func() error {
		if out, err := n.Run("ip", "link", "show", device); err == nil {
			return errors.New(out)
		}
		return nil
	})
}

// TestConfigurationChanges: another backend and another network take effect at once, and what the former one created is removed. An invalid
// configuration, and one that no node can serve, change nothing. flanneld keeps devices and routes of the former backend.
func TestConfigurationChanges(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	ours, theirs := startWeft(n1, weft, etcd), startWeft(n2, weft, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Reach(t, p2.Address)

	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec"}}`)
	logs(t, ours, `use wireguard, which encrypts as well`)
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"ipip"}}`)
	logs(t, ours, `ipip carries IPv4 only`)
	p1.Reach(t, p2.Address)

	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`)
	gone(t, n1, "flannel.1")
	gone(t, n2, "flannel.1")
	p1.Ping(t, p2.Address)
	subnet := strings.Replace(n2.Subnet("FLANNEL_SUBNET"), ".1/24", ".0/24", 1)
	if out := n1.IP("route show " + subnet); !strings.Contains(out, "via 192.0.2.2 dev eth0") {
		t.Errorf("route %q", out)
	}

	etcd.Put(configKey, `{"Network":"10.77.0.0/16","Backend":{"Type":"vxlan","VNI":7}}`)
	flanneltest.Eventually(t, "subnets of the new network", func() error {
		for _, n := range []*flanneltest.Node{n1, n2} {
			if got := n.Subnet("FLANNEL_SUBNET"); !strings.HasPrefix(got, "10.77.") {
				return fmt.Errorf("%s has %s", n.Name, got)
			}
		}
		return nil
	})
	has(t, n1, subnet, false)
	flanneltest.Eventually(t, "the tunnel in the new network", func() error {
		_, err := n1.Run("ping", "-c1", "-W1", strings.Replace(n2.Subnet("FLANNEL_SUBNET"), ".1/24", ".0", 1))
		return err
	})
	for _, p := range []*flanneltest.Process{ours, theirs} {
		if ended, err := p.Ended(); ended {
			t.Errorf("the daemon ended: %v", err)
		}
	}
}

// TestFullNetwork: a node for which no subnet is free gets one when the administrator enlarges the network, as the log says. flanneld ends.
func TestFullNetwork(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.80.0","SubnetMax":"10.5.80.0","Backend":{"Type":"host-gw"}}`)
	etcd.Put(subnetsPrefix+"10.5.80.0-24", `{"PublicIP":"192.0.2.80","BackendType":"host-gw"}`)
	n := u.Node()
	logs(t, startWeft(n, weft, etcd), "all subnets from 10.5.80.0 to 10.5.80.0 are taken")
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.80.0","SubnetMax":"10.5.81.0","Backend":{"Type":"host-gw"}}`)
	if got := n.Subnet("FLANNEL_SUBNET"); got != "10.5.81.1/24" {
		t.Errorf("the node has %s", got)
	}
}

// TestUplinkMadeAnew: when the interface to other nodes is created again, so are entries, routes and the device.
func TestUplinkMadeAnew(t *testing.T) {
	weft, flanneld := programs(t)
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			u := flanneltest.NewUnderlay(t)
			etcd := u.Etcd()
			etcd.Put(configKey, `{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"`+backend+`"}}`)
			n1, n2 := u.Node(), u.Node()
			startWeft(n1, weft, etcd)
			startFlanneld(n2, flanneld, etcd)
			p1, p2 := n1.Pod(), n2.Pod()
			p1.Reach(t, p2.Address)
			n1.Replug()
			p1.Reach(t, p2.Address)
			p2.Reach(t, p1.Address)
		})
	}
}

// TestAddressAdded: an address that the interface gets besides the one in use changes nothing, even if flanneld would prefer it at its start;
// nor does a restart.
func TestAddressAdded(t *testing.T) {
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`)
	n := u.Node()
	p := startWeft(n, binary, etcd)
	n.Subnet("FLANNEL_SUBNET")
	n.IP("addr change " + n.Address() + "/24 dev eth0 valid_lft 3600 preferred_lft 3600") // as from DHCP
	n.IP("addr add 192.0.2.99/24 dev eth0")
	n.IP("-6 addr add 2001:db8::99/64 dev eth0 nodad")
	for range 2 { // when the device is up the second time, the events before the first have been handled
		n.IP("link set flannel.1 down")
		flanneltest.Eventually(t, "the device is repaired", func() error {
			if out := n.IP("-o link show up dev flannel.1"); out == "" {
				return errors.New("it is down")
			}
			return nil
		})
	}
	if strings.Contains(p.Log(), "starting anew") {
		t.Error("the daemon has started anew")
	}
	before := etcd.List(subnetsPrefix)
	p.Stop()
	logs(t, startWeft(n, binary, etcd), "msg=ready")
	after := etcd.List(subnetsPrefix)
	if len(before) != 1 || len(after) != 1 || before[0].Key != after[0].Key || before[0].Value != after[0].Value ||
		!strings.Contains(after[0].Value, n.Address()+`"`) || !strings.Contains(after[0].Value, `"2001:db8::1"`) {
		t.Errorf("leases %v, and after a restart %v", before, after)
	}
}

// TestDirectRoutingFollowsLinks: a peer is reached without a tunnel while the uplink reaches its address without a gateway, also if that changes
// while the daemon runs. flanneld decides it when the peer's lease comes.
func TestDirectRoutingFollowsLinks(t *testing.T) {
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16",`+below+`"Backend":{"Type":"vxlan","DirectRouting":true}}`)
	n1, n2 := u.Node(), u.Node()
	startWeft(n1, binary, etcd)
	startWeft(n2, binary, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	way := func(want string) {
		t.Helper()
		flanneltest.Eventually(t, "the way to the other node's pods has "+want, func() error {
			if out := n1.IP("route get " + p2.Address); !strings.Contains(out, want) {
				return errors.New(out)
			}
			return nil
		})
		p1.Ping(t, p2.Address)
	}
	way("via " + n2.Address() + " dev eth0")
	if _, err := u.Space.Run("sysctl", "-qw", "net.ipv4.ip_forward=1"); err != nil { // the gateway of the nodes
		t.Fatal(err)
	}
	n1.IP("route del 192.0.2.0/24 dev eth0")
	way("dev flannel.1")
	n1.IP("route add 192.0.2.0/24 dev eth0")
	way("via " + n2.Address() + " dev eth0")
}

// TestDirectRouteIsRemoved: the direct route of a removed peer is removed, although the peer's address is routed through a gateway by then.
// flanneld looks at the routes again when it removes a peer, and then searches for the peer's tunnel entries.
func TestDirectRouteIsRemoved(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16",`+below+`"Backend":{"Type":"vxlan","DirectRouting":true}}`)
	n1 := u.Node()
	startWeft(n1, weft, etcd)
	n1.Subnet("FLANNEL_SUBNET")
	const subnet = "10.5.200.0/24"
	peer := subnetsPrefix + "10.5.200.0-24"
	etcd.Put(peer, `{"PublicIP":"192.0.2.200","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:c8"}}`)
	has(t, n1, subnet, true)
	if route := n1.IP("route show " + subnet); !strings.Contains(route, "via 192.0.2.200 dev eth0") {
		t.Errorf("route %q, want one by eth0", route)
	}
	n1.IP("route add 192.0.2.200/32 via 192.0.2.254")
	etcd.Delete(peer)
	has(t, n1, subnet, false)
}

// TestPeerThatCannotBeProgrammed: such a peer does not delay others; with flanneld, its retries delay everything after it for a minute.
func TestPeerThatCannotBeProgrammed(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`)
	n1 := u.Node()
	p := startWeft(n1, weft, etcd)
	n1.Subnet("FLANNEL_SUBNET")
	etcd.Put(subnetsPrefix+"10.5.66.0-24", `{"PublicIP":"203.0.113.66","BackendType":"host-gw"}`) // no link reaches it
	logs(t, p, "10.5.66.0/24")
	etcd.Put(subnetsPrefix+"10.5.67.0-24", `{"PublicIP":"192.0.2.67","BackendType":"host-gw"}`)
	has(t, n1, "10.5.67.0/24", true)
	etcd.Delete(subnetsPrefix + "10.5.66.0-24")
	etcd.Delete(subnetsPrefix + "10.5.67.0-24")
	has(t, n1, "10.5.67.0/24", false)
}

// TestForeignDrops: chains of docker or of a firewall that drop all forwarded packets are opened for pods, and again after they are closed;
// a rule that names the pods is intended and stays.
func TestForeignDrops(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	nft := func(args string) {
		t.Helper()
		if _, err := n1.Run("nft", args); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n1.Run("iptables-nft", "-P", "FORWARD", "DROP"); err != nil {
		t.Fatal(err)
	}
	nft("add table inet firewalld")
	nft("add chain inet firewalld forward { type filter hook forward priority 10; policy accept; }")
	nft(`add rule inet firewalld forward ct state established accept`)
	nft(`add rule inet firewalld forward reject`)
	p := startWeft(n1, weft, etcd)
	startFlanneld(n2, flanneld, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Reach(t, p2.Address)
	p2.Reach(t, p1.Address)
	nft("flush chain ip filter FORWARD")
	nft("flush chain inet firewalld forward")
	nft("add rule inet firewalld forward drop")
	p1.Reach(t, p2.Address)
	p2.Reach(t, p1.Address)
	nft("insert rule inet firewalld forward ip saddr 10.5.0.0/16 drop")
	logs(t, p, "Weft does not open this")
}

// TestTwoDaemons: a flanneld that runs at the same time is reported and keeps its tables; a second Weft daemon ends with a message that
// says what to do.
func TestTwoDaemons(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	ours := startWeft(n1, weft, etcd)
	startWeft(n2, weft, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Reach(t, p2.Address)
	second := startWeft(n1, weft, etcd)
	flanneltest.Eventually(t, "the second daemon ends", func() error {
		if ended, err := second.Ended(); !ended || err == nil {
			return fmt.Errorf("ended %t, %w", ended, err)
		}
		return nil
	})
	logs(t, second, "runs on this node: stop it, or this one")
	startFlanneld(n1, flanneld, etcd)
	logs(t, ours, "another program has written this node's lease")
	logs(t, ours, "flanneld runs on this node as well")
	p1.Reach(t, p2.Address)
	if tables, err := n1.Run("nft", "list", "tables"); err != nil || !strings.Contains(tables, "flannel-ipv4") || !strings.Contains(tables, "weft-flannel") {
		t.Errorf("tables %s %v", tables, err)
	}
}
