//go:build real

package daemon_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/flannel/flanneltest"
)

const configKey, subnetsPrefix = "/coreos.com/network/config", "/coreos.com/network/subnets/"

// below is a part of the configuration that keeps nodes from the subnets that tests use for other leases and entries.
const below = `"SubnetMin":"10.5.1.0","SubnetMax":"10.5.99.0",`

var binary string //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(flanneltest.Main(m, func(bin string) { binary = filepath.Join(bin, "weft") }, "weft"))
}

// programs returns the programs that the nodes run.
func programs(t *testing.T) (weft, flanneld string) {
	t.Helper()
	return binary, flanneltest.Flanneld(t)
}

func startWeft(n *flanneltest.Node, weft string, etcd *flanneltest.Etcd, args ...string) *flanneltest.Process {
	return n.Start(nil, append([]string{weft, "flanneld", "--etcd-endpoints=" + etcd.Endpoint, "--subnet-file=" + n.SubnetFile(), "--iface=eth0", "--ip-masq", "--v=2"}, args...)...)
}

func startFlanneld(n *flanneltest.Node, flanneld string, etcd *flanneltest.Etcd, args ...string) *flanneltest.Process {
	return n.Start(nil, append([]string{flanneld, "--etcd-endpoints=" + etcd.Endpoint, "--subnet-file=" + n.SubnetFile(), "--iface=eth0", "--ip-masq"}, args...)...)
}

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

// entries are the entries of a node for its peers.
func entries(n *flanneltest.Node) string {
	out := n.IP("route show proto 88")
	for _, device := range []string{"flannel.1", "flannel.7"} { // a device that does not exist has none; a daemon may just be replacing it
		for _, command := range []string{"ip neigh show nud permanent dev ", "ip -d link show ", "bridge fdb show dev "} { // -d: also whether it learns
			if shown, err := n.Run(strings.Fields(command + device)...); err == nil {
				out += shown
			}
		}
	}
	return out
}

func has(t *testing.T, n *flanneltest.Node, subnet string, want bool) {
	t.Helper()
	flanneltest.Eventually(t, fmt.Sprintf("route to %s: %t", subnet, want), func() error {
		if got := n.IP("route show " + subnet); (got != "") != want {
			return fmt.Errorf("routes: %q", got)
		}
		return nil
	})
}

