package lease_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/flannel/lease"
)

var (
	both   = lease.Families{V4: true, V6: true}
	values = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
)

func sample() lease.Lease {
	return lease.Lease{
		Subnet: netip.MustParsePrefix("10.5.53.0/24"), Subnet6: netip.MustParsePrefix("2001:cafe:42:2f::/64"),
		PublicIP: netip.MustParseAddr("192.0.2.7"), PublicIP6: netip.MustParseAddr("2001:db8::7"), Backend: "vxlan",
		Data:  lease.VXLAN{VNI: 1, MAC: lease.MAC{0xaa, 1, 2, 3, 4, 5}},
		Data6: lease.VXLAN{VNI: 1, MAC: lease.MAC{0xaa, 1, 2, 3, 4, 6}},
	}
}

func keys(t *testing.T) lease.Keys {
	t.Helper()
	k, err := lease.NewKeys(lease.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestAnnotations compares the texts with those of flanneld v0.28.9, and reads them back.
func TestAnnotations(t *testing.T) {
	k, l := keys(t), sample()
	got := k.Annotations(&l, nil)
	want := map[string]string{
		"flannel.alpha.coreos.com/kube-subnet-manager": "true",
		"flannel.alpha.coreos.com/backend-type":        "vxlan",
		"flannel.alpha.coreos.com/backend-data":        `{"VNI":1,"VtepMAC":"aa:01:02:03:04:05"}`,
		"flannel.alpha.coreos.com/backend-v6-data":     `{"VNI":1,"VtepMAC":"aa:01:02:03:04:06"}`,
		"flannel.alpha.coreos.com/public-ip":           "192.0.2.7",
		"flannel.alpha.coreos.com/public-ipv6":         "2001:db8::7",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	back, managed, err := k.FromNode(lease.Node{Annotations: got, PodCIDRs: []string{"2001:cafe:42:2f::/64", "10.5.53.0/24"}}, both)
	if err != nil || !managed {
		t.Fatal(managed, err)
	}
	if diff := cmp.Diff(l, back, values); diff != "" {
		t.Error(diff)
	}
	over := k.Annotations(&l, map[string]string{"flannel.alpha.coreos.com/public-ip-overwrite": "198.51.100.1"})
	if over[k.PublicIP] != "198.51.100.1" || over[k.PublicIP6] != "2001:db8::7" {
		t.Errorf("overwritten: %v", over)
	}
	gateway := lease.Lease{Subnet: l.Subnet, PublicIP: l.PublicIP, Backend: "host-gw"}
	if text := k.Annotations(&gateway, nil)[k.Data]; text != "null" {
		t.Errorf("host-gw's data is %q, flannel's is null", text)
	}
}

func TestFromNode(t *testing.T) {
	k := keys(t)
	good := func(edit func(n *lease.Node)) lease.Node {
		l := sample()
		n := lease.Node{Annotations: k.Annotations(&l, nil), PodCIDRs: []string{"10.5.53.0/24", "2001:cafe:42:2f::/64"}}
		edit(&n)
		return n
	}
	for _, c := range []struct {
		name         string
		node         lease.Node
		want4, want6 bool
		wantErr      string
	}{
		{"good", good(func(*lease.Node) {}), true, true, ""},
		{"other spacing, order and case", good(func(n *lease.Node) {
			n.Annotations[k.Data] = "{ \"vtepmac\": \"AA:01:02:03:04:05\",\n\"New\": [1], \"vni\" : 1 }"
		}), true, true, ""},
		{"one family missing", good(func(n *lease.Node) { n.PodCIDRs = n.PodCIDRs[:1] }), true, false, ""},
		{"bad MAC leaves the other family", good(func(n *lease.Node) { n.Annotations[k.Data] = `{"VNI":1,"VtepMAC":"01:00:5e:00:00:01"}` }), false, true, "annotation flannel.alpha.coreos.com/backend-data: VtepMAC 01:00:5e:00:00:01 is not a unicast address"},
		{"zero MAC", good(func(n *lease.Node) { n.Annotations[k.Data] = `{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}` }), false, true, "not a unicast"},
		{"long MAC", good(func(n *lease.Node) { n.Annotations[k.Data] = `{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff:00:11"}` }), false, true, "not an Ethernet address"},
		{"no data", good(func(n *lease.Node) { n.Annotations[k.Data6] = "null" }), true, false, "backend-v6-data: is empty"},
		{"text", good(func(n *lease.Node) { n.Annotations[k.Data] = "vxlan" }), false, true, "is not of the form"},
		{"0.0.0.0", good(func(n *lease.Node) { n.Annotations[k.PublicIP] = "0.0.0.0" }), false, true, "public-ip: 0.0.0.0 is not the address of a node"},
		{"a name", good(func(n *lease.Node) { n.Annotations[k.PublicIP] = "node-2" }), false, true, `"node-2" is not an IPv4 address`},
		{"mapped", good(func(n *lease.Node) { n.Annotations[k.PublicIP6] = "::ffff:192.0.2.1" }), true, false, "is not an IPv6 address"},
		{"two of one family", good(func(n *lease.Node) { n.PodCIDRs = []string{"10.5.53.0/24", "10.5.54.0/24"} }), false, false, "two ranges of one family"},
		{"a podCIDR", good(func(n *lease.Node) { n.PodCIDRs = []string{"10.5.53.0"} }), false, false, `spec.podCIDRs: "10.5.53.0" is not a range`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, managed, err := k.FromNode(c.node, both)
			if !managed || l.Subnet.IsValid() != c.want4 || l.Subnet6.IsValid() != c.want6 {
				t.Errorf("%+v", l)
			}
			if (err == nil) != (c.wantErr == "") || (err != nil && !strings.Contains(err.Error(), c.wantErr)) {
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
		})
	}
	if _, managed, err := k.FromNode(good(func(n *lease.Node) { delete(n.Annotations, k.Managed) }), both); managed || err != nil {
		t.Error("a node without the annotation is managed")
	}
}

func TestNewKeys(t *testing.T) {
	for prefix, want := range map[string]string{
		"flannel.alpha.coreos.com": "flannel.alpha.coreos.com/backend-type", "example.com/a": "example.com/a-backend-type",
		"example.com/a-": "example.com/a-backend-type", "example.com/": "example.com/backend-type",
		"com": "", "Example.com": "", "example.com/a/b": "", "": "",
	} {
		k, err := lease.NewKeys(prefix)
		if k.BackendType != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", prefix, k.BackendType, err)
		}
	}
}

func TestEtcdTexts(t *testing.T) {
	l := sample()
	key, value := lease.FormatKey(l.Subnet, l.Subnet6), lease.FormatValue(&l)
	if key != "10.5.53.0-24&2001:cafe:42:2f::-64" {
		t.Errorf("key %s", key)
	}
	want := `{"PublicIP":"192.0.2.7","PublicIPv6":"2001:db8::7","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"aa:01:02:03:04:05"},"BackendV6Data":{"VNI":1,"VtepMAC":"aa:01:02:03:04:06"}}`
	if value != want {
		t.Errorf("value %s", value)
	}
	back, _, err := lease.FromEtcd(key, value, both)
	if diff := cmp.Diff(l, back, values); diff != "" || err != nil {
		t.Error(diff, err)
	}
	six := lease.Lease{Subnet6: l.Subnet6, PublicIP6: l.PublicIP6, Backend: "host-gw"}
	if key := lease.FormatKey(six.Subnet, six.Subnet6); key != "0.0.0.0-0&2001:cafe:42:2f::-64" {
		t.Errorf("key %s", key)
	}
	if value := lease.FormatValue(&six); value != `{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::7","BackendType":"host-gw"}` {
		t.Errorf("value %s", value)
	}
	for _, c := range []struct{ key, value, want string }{
		{"10.5.53.7-24", "{}", "10.5.53.7 is not the first address of a /24; 10.5.53.0 is"},
		{"10.5.53.0", "{}", "is not of the form"},
		{"x10.5.53.0-24", "{}", "is not of the form"},
		{"0.0.0.0-0", "{}", "names no subnet"},
		{"10.5.53.0-24", "[]", "value of 10.5.53.0-24 is not of the form"},
		{"10.5.53.0-24", `{"PublicIP":"224.0.0.1"}`, "PublicIP: 224.0.0.1 is not the address of a node"},
		{"10.5.53.0-24", `{"PublicIP":"192.0.2.1","BackendType":"vxlan"}`, "BackendData: is empty"},
		{"10.5.53.0-24", `{"PublicIP":"192.0.2.1","BackendType":"wireguard","BackendData":{"PublicKey":"AAAA"}}`, "PublicKey \"AAAA\" is not a key"},
	} {
		if l, _, err := lease.FromEtcd(c.key, c.value, both); err == nil || !strings.Contains(err.Error(), c.want) || l.Subnet.IsValid() {
			t.Errorf("%s %s: %+v, %v; want %q", c.key, c.value, l, err, c.want)
		}
	}
}

// TestHostileLease: what a lease claims of another node's is refused, and the other node's lease stays in use.
func TestHostileLease(t *testing.T) {
	at := func(subnet, public string, mac byte) lease.Lease {
		return lease.Lease{
			Subnet: netip.MustParsePrefix(subnet), PublicIP: netip.MustParseAddr(public), Backend: "vxlan",
			Data: lease.VXLAN{VNI: 1, MAC: lease.MAC{2, 0, 0, 0, 0, mac}},
		}
	}
	own := lease.Own{Lease: at("10.5.1.0/24", "192.0.2.1", 1), Network: netip.MustParsePrefix("10.5.0.0/16")}
	honest := at("10.5.2.0/24", "192.0.2.2", 2)
	for _, c := range []struct {
		name  string
		lease lease.Lease
		want  string
	}{
		{"another's subnet", at("10.5.2.0/24", "192.0.2.9", 9), "subnet 10.5.2.0/24 overlaps that of honest"},
		{"part of it", at("10.5.2.128/25", "192.0.2.9", 9), "overlaps that of honest"},
		{"around it", at("10.5.2.0/23", "192.0.2.9", 9), "overlaps that of honest"},
		{"this node's", at("10.5.1.0/24", "192.0.2.9", 9), "overlaps that of this node"},
		{"around this node's", at("10.5.0.0/20", "192.0.2.9", 9), "overlaps that of"},
		{"another's MAC", at("10.5.9.0/24", "192.0.2.9", 2), "MAC address 02:00:00:00:00:02 of subnet 10.5.9.0/24 is that of honest"},
		{"this node's MAC", at("10.5.9.0/24", "192.0.2.9", 1), "is that of this node"},
		{"this node's address", at("10.5.9.0/24", "192.0.2.1", 9), "is this node's own"},
		{"a pod's address", at("10.5.9.0/24", "10.5.2.7", 9), "in the network 10.5.0.0/16 of pods"},
		{"outside", at("10.6.9.0/24", "192.0.2.9", 9), "subnet 10.6.9.0/24 is outside the network 10.5.0.0/16"},
		{"wider than the network", at("10.0.0.0/8", "192.0.2.9", 9), "outside the network"},
	} {
		t.Run(c.name, func(t *testing.T) {
			accepted, refused := lease.Judge(map[string]lease.Claim{
				"honest": {Since: 5, Lease: honest}, "hostile": {Since: 6, Lease: c.lease},
			}, own, nil)
			if diff := cmp.Diff(map[string]lease.Lease{"honest": honest}, accepted, values); diff != "" {
				t.Error(diff)
			}
			if err := refused["hostile"]; err == nil || !strings.Contains(err.Error(), c.want) || len(refused) != 1 {
				t.Errorf("refused %v, want %q", refused, c.want)
			}
		})
	}
}

// TestJudgeAgainstPairs compares Judge with an implementation that compares all pairs of subnets.
func TestJudgeAgainstPairs(t *testing.T) {
	network := netip.MustParsePrefix("10.0.0.0/24")
	rapid.Check(t, func(t *rapid.T) {
		claims := map[string]lease.Claim{}
		for i := range rapid.IntRange(0, 12).Draw(t, "claims") {
			bits := rapid.IntRange(22, 30).Draw(t, "bits")
			last := rapid.Byte().Draw(t, "last")
			subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, last}), bits).Masked()
			claims[fmt.Sprintf("n%02d", i)] = lease.Claim{Since: int64(rapid.IntRange(0, 3).Draw(t, "since")), Lease: lease.Lease{
				Subnet: subnet, PublicIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Backend: "vxlan",
				Data: lease.VXLAN{VNI: 1, MAC: lease.MAC{2, 0, 0, 0, 0, byte(rapid.IntRange(0, 20).Draw(t, "mac"))}},
			}}
		}
		accepted, refused := lease.Judge(claims, lease.Own{Network: network}, nil)
		var names []string
		for name := range claims {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int {
			if d := claims[a].Since - claims[b].Since; d != 0 {
				return int(d)
			}
			return strings.Compare(a, b)
		})
		var kept []lease.Lease
		for _, name := range names {
			l := claims[name].Lease
			ok := l.Subnet.Bits() >= network.Bits() && !slices.ContainsFunc(kept, func(o lease.Lease) bool {
				return o.Subnet.Overlaps(l.Subnet) || o.Data == l.Data
			})
			if ok {
				kept = append(kept, l)
			}
			if _, got := accepted[name]; got != ok || (refused[name] == nil) != ok {
				t.Fatalf("%s %+v: accepted %t, want %t: %v", name, l, got, ok, refused[name])
			}
		}
	})
}

