package plan_test

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/lab/plan"
)

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"lab": true, "a": true, "a-1": true, "abcdefghijkl": true,
		"": false, "abcdefghijklm": false, "A": false, "-a": false, "a-": false, "a/b": false, "..": false, "a\n": false, "a b": false,
	} {
		if err := plan.CheckName(name); (err == nil) != ok || (err != nil && !errors.Is(err, plan.ErrName)) {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
}

func TestDefault(t *testing.T) {
	c, err := plan.Config{}.Default()
	if err != nil || c.Name != "lab" || c.Nodes != 2 || c.Runtime != plan.RuntimeCNI || c.Datapath != plan.DatapathAuto {
		t.Errorf("Default() = %+v, %v", c, err)
	}
	for _, bad := range []plan.Config{{Nodes: -1}, {Nodes: plan.MaxNodes + 1}, {Runtime: "docker"}, {Datapath: "ebpf"}, {Name: "../x"}} {
		if _, err := bad.Default(); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// TestFlannel: settings that a flannel network does not support are refused, and the addresses of nodes differ in both families.
func TestFlannel(t *testing.T) {
	for _, bad := range []plan.Config{
		{FlannelStore: plan.StoreEtcd},
		{DualStack: true},
		{Network: plan.NetworkFlannel, FlannelStore: "zookeeper"},
		{Network: plan.NetworkBoth, DualStack: true},
		{Network: plan.NetworkFlannel, Runtime: plan.RuntimeKubelet, FlannelStore: plan.StoreEtcd},
		{Network: plan.NetworkFlannel, Flanneld: "n3"},
	} {
		if _, err := bad.Default(); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	c, err := plan.Config{Network: plan.NetworkFlannel, FlannelStore: plan.StoreEtcd, DualStack: true, Flanneld: "n2"}.Default()
	if err != nil {
		t.Fatal(err)
	}
	l := plan.New(c)
	seen := map[string]bool{}
	for _, n := range l.AllNodes() {
		address := l.Address6(n)
		if !l.IPv6.Underlay.Contains(address.Addr()) {
			t.Errorf("%s has %s outside of %s", n.Name, address, l.IPv6.Underlay)
		}
		for _, text := range append(l.PodCIDRs(n), address.String()) {
			if _, err := netip.ParsePrefix(text); err != nil || seen[text] {
				t.Errorf("%s of %s is taken or malformed: %v", text, n.Name, err)
			}
			seen[text] = true
		}
	}
	if len(seen) != 3*c.Nodes {
		t.Errorf("%d addresses and ranges of %d nodes", len(seen), c.Nodes)
	}
}

// The kernel's limits hold for the longest name, and no two nodes share anything.
func TestNamesFitAndDiffer(t *testing.T) {
	l := plan.New(plan.Config{Name: "abcdefghijkl", Nodes: plan.MaxNodes})
	const linkName, socketPath = 15, 107 // IFNAMSIZ-1, sizeof(sun_path)-1
	if len(l.HostLink) > linkName {
		t.Errorf("link name %s is longer than %d", l.HostLink, linkName)
	}
	seen := map[string]string{l.Router.String(): "router", l.ControlIP.String(): "control plane"}
	for _, n := range l.AllNodes() {
		if p := n.RunDir + "/openvswitch/ovs-vswitchd.4194304.ctl"; len(p) > socketPath {
			t.Errorf("socket %s is longer than %d", p, socketPath)
		}
		for _, id := range []string{n.IP.String(), n.MAC.String(), n.Dir, n.RunDir, n.Cgroup} {
			if other, dup := seen[id]; dup {
				t.Errorf("%s of %s is also that of %s", id, n.Name, other)
			}
			seen[id] = n.Name
		}
		if !l.Underlay.Contains(n.IP) {
			t.Errorf("%s has the address %s outside of %s", n.Name, n.IP, l.Underlay)
		}
		for _, b := range n.Binds() {
			if !strings.HasPrefix(b.Source, n.Dir+"/") {
				t.Errorf("%s of %s is kept outside of the node's folder: %s", b.Target, n.Name, b.Source)
			}
		}
	}
}

func TestPickHostNet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var taken []netip.Prefix
		for i := range rapid.IntRange(1, 60).Draw(t, "labs") {
			p, err := plan.PickHostNet("lab"+strconv.Itoa(i%7), taken)
			if err != nil {
				t.Fatal(err)
			}
			for _, other := range taken {
				if p.Overlaps(other) {
					t.Fatalf("%s overlaps %s", p, other)
				}
			}
			if p.Bits() != 30 || p.Contains(netip.MustParseAddr("169.254.169.254")) || p.Masked() != p {
				t.Fatalf("bad network %s", p)
			}
			taken = append(taken, p)
		}
	})
	if _, err := plan.PickHostNet("lab", []netip.Prefix{netip.MustParsePrefix("169.254.128.0/17")}); !errors.Is(err, plan.ErrHostNets) {
		t.Errorf("with everything taken: %v", err)
	}
	if _, err := plan.PickHostNet("lab", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}); err != nil {
		t.Errorf("a default route is no use of an address: %v", err)
	}
}
