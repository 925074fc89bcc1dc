package egressips

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/egressip"
)

// The nodes' gateway, and the network and broadcast addresses of their network, are refused as egress addresses.
func TestEgressIPsThatAreOthers(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.254": "is the gateway of the node's routes",
		"192.0.2.255": "is the network or the broadcast address of 192.0.2.0/24",
		"192.0.2.0":   "is the network or the broadcast address of 192.0.2.0/24",
		"192.0.2.253": "",
	} {
		address := netip.MustParseAddr(text)
		e := egressNode(clusternetwork.ModeMultitenant, egressip.Namespace{Name: "a", VNID: 10, IPs: []netip.Addr{address}})
		all := e.ways([]networkv1.HostSubnet{egressHost("n1", "192.0.2.1", "10.128.0.0/23", text)})
		if got := e.unfit[address]; want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s is refused with %q, want %q", text, got, want)
		}
		if held := all.Ways[10].Address == address; held != (want == "") {
			t.Errorf("%s: the node holds it: %t", text, held)
		}
	}
}

// A node probes an address before it holds it. Until the result is known, no traffic leaves through it. An address in use by a foreign host
// is refused, and taken once that host no longer has it. An address that the node has already, after a restart, is kept.
func TestEgressIPsAreProbed(t *testing.T) {
	address, kept := netip.MustParseAddr("192.0.2.101"), netip.MustParseAddr("192.0.2.102")
	e := egressNode(clusternetwork.ModeMultitenant, egressip.Namespace{Name: "a", VNID: 10, IPs: []netip.Addr{address}}, egressip.Namespace{Name: "b", VNID: 11, IPs: []netip.Addr{kept}})
	answers, changed := make(chan net.HardwareAddr), make(chan struct{})
	e.probes.probe = func(device string, probed netip.Addr, nodes []netip.Addr) (net.HardwareAddr, error) {
		if device != "eth0" || probed != address || len(nodes) != 1 {
			t.Errorf("probed %s on %s, with nodes %v", probed, device, nodes)
		}
		return <-answers, nil
	}
	e.probes.holds = func(probed netip.Addr) bool { return probed == kept }
	e.probes.changed = func() { go func() { changed <- struct{}{} }() }
	var again func()
	e.probes.after = func(_ time.Duration, f func()) *time.Timer { again = f; return nil }
	hosts := []networkv1.HostSubnet{egressHost("n1", "192.0.2.1", "10.128.0.0/23", address.String(), kept.String())}
	holds := func(when string, want bool, refusal string) {
		t.Helper()
		all := e.ways(hosts)
		if got := all.Ways[10].Address == address; got != want {
			t.Errorf("%s: the node holds the address: %t", when, got)
		}
		if got := e.unfit[address]; (got == "") != (refusal == "") || !strings.Contains(got, refusal) {
			t.Errorf("%s: it is refused with %q, want %q", when, got, refusal)
		}
		if all.Ways[11].Address != kept {
			t.Errorf("%s: the node removes an address that it holds", when)
		}
	}
	holds("no probe has been answered", false, "")
	answers <- net.HardwareAddr{2, 0, 0, 0, 0, 9}
	<-changed
	holds("a foreign host has the address", false, "in use by a host that is not a node, with the MAC address 02:00:00:00:00:09")
	go again()
	answers <- nil
	<-changed
	holds("the foreign host no longer has the address", true, "")
	hosts[0].EgressIPs = []string{kept.String()}
	e.ways(hosts)
	hosts[0].EgressIPs = []string{address.String(), kept.String()}
	holds("it comes back", false, "")
	answers <- nil
	<-changed
	holds("it is free", true, "")
}