func FuzzFromNode(f *testing.F) {
	f.Add("vxlan", `{"VNI":1,"VtepMAC":"aa:01:02:03:04:05"}`, "192.0.2.1", "10.5.53.0/24")
	f.Add("wireguard", `{"PublicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":51820}`, "::1", "2001::/64")
	f.Add("extension", `"x"`, "", "")
	f.Fuzz(func(t *testing.T, backend, data, public, cidr string) {
		k, err := lease.NewKeys(lease.DefaultPrefix)
		if err != nil {
			t.Fatal(err)
		}
		node := lease.Node{PodCIDRs: []string{cidr}, Annotations: map[string]string{
			k.Managed: "true", k.BackendType: backend, k.Data: data, k.Data6: data, k.PublicIP: public, k.PublicIP6: public,
		}}
		l, _, err := k.FromNode(node, both)
		if err != nil || l == (lease.Lease{Backend: l.Backend}) {
			return
		}
		again, _, err := k.FromNode(lease.Node{Annotations: k.Annotations(&l, nil), PodCIDRs: node.PodCIDRs}, both)
		if err != nil || again != l {
			t.Errorf("%+v becomes %+v, %v", l, again, err)
		}
	})
}

func FuzzFromEtcd(f *testing.F) {
	l := sample()
	f.Add(lease.FormatKey(l.Subnet, l.Subnet6), lease.FormatValue(&l))
	f.Add("0.0.0.0-0&2001:db8::-64", `{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::1","BackendType":"host-gw"}`)
	f.Add("10.0.0.0-24", `{"PublicIP":"10.0.0.1","BackendType":"extension","BackendData":"x"}`)
	f.Fuzz(func(t *testing.T, key, value string) {
		l, _, err := lease.FromEtcd(key, value, both)
		if err != nil || (!l.Subnet.IsValid() && !l.Subnet6.IsValid()) {
			return
		}
		again, _, err := lease.FromEtcd(lease.FormatKey(l.Subnet, l.Subnet6), lease.FormatValue(&l), both)
		if err != nil || again != l {
			t.Errorf("%+v becomes %+v, %v", l, again, err)
		}
	})
}