// TestRepairs: manual changes are reverted, also of the device with its entries, and the own lease is acquired again.
func TestRepairs(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16",`+below+`"EnableNFTables":true,"Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	startWeft(n1, weft, etcd)
	startFlanneld(n2, flanneld, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Reach(t, p2.Address)
	want := entries(n1)
	for _, change := range []string{
		"link del flannel.1", "link set flannel.1 down", "neigh flush dev flannel.1 nud permanent", "route flush proto 88", "link set flannel.1 mtu 1300",
		"link set flannel.1 address 02:00:00:00:00:77", "link set flannel.1 type vxlan id 1 learning",
	} {
		n1.IP(change)
		repaired(t, n1, change, want)
		p1.Reach(t, p2.Address)
	}
	mac, tunnel := peerEntry(t, n1), strings.TrimSuffix(n2.Subnet("FLANNEL_SUBNET"), "1/24")+"0"
	for _, change := range []string{
		"bridge fdb del " + mac + " dev flannel.1 dst " + n2.Address(), "bridge fdb replace " + mac + " dev flannel.1 dst 192.0.2.99 self permanent",
		"bridge fdb append " + mac + " dev flannel.1 dst 192.0.2.99 self permanent", "bridge fdb add 02:00:00:00:00:99 dev flannel.1 dst 192.0.2.99",
		"ip neigh replace " + tunnel + " lladdr 02:00:00:00:00:99 dev flannel.1 nud permanent", "ip neigh add 10.5.250.0 lladdr 02:00:00:00:00:99 dev flannel.1",
		"ip route replace " + tunnel + "/24 via 192.0.2.99", "ip route add 10.5.250.0/24 via 192.0.2.99 proto 88",
	} {
		if _, err := n1.Run(strings.Fields(change)...); err != nil {
			t.Fatal(err)
		}
		repaired(t, n1, change, want)
		p1.Reach(t, p2.Address)
	}
	digests := regexp.MustCompile(` rules [0-9a-f]+`) // those of the kernel's rules, which get other handles
	rules := func() string {
		out, err := n1.Run("nft", "-s", "list", "table", "ip", "weft-flannel")
		if err != nil {
			return err.Error()
		}
		return digests.ReplaceAllString(out, "")
	}
	whole := rules()
	if _, err := n1.Run("nft", "flush", "chain", "ip", "weft-flannel", "postrouting"); err != nil {
		t.Fatal(err)
	}
	flanneltest.Eventually(t, "rules are repaired", func() error {
		if got := rules(); strings.Count(got, "masquerade") != strings.Count(whole, "masquerade") {
			return errors.New(got)
		}
		return nil
	})
	if _, err := n1.Run("nft", "delete", "table", "ip", "weft-flannel"); err != nil {
		t.Fatal(err)
	}
	flanneltest.Eventually(t, "the table is made again", func() error {
		if got := rules(); lines(got) != lines(whole) {
			return fmt.Errorf("got\n%s\nwant\n%s", got, whole)
		}
		return nil
	})
	p1.Reach(t, p2.Address)
	for _, kv := range etcd.List(subnetsPrefix) {
		if strings.Contains(kv.Value, n1.Address()+`"`) {
			etcd.Delete(kv.Key)
		}
	}
	flanneltest.Eventually(t, "own lease is taken again", func() error {
		for _, kv := range etcd.List(subnetsPrefix) {
			if strings.Contains(kv.Value, n1.Address()+`"`) && kv.Lease != "" && kv.Lease != "0" {
				return nil
			}
		}
		return errors.New("no lease")
	})
	p1.Reach(t, p2.Address)
}

// repaired waits until a node has the same entries as before a change.
func repaired(t *testing.T, n *flanneltest.Node, change, want string) {
	t.Helper()
	flanneltest.Eventually(t, change+" is repaired", func() error {
		if got := entries(n); lines(withoutIndex(got)) != lines(withoutIndex(want)) {
			return fmt.Errorf("got\n%s\nwant\n%s", got, want)
		}
		return nil
	})
}

// peerEntry returns the MAC address of the only peer's forwarding entry.
func peerEntry(t *testing.T, n *flanneltest.Node) string {
	t.Helper()
	out, err := n.Run("bridge", "fdb", "show", "dev", "flannel.1")
	if fields := strings.Fields(out); err == nil && len(fields) > 0 {
		return fields[0]
	}
	t.Fatalf("no entry: %s %v", out, err)
	return ""
}

// lines returns a text's lines sorted: the kernel lists entries and elements in any order.
func lines(text string) string { return strings.Join(slices.Sorted(strings.Lines(text)), "") }

func withoutIndex(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if before, after, ok := strings.Cut(line, ": flannel"); ok && strings.Trim(before, "0123456789") == "" {
			line = "flannel" + after
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

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
	tunnel := strings.TrimSuffix(n1.Subnet("FLANNEL_SUBNET"), "1/24") + "0"
	for _, c := range []struct {
		name          string
		from, to      *flanneltest.Space
		address, want string
	}{
		{"pod to outside", p1.Space, u.Space, "192.0.2.254", n1.Address()},
		{"pod to pod", p1.Space, p2.Space, p2.Address, p1.Address},
		{"outside to this node's pod", u.Space, p1.Space, p1.Address, "192.0.2.254"},
		{"outside through this node to another's pod", u.Space, p2.Space, p2.Address, tunnel}, // flanneld's nftables rules miss it
		{"this node to its pod", n1.Space, p1.Space, p1.Address, strings.TrimSuffix(n1.Subnet("FLANNEL_SUBNET"), "/24")},
	} {
		if got := flanneltest.Source(t, c.from, c.to, c.address); got != c.want {
			t.Errorf("%s: the source is %s, want %s", c.name, got, c.want)
		}
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
	tunnel := strings.TrimSuffix(n1.Subnet("FLANNEL_SUBNET"), "1/24") + "0"
	works := func(with string) {
		t.Helper()
		p1.Reach(t, p2.Address)
		p2.Reach(t, p1.Address)
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

// TestCompaction: changes made while etcd could not be reached take effect once it is back, also if etcd has compacted their history.
func TestCompaction(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	// The node's own subnet is none of those below.
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"vxlan"}}`)
	n1 := u.Node()
	p := startWeft(n1, weft, etcd)
	data := func(n int) string {
		return fmt.Sprintf(`{"PublicIP":"192.0.2.%d","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:01:%02d"}}`, n, n)
	}
	etcd.Put(subnetsPrefix+"10.5.80.0-24", data(80))
	etcd.Put(subnetsPrefix+"10.5.81.0-24", data(81))
	has(t, n1, "10.5.80.0/24", true)
	has(t, n1, "10.5.81.0/24", true)
	etcd.Away(func() {
		etcd.Delete(subnetsPrefix + "10.5.80.0-24")
		etcd.Put(subnetsPrefix+"10.5.81.0-24", data(91)) // the same subnet with other attributes: flanneld misses it
		etcd.Put(subnetsPrefix+"10.5.82.0-24", data(82))
	})
	has(t, n1, "10.5.82.0/24", true)
	has(t, n1, "10.5.80.0/24", false)
	flanneltest.Eventually(t, "the lease's new address", func() error {
		out, err := n1.Run("bridge", "fdb", "show", "dev", "flannel.1")
		if err == nil && (!strings.Contains(out, "dst 192.0.2.91") || strings.Contains(out, "dst 192.0.2.81")) {
			err = errors.New(out)
		}
		return err
	})
	if ended, err := p.Ended(); ended {
		t.Errorf("the daemon ended: %v", err)
	}
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"host-gw"}}`) // takes effect at once, and the device is removed
	flanneltest.Eventually(t, "the change of the backend", func() error {
		if _, err := n1.Run("ip", "link", "show", "flannel.1"); err == nil {
			return errors.New("flannel.1 is there")
		}
		return nil
	})
}

// TestTLS: an etcd that requires a client certificate and a user is used with both; without them the log has the reason for the failure.
func TestTLS(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	files := certificates(t)
	const user, password = "root", "secret"
	etcd := u.EtcdTLS(files, user, password)
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	etcd.EnableAuth()
	n1, n2 := u.Node(), u.Node()
	tls := []string{"--etcd-cafile=" + files.CA, "--etcd-certfile=" + files.Cert, "--etcd-keyfile=" + files.Key}
	startWeft(n1, weft, etcd, append(tls, "--etcd-username="+user, "--etcd-password="+password)...)
	if subnet := n1.Subnet("FLANNEL_SUBNET"); !strings.HasPrefix(subnet, "10.5.") {
		t.Errorf("subnet %s", subnet)
	}
	refused := startWeft(n2, weft, etcd, tls...)
	flanneltest.Eventually(t, "the refusal is reported", func() error {
		if !strings.Contains(refused.Log(), "etcdserver: ") {
			return errors.New(refused.Log())
		}
		return nil
	})
	if strings.Contains(refused.Log(), password) {
		t.Error("the log has the password")
	}
}

// certificates creates an authority, and a certificate signed by it for 192.0.2.254 that is valid for both client and server.
func certificates(t *testing.T) flanneltest.Certificates {
	t.Helper()
	dir := t.TempDir()
	files := flanneltest.Certificates{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"test"}}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 254)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		files.CA: {Type: "CERTIFICATE", Bytes: raw}, files.Cert: {Type: "CERTIFICATE", Bytes: raw}, files.Key: {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}
