//go:build real

package daemon_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestReservation: a key without an etcd lease keeps having none when its owner starts (flanneld gives it one), and hostile leases change
// nothing.
func TestReservation(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n1 := u.Node()
	reserved := subnetsPrefix + "10.5.77.0-24"
	etcd.Put(reserved, `{"PublicIP":"`+n1.Address()+`"}`)
	p := startWeft(n1, weft, etcd)
	if subnet := n1.Subnet("FLANNEL_SUBNET"); subnet != "10.5.77.1/24" {
		t.Errorf("subnet %s", subnet)
	}
	for _, kv := range etcd.List(reserved) {
		if kv.Lease != "" && kv.Lease != "0" {
			t.Errorf("the reservation got a lease: %+v", kv)
		}
	}
	etcd.Put(subnetsPrefix+"10.5.80.0-24", `{"PublicIP":"192.0.2.80","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:50"}}`)
	has(t, n1, "10.5.80.0/24", true)
	before := entries(n1)
	for key, hostile := range map[string]string{
		"10.5.77.0-25": `{"PublicIP":"192.0.2.85","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:55"}}`,
		"10.5.76.0-23": `{"PublicIP":"192.0.2.86","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:56"}}`,
		"10.5.86.0-24": `{"PublicIP":"` + n1.Address() + `","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:57"}}`,
		"10.5.88.0-24": `{"PublicIP":"10.5.80.7","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:58"}}`,
		"10.5.80.0-25": `{"PublicIP":"192.0.2.81","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:51"}}`,
		"10.5.81.0-24": `{"PublicIP":"192.0.2.81","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:50"}}`,
		"10.5.82.0-24": `{"PublicIP":"0.0.0.0","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:52"}}`,
		"10.5.83.0-24": `{"PublicIP":"192.0.2.83","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"01:00:5e:00:00:52"}}`,
		"10.9.0.0-24":  `{"PublicIP":"192.0.2.84","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:54"}}`,
		"nonsense":     `{`,
	} {
		etcd.Put(subnetsPrefix+key, hostile)
		flanneltest.Eventually(t, key+" is reported", func() error {
			if !strings.Contains(p.Log(), "lease="+key) && !strings.Contains(p.Log(), `lease="`+key) {
				return errors.New(p.Log())
			}
			return nil
		})
	}
	if after := entries(n1); after != before {
		t.Errorf("hostile leases changed\n%s\nto\n%s", before, after)
	}
}

// TestLeaseIsKeptAlive: the etcd lease of the node's key is extended long before it expires, also one that another program has granted. flanneld
// writes the key with another lease, an hour before the former one expires.
func TestLeaseIsKeptAlive(t *testing.T) {
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`)
	n := u.Node()
	lease := etcd.PutFor(subnetsPrefix+"10.5.77.0-24", `{"PublicIP":"`+n.Address()+`","BackendType":"host-gw"}`, 20)
	startWeft(n, binary, etcd)
	if subnet := n.Subnet("FLANNEL_SUBNET"); subnet != "10.5.77.1/24" {
		t.Errorf("subnet %s", subnet)
	}
	least := etcd.Left(lease)
	flanneltest.Eventually(t, "the lease is extended", func() error {
		left := etcd.Left(lease)
		if left > least {
			return nil
		}
		least = left
		return fmt.Errorf("%d seconds are left", left)
	})
	for _, kv := range etcd.List(subnetsPrefix) {
		if kv.Lease != lease {
			t.Errorf("%s has the lease %s, want %s", kv.Key, kv.Lease, lease)
		}
	}
}

// TestIPv6Only: two nodes get two subnets; with flanneld the second takes the first's.
func TestIPv6Only(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	startWeft(n1, weft, etcd)
	first := n1.Subnet("FLANNEL_IPV6_SUBNET")
	startWeft(n2, weft, etcd)
	second := n2.Subnet("FLANNEL_IPV6_SUBNET")
	if first == second {
		t.Fatalf("both have %s", first)
	}
	network := strings.TrimSuffix(second, "1/64")
	reach := func() {
		t.Helper()
		flanneltest.Eventually(t, "the tunnel", func() error {
			_, err := n1.Run("ping", "-6", "-c1", "-W1", network)
			return err
		})
	}
	reach()
	n1.IP("link del flannel-v6.1") // flanneld watches only the IPv4 device
	reach()
}

// TestRace: nodes that start together get different subnets, although there are only as many subnets as nodes; flanneld ends if another
// node was faster. etcd answers all nodes at the same time: each has the list of free subnets before another has taken one.
func TestRace(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/22","SubnetLen":24,"Backend":{"Type":"host-gw"}}`)
	nodes := []*flanneltest.Node{u.Node(), u.Node(), u.Node()}
	etcd.Hold(func() {
		for _, n := range nodes {
			startWeft(n, weft, etcd)
		}
		for _, n := range nodes {
			flanneltest.Eventually(t, n.Name+" has connected", func() error {
				out, err := n.Run("ss", "-Htn", "state", "established", "dport", "2379")
				if err == nil && out == "" {
					err = errors.New("no connection")
				}
				return err
			})
		}
	})
	taken := map[string]bool{}
	for _, n := range nodes {
		taken[n.Subnet("FLANNEL_SUBNET")] = true
	}
	if len(taken) != len(nodes) {
		t.Errorf("subnets %v", taken)
	}
}
