//go:build real

package daemon_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

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
		"link del flannel.1", "link set flannel.1 down", "neigh flush dev flannel.1 nud permanent", "nexthop flush proto 88", "link set flannel.1 mtu 1300",
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
