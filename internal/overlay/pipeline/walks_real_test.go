//go:build real

package pipeline_test

import (
	"strings"
	"testing"
)

// Parts of packets, in the syntax of ovs-ofctl(8).
const (
	fromA      = "in_port=3,dl_src=0a:58:0a:80:00:05,"
	toB        = "dl_dst=0a:58:0a:80:00:06,"
	toGateway  = "dl_dst=0a:58:0a:80:00:01,"
	toRemote   = "dl_dst=0a:58:0a:81:00:07,"
	broadcast  = "dl_dst=ff:ff:ff:ff:ff:ff,"
	fromTunnel = "in_port=1,tun_src=192.0.2.2,tun_dst=192.0.2.1,tun_id=0,dl_src=0a:58:0a:81:00:07,dl_dst=0a:58:0a:80:00:05,"
	fromHost   = "in_port=2,dl_src=0a:58:0a:80:00:01,dl_dst=0a:58:0a:80:00:05,"
	ipA        = "nw_src=10.128.0.5,"
	arpA       = "arp,arp_op=1,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,"
)

// walk is a packet that passes.
type walk struct {
	name, packet string
	tables       string // the tables that it passes
	output       string // the port that it leaves by
	say          string // further text in the trace
}

func walks() []walk {
	return []walk{
		{"pod to pod on the node, TCP", fromA + toB + "tcp," + ipA + "nw_dst=10.128.0.6,tp_dst=80", "0 20 21 24 25 27 30 70 80", "NXM_NX_REG2[]", "0a:58:0a:80:00:06"},
		{"pod to pod on the node, UDP", fromA + toB + "udp," + ipA + "nw_dst=10.128.0.6,udp_dst=53", "0 20 21 24 25 27 30 70 80", "NXM_NX_REG2[]", ""},
		{"pod to pod on the node, ICMP", fromA + toB + "icmp," + ipA + "nw_dst=10.128.0.6,icmp_type=8", "0 20 21 24 25 27 30 70 80", "NXM_NX_REG2[]", ""},
		{"pod to pod on the node, by way of the gateway's MAC", fromA + toGateway + "tcp," + ipA + "nw_dst=10.128.0.6,tp_dst=80", "0 20 21 24 25 27 30 70 80", "NXM_NX_REG2[]", "set_field:0a:58:0a:80:00:06->eth_dst"},
		{"the tunnel's port between pods", fromA + toB + "udp," + ipA + "nw_dst=10.128.0.6,udp_dst=4789", "0 20 21 24 25 27 30 70 80", "NXM_NX_REG2[]", ""},
		{"pod to pod on another node", fromA + toRemote + "tcp," + ipA + "nw_dst=10.129.0.7,tp_dst=80", "0 20 21 24 25 27 30 90", "1", "set_field:192.0.2.2->tun_dst"},
		{"pod to a host with a VNID of its own", fromA + toRemote + "tcp," + ipA + "nw_dst=10.130.0.7,tp_dst=80", "0 20 21 24 25 27 30 90", "1", "set_field:0x63->tun_id"},
		{"from another node to a pod", fromTunnel + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.5,tp_dst=80", "0 10 21 30 70 80", "NXM_NX_REG2[]", ""},
		{"from another node's gateway to a pod", fromTunnel + "tcp,nw_src=10.129.0.1,nw_dst=10.128.0.5,tp_dst=80", "0 10 21 30 70 80", "NXM_NX_REG2[]", ""},
		{"from another node's pod to this gateway", fromTunnel + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.1,tp_dst=80", "0 10 21 30", "2", "set_field:0a:58:0a:80:00:01->eth_dst"},
		{"pod to a Service", fromA + toGateway + "tcp," + ipA + "nw_dst=172.30.0.10,tp_dst=53", "0 20 21 24 25 27 30 60", "2", "0a:58:0a:80:00:01"},
		{"pod to the gateway", fromA + toGateway + "tcp," + ipA + "nw_dst=10.128.0.1,tp_dst=80", "0 20 21 24 25 27 30", "2", ""},
		{"pod to outside", fromA + toGateway + "tcp," + ipA + "nw_dst=198.51.100.10,tp_dst=443", "0 20 21 24 25 27 30 99 100 101", "2", ""},
		{"pod to outside, a later fragment of UDP", fromA + toGateway + "udp,nw_frag=later," + ipA + "nw_dst=198.51.100.10", "0 20 21 24 25 27 30 99 100 101", "2", ""},
		{"pod to its node's address", fromA + toGateway + "tcp," + ipA + "nw_dst=192.0.2.1,tp_dst=10250", "0 20 21 24 25 27 30 99 100 101", "2", ""},
		{"kubelet's probe", fromHost + "tcp,nw_src=10.128.0.1,nw_dst=10.128.0.5,tp_dst=80", "0 21 30 70 80", "NXM_NX_REG2[]", ""},
		{"host to another node's pod", fromHost + "tcp,nw_src=10.128.0.1,nw_dst=10.129.0.7,tp_dst=80", "0 21 30 90", "1", "192.0.2.2"},
		{"a Service's reply through the host", fromHost + "tcp,nw_src=172.30.0.10,nw_dst=10.128.0.5,tp_src=53", "0 21 30 70 80", "NXM_NX_REG2[]", ""},
		{"from outside through the host", fromHost + "tcp,nw_src=198.51.100.10,nw_dst=10.128.0.5,tp_src=443", "0 21 30 70 80", "NXM_NX_REG2[]", ""},
		{"ARP for a pod on the node", fromA + broadcast + arpA + "arp_tpa=10.128.0.6", "0 20 30 40", "4", ""},
		{"ARP for the gateway", fromA + broadcast + arpA + "arp_tpa=10.128.0.1", "0 20 30", "2", ""},
		{"ARP for a pod on another node", fromA + broadcast + arpA + "arp_tpa=10.129.0.7", "0 20 30 50", "1", "192.0.2.2"},
		{"ARP from another node", "in_port=1,tun_src=192.0.2.2,tun_dst=192.0.2.1,tun_id=0," + broadcast + "arp,arp_op=1,arp_spa=10.129.0.7,arp_tpa=10.128.0.5", "0 10 30 40", "3", ""},
		{"ARP from the host", "in_port=2," + broadcast + "arp,arp_op=1,arp_sha=0a:58:0a:80:00:01,arp_spa=10.128.0.1,arp_tpa=10.128.0.5", "0 30 40", "3", ""},
		{"ARP from the host with another of its addresses", "in_port=2," + broadcast + "arp,arp_op=1,arp_sha=0a:58:0a:80:00:01,arp_spa=192.0.2.1,arp_tpa=10.128.0.5", "0 30 40", "3", "set_field:10.128.0.1->arp_spa"},
		{"odd protocol numbers of the pod's own", fromA + toB + "ip,nw_proto=0," + ipA + "nw_dst=10.128.0.6", "0 20 21 24 25 27 30 70 80", "NXM_NX_REG2[]", ""},
	}
}

// hostile returns packets that must be dropped.
func hostile() map[string]string {
	return map[string]string{
		"another pod's IP address":                    fromA + toB + "tcp,nw_src=10.128.0.6,nw_dst=10.128.0.6,tp_dst=80",
		"the gateway's IP address":                    fromA + toB + "tcp,nw_src=10.128.0.1,nw_dst=10.128.0.6,tp_dst=80",
		"the node's IP address":                       fromA + toB + "tcp,nw_src=192.0.2.1,nw_dst=10.128.0.6,tp_dst=80",
		"a remote pod's IP address":                   fromA + toB + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.6,tp_dst=80",
		"no IP address yet":                           fromA + broadcast + "udp,nw_src=0.0.0.0,nw_dst=255.255.255.255,udp_src=68,udp_dst=67",
		"a broadcast IP source":                       fromA + toB + "udp,nw_src=255.255.255.255,nw_dst=10.128.0.6",
		"a multicast IP source":                       fromA + toB + "udp,nw_src=224.0.0.1,nw_dst=10.128.0.6",
		"a loopback IP source":                        fromA + toB + "udp,nw_src=127.0.0.1,nw_dst=10.128.0.6",
		"another pod's MAC address":                   "in_port=3,dl_src=0a:58:0a:80:00:06," + toB + "tcp," + ipA + "nw_dst=10.128.0.6",
		"a multicast MAC source":                      "in_port=3,dl_src=01:00:5e:00:00:01," + toB + "tcp," + ipA + "nw_dst=10.128.0.6",
		"another pod's port":                          "in_port=4,dl_src=0a:58:0a:80:00:05," + toB + "tcp," + ipA + "nw_dst=10.128.0.6",
		"a port that no pod has":                      "in_port=9,dl_src=0a:58:0a:80:00:05," + toB + "tcp," + ipA + "nw_dst=10.128.0.6",
		"the bridge's own port":                       "in_port=LOCAL,dl_src=0a:58:0a:80:00:05," + toB + "tcp," + ipA + "nw_dst=10.128.0.6",
		"ARP with another sender IP":                  fromA + broadcast + "arp,arp_op=1,arp_spa=10.128.0.6,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.1",
		"ARP with the gateway as sender":              fromA + broadcast + "arp,arp_op=2,arp_spa=10.128.0.1,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.6",
		"ARP with another sender MAC":                 fromA + broadcast + "arp,arp_op=2,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:06,arp_tpa=10.128.0.6",
		"ARP in another's frame":                      "in_port=3,dl_src=0a:58:0a:80:00:06," + broadcast + arpA + "arp_tpa=10.128.0.6",
		"gratuitous ARP for another":                  fromA + broadcast + "arp,arp_op=1,arp_spa=10.128.0.6,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.6",
		"ARP for the node's address":                  fromA + broadcast + arpA + "arp_tpa=192.0.2.1",
		"ARP for a Service":                           fromA + broadcast + arpA + "arp_tpa=172.30.0.1",
		"RARP":                                        fromA + broadcast + "dl_type=0x8035",
		"tunnel to another node":                      fromA + toGateway + "udp," + ipA + "nw_dst=192.0.2.2,udp_dst=4789",
		"tunnel to its own node":                      fromA + toGateway + "udp," + ipA + "nw_dst=192.0.2.1,udp_dst=4789",
		"tunnel to the gateway":                       fromA + toGateway + "udp," + ipA + "nw_dst=10.128.0.1,udp_dst=4789",
		"tunnel to a node that is not known yet":      fromA + toGateway + "udp," + ipA + "nw_dst=192.0.2.77,udp_dst=4789",
		"tunnel by way of a Service":                  fromA + toGateway + "udp," + ipA + "nw_dst=172.30.0.9,udp_dst=4789",
		"DHCP server's offer":                         fromA + toB + "udp," + ipA + "nw_dst=10.128.0.6,udp_src=67,udp_dst=68",
		"ICMP redirect":                               fromA + toB + "icmp," + ipA + "nw_dst=10.128.0.6,icmp_type=5,icmp_code=1",
		"IPv6 router advertisement":                   fromA + "dl_dst=33:33:00:00:00:01,icmp6,ipv6_src=fe80::1,ipv6_dst=ff02::1,icmpv6_type=134",
		"IPv6 redirect":                               fromA + toB + "icmp6,ipv6_src=fe80::1,ipv6_dst=fe80::2,icmpv6_type=137",
		"IPv6 to the host":                            fromA + toGateway + "tcp6,ipv6_src=fe80::1,ipv6_dst=fe80::2,tp_dst=22",
		"MPLS":                                        fromA + toB + "dl_type=0x8847,mpls_label=7",
		"a VLAN tag":                                  fromA + toB + "dl_vlan=5,tcp," + ipA + "nw_dst=10.128.0.6",
		"a VLAN tag of VLAN 0":                        fromA + toB + "vlan_tci=0x1000,tcp," + ipA + "nw_dst=10.128.0.6",
		"LLDP":                                        fromA + "dl_dst=01:80:c2:00:00:0e,dl_type=0x88cc",
		"STP":                                         fromA + "dl_dst=01:80:c2:00:00:00,dl_type=0x05ff",
		"ARP to a switch's address":                   fromA + "dl_dst=01:80:c2:00:00:00," + arpA + "arp_tpa=10.128.0.6",
		"EAPOL":                                       fromA + "dl_dst=01:80:c2:00:00:03,dl_type=0x888e",
		"PPPoE":                                       fromA + broadcast + "dl_type=0x8863",
		"an unknown Ethernet type":                    fromA + toB + "dl_type=0x1234",
		"multicast":                                   fromA + "dl_dst=01:00:5e:00:00:fb,udp," + ipA + "nw_dst=224.0.0.251,udp_dst=5353",
		"multicast in a unicast frame":                fromA + toGateway + "udp," + ipA + "nw_dst=224.0.0.251,udp_dst=5353",
		"unicast in a broadcast frame":                fromA + broadcast + "udp," + ipA + "nw_dst=10.128.0.6",
		"broadcast to the host":                       fromA + toGateway + "udp," + ipA + "nw_dst=255.255.255.255,udp_src=68,udp_dst=67",
		"the host's loopback":                         fromA + toGateway + "tcp," + ipA + "nw_dst=127.0.0.1,tp_dst=10248",
		"address zero":                                fromA + toGateway + "tcp," + ipA + "nw_dst=0.0.0.0,tp_dst=10248",
		"a pod that does not exist":                   fromA + toB + "tcp," + ipA + "nw_dst=10.128.0.99",
		"a node that does not exist":                  fromA + toB + "tcp," + ipA + "nw_dst=10.131.0.9",
		"tunnel: from a foreign host":                 strings.Replace(fromTunnel, "tun_src=192.0.2.2", "tun_src=192.0.2.66", 1) + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.5",
		"tunnel: to another address of the node":      strings.Replace(fromTunnel, "tun_dst=192.0.2.1", "tun_dst=203.0.113.1", 1) + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.5",
		"tunnel: from one node for another's pod":     fromTunnel + "tcp,nw_src=10.130.0.7,nw_dst=10.128.0.5",
		"tunnel: from this node's own pod":            fromTunnel + "tcp,nw_src=10.128.0.6,nw_dst=10.128.0.5",
		"tunnel: from this node's gateway":            fromTunnel + "tcp,nw_src=10.128.0.1,nw_dst=10.128.0.5",
		"tunnel: from outside":                        fromTunnel + "tcp,nw_src=198.51.100.10,nw_dst=10.128.0.5",
		"tunnel: to outside":                          fromTunnel + "tcp,nw_src=10.129.0.7,nw_dst=198.51.100.10",
		"tunnel: to a Service":                        fromTunnel + "tcp,nw_src=10.129.0.7,nw_dst=172.30.0.1",
		"tunnel: to a third node":                     fromTunnel + "tcp,nw_src=10.129.0.7,nw_dst=10.130.0.7",
		"tunnel: to the tunnel's port on the gateway": fromTunnel + "udp,nw_src=10.129.0.7,nw_dst=10.128.0.1,udp_dst=4789",
		"tunnel: tagged":                              fromTunnel + "dl_vlan=5,tcp,nw_src=10.129.0.7,nw_dst=10.128.0.5",
		"tunnel: IPv6":                                fromTunnel + "tcp6,ipv6_src=fe80::1,ipv6_dst=fe80::2",
		"tunnel: ARP for one node's pod from another": fromTunnel + "arp,arp_op=2,arp_spa=10.130.0.7,arp_tpa=10.128.0.5",
		"tunnel: ARP in the name of the gateway":      fromTunnel + "arp,arp_op=2,arp_spa=10.128.0.1,arp_tpa=10.128.0.5",
		"tunnel: ARP to a third node":                 fromTunnel + "arp,arp_op=1,arp_spa=10.129.0.7,arp_tpa=10.130.0.7",
		"host: as a local pod":                        fromHost + "tcp,nw_src=10.128.0.6,nw_dst=10.128.0.5",
		"host: as a remote pod":                       fromHost + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.5",
		"host: from elsewhere to a remote pod":        fromHost + "tcp,nw_src=192.0.2.1,nw_dst=10.129.0.7",
		"host: back to where it came from":            fromHost + "tcp,nw_src=10.128.0.1,nw_dst=198.51.100.10",
		"host: multicast":                             fromHost + "udp,nw_src=10.128.0.1,nw_dst=224.0.0.251",
		"host: ICMP redirect":                         fromHost + "icmp,nw_src=10.128.0.1,nw_dst=10.128.0.5,icmp_type=5",
		"host: IPv6":                                  fromHost + "tcp6,ipv6_src=fe80::1,ipv6_dst=fe80::2",
	}
}

func TestWalks(t *testing.T) {
	s := start(t, sample(false))
	for _, w := range walks() {
		t.Run(w.name, func(t *testing.T) {
			o := s.trace(t, w.packet)
			if o.tables != w.tables || len(o.outputs) != 1 || o.outputs[0] != w.output || !strings.Contains(o.text, w.say) {
				t.Errorf("goes by tables %s to %v, want %s to %s\n%s", o.tables, o.outputs, w.tables, w.output, o.text)
			}
		})
	}
}

func TestHostile(t *testing.T) {
	for _, frag := range []string{"normal", "nx-match"} {
		s := start(t, sample(false))
		s.OFCtl("set-frags", s.Mgmt(s.bridge), frag)
		for name, packet := range hostile() {
			t.Run(frag+"/"+name, func(t *testing.T) {
				o := s.trace(t, packet)
				sent := len(o.leaving()) > 0
				if sent || !strings.Contains(o.text, "Datapath actions: drop") {
					t.Errorf("is let through\n%s", o.text)
				}
			})
		}
	}
}

// A fragment whose port the switch sees is dropped by that port; others pass to the host, which reassembles them.
func TestFragments(t *testing.T) {
	s := start(t, sample(false))
	first := fromA + toGateway + "udp,nw_frag=first," + ipA + "nw_dst=192.0.2.2,udp_dst="
	for _, c := range []struct {
		frags, packet string
		passes        bool
	}{
		{"normal", first + "53", true},
		{"nx-match", first + "53", true},
		{"nx-match", first + "4789", false},
	} {
		s.OFCtl("set-frags", s.Mgmt(s.bridge), c.frags)
		if o := s.trace(t, c.packet); (len(o.leaving()) > 0) != c.passes {
			t.Errorf("frags %s, %s: leaves by %v\n%s", c.frags, c.packet, o.leaving(), o.text)
		}
	}
}

// With connection tracking the same packets pass and the same are dropped. Only packets to the Services' network are tracked, and
// fragments, whose ports only conntrack sees. What the host rejects is not committed.
func TestConntrack(t *testing.T) {
	s := start(t, sample(true))
	for _, w := range walks() {
		t.Run(w.name, func(t *testing.T) {
			for _, state := range []string{"trk,new", "trk,est", "trk,est,rpl"} {
				o := s.trace(t, w.packet, "--ct-next", state)
				if len(o.outputs) != 1 || o.outputs[0] != w.output {
					t.Errorf("%s: goes to %v, want %s\n%s", state, o.outputs, w.output, o.text)
				}
				commits, looked := strings.Contains(o.text, "ct(commit"), strings.Contains(o.text, "ct(table=21")
				if rejected := strings.Contains(w.packet, "nw_dst=172.30."); commits != (looked && state == "trk,new" && !rejected) {
					t.Errorf("%s: looked at is %v, committed is %v\n%s", state, looked, commits, o.text)
				}
				may := strings.Contains(w.packet, "nw_dst=172.30.") || strings.Contains(w.packet, "nw_frag")
				if looked != may {
					t.Errorf("no Service is there, and yet it is looked at: %v\n%s", looked, o.text)
				}
			}
			o := s.trace(t, w.packet, "--ct-next", "trk,inv")
			if looked := strings.Contains(o.text, "ct(table=21"); looked == (len(o.outputs) > 0) {
				t.Errorf("invalid; looked at is %v, and it goes to %v\n%s", looked, o.outputs, o.text)
			}
		})
	}
	for name, packet := range hostile() {
		t.Run(name, func(t *testing.T) {
			o := s.trace(t, packet, "--ct-next", "trk,est,rpl")
			if len(o.leaving()) > 0 {
				t.Errorf("is let through\n%s", o.text)
			}
		})
	}
}
