package host_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
)

func sample() *host.Config {
	return &host.Config{
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		LocalSubnet:     netip.MustParsePrefix("10.128.0.0/23"),
		Gateway:         netip.MustParseAddr("10.128.0.1"),
		GatewayMAC:      net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 1},
		NodeIP:          netip.MustParseAddr("192.0.2.1"),
		Metadata:        []netip.Addr{netip.MustParseAddr("169.254.169.254")},
		ClosedTCP:       []uint16{22623, 22624},
		MTU:             1450,
		Datapath:        ovsdb.DatapathNetdev,
		RejectMAC:       net.HardwareAddr{0x0a, 0x58, 0, 0, 0, 1},
		Outside:         netip.MustParseAddr("169.254.0.2"),
		Egress:          true,
	}
}

func lines[K comparable, V fmt.Stringer](title string, items map[K]V) string {
	var all []string
	for _, item := range items {
		all = append(all, item.String())
	}
	slices.Sort(all)
	return "# " + title + "\n" + strings.Join(all, "\n") + "\n"
}

func TestFragments(t *testing.T) {
	c := sample()
	pod := host.PodPort{Owner: "attachment/a/eth0", Interface: "veth1", OFPort: 3, User: host.PortUser{Sandbox: "a", Address: netip.MustParseAddr("10.128.0.5")}}
	got := lines("rules", c.Rules()) + lines("rules of a remote node", c.RemoteRules(netip.MustParseAddr("192.0.2.2"))) +
		lines("links", c.Links()) + lines("rows", c.Rows()) + lines("rows of a pod", host.PodRows(pod))
	egress := host.EgressIP{
		VNID: 42, Address: netip.MustParseAddr("192.0.2.100"), MAC: net.HardwareAddr{0x0a, 0x59, 0, 0, 0, 42}, Uplink: "eth0",
	}
	got += lines("rules of an egress address", egress.Rules()) + lines("links of an egress address", egress.Links())
	got += lines("rules of a pod with host ports", host.Published(published()))
	const path = "testdata/fragments.golden"
	goldentest.Compare(t, path, got)
}

func published() *hostport.Published {
	return &hostport.Published{Pod: "shop/" + strings.Repeat("w", 253), Addresses: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, Ports: []cni.HostPort{
		{Port: 8080, Protocol: "tcp", ContainerPort: 80},
		{Address: netip.MustParseAddr("192.0.2.1"), Port: 53, Protocol: "udp", ContainerPort: 5353},
		{Port: 9, Protocol: "sctp", ContainerPort: 9},
	}}
}

func TestRowsAreValid(t *testing.T) {
	for key, row := range sample().Rows() {
		if err := row.Validate(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// Two objects may briefly have the same address: both add the same element, which stays until neither has it.
func TestRemotesShareAnAddress(t *testing.T) {
	c := sample()
	addr := netip.MustParseAddr("192.0.2.2")
	a, b := c.RemoteRules(addr), c.RemoteRules(addr)
	for key, item := range a {
		if !item.Equal(b[key]) {
			t.Errorf("%s differs", key)
		}
	}
	if len(c.RemoteRules(c.NodeIP)) != 0 {
		t.Error("this node's own address is taken as another's")
	}
}

func TestTablesAreInCare(t *testing.T) {
	in := map[string]bool{}
	for _, table := range host.Tables() {
		in[string(table.Family)+table.Name] = true
	}
	for key, item := range sample().Rules() {
		if _, ok := item.(*nft.Table); ok && !in[string(key.Family)+key.Table] {
			t.Errorf("%s is made and not in care", key)
		}
	}
}

// Marks are those of OpenShift SDN, all different, and without the bits of kube-proxy and the kubelet.
func TestEgressMarks(t *testing.T) {
	for vnid, want := range map[uint32]uint32{0: 0xff000000, 1: 1, 42: 42, 0x8000: 0x10000000, 0x4000: 0x01000000, 0xffffff: 0x11ff3fff} {
		if got := host.EgressMark(vnid); got != want {
			t.Errorf("mark of %#x is %#x, want %#x", vnid, got, want)
		}
	}
	seen := make(map[uint32]uint32, 1<<18)
	for vnid := uint32(0); vnid < 1<<24; vnid += 61 {
		mark := host.EgressMark(vnid)
		if other, taken := seen[mark]; taken || mark&0xc000 != 0 || mark == 0 {
			t.Fatalf("mark of %#x is %#x, that of %#x", vnid, mark, other)
		}
		seen[mark] = vnid
	}
}

// If tunnels have several ports, pods cannot send to any of them, and the node's own tunnels use one.
func TestClosedPorts(t *testing.T) {
	rules := func(c *host.Config) string { return lines("rules", c.Rules()) }
	c := sample()
	c.VXLANPort, c.ClosedPorts = 4790, []uint16{4788, 4790}
	got := rules(c)
	for port, times := range map[string]int{"4788": 3, "4789": 0, "4790": 7, "{ 4788, 4790 }": 2} {
		if n := strings.Count(got, "udp dport "+port); n != times {
			t.Errorf("%d rules of port %s, want %d:\n%s", n, port, times, got)
		}
	}
	if want := `iifname "tun0" ip daddr != @pods udp dport 4788 drop`; !strings.Contains(got, want) {
		t.Errorf("there is no %s in\n%s", want, got)
	}
}
