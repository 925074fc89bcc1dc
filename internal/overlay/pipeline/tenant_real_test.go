//go:build real

package pipeline_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/transport"
)

// sender is the source of a packet, with the VNID that it should have.
type sender struct {
	name, from string
	vnid       uint32
	pod        netip.Addr // of a local pod
}

// senders returns senders of all kinds, with VNIDs that exist and one that does not.
func senders(pods []pipeline.Pod) []sender {
	all := []sender{
		{name: "host", from: "in_port=2,dl_src=0a:58:0a:80:00:01,%s,nw_src=10.128.0.1"},
		{name: "outside", from: "in_port=2,dl_src=0a:58:0a:80:00:01,%s,nw_src=198.51.100.10"},
	}
	for _, pod := range pods {
		all = append(all, sender{
			name: string(pod.Owner), vnid: pod.VNID, pod: pod.Addrs[0],
			from: fmt.Sprintf("in_port=%d,dl_src=%s,%%s,nw_src=%s", pod.OFPort, pipeline.PodMAC(pod.Addrs[0]), pod.Addrs[0]),
		})
	}
	for _, vnid := range []uint32{0, 1, 42, 77, 99, 1<<24 - 1} {
		for _, from := range []string{"10.129.0.7", "10.129.0.1"} {
			all = append(all, sender{
				name: fmt.Sprintf("%s with VNI %d", from, vnid), vnid: vnid,
				from: fmt.Sprintf("in_port=1,tun_src=192.0.2.2,tun_dst=192.0.2.1,tun_id=%d,%%s,nw_src=%s", vnid, from),
			})
		}
	}
	return all
}

// reaches implements the rule independently of the flows: the same VNID, or one of them global, or one that is admitted during a move.
func reaches(from sender, to pipeline.Pod) bool {
	return from.vnid == 0 || to.VNID == 0 || from.vnid == to.VNID || slices.Contains(to.Admits, from.vnid)
}

// Each sender reaches each pod, or does not, as the rule requires, by every protocol and in each connection state.
func TestTenantMatrix(t *testing.T) {
	for _, conntrack := range []bool{false, true} {
		c, pods := tenantSample(conntrack)
		s := startWith(t, sorted(tenantSections(c, pods)), len(pods))
		states := [][]string{nil}
		if conntrack {
			states = [][]string{{"--ct-next", "trk,new"}, {"--ct-next", "trk,est"}, {"--ct-next", "trk,est,rpl"}}
		}
		passed, stopped := 0, 0
		for _, from := range senders(pods) {
			for _, to := range pods {
				if from.pod == to.Addrs[0] {
					continue
				}
				for _, protocol := range []string{"tcp,tp_dst=80", "udp,udp_dst=53", "icmp,icmp_type=8", "icmp,icmp_type=3", "ip,nw_proto=47", "udp,nw_frag=later"} {
					for _, state := range states {
						frame := fmt.Sprintf(from.from, fmt.Sprintf("dl_dst=%s,%s", pipeline.PodMAC(to.Addrs[0]), protocol))
						o := s.trace(t, frame+",nw_dst="+to.Addrs[0].String(), state...)
						var want []string
						if reaches(from, to) {
							want = []string{fmt.Sprint(to.OFPort)}
							passed++
						} else {
							stopped++
						}
						if got := o.leaving(); !slices.Equal(got, want) {
							t.Fatalf("%s (VNID %d) to %s (VNID %d, admits %d), %s %s: leaves by %v, want %v\n%s",
								from.name, from.vnid, to.Owner, to.VNID, to.Admits, protocol, state, got, want, o.text)
						}
					}
				}
			}
		}
		t.Logf("tracking %v: %d packets passed, %d stopped", conntrack, passed, stopped)
	}
}

// The VNI is the sender's VNID, for ARP as well. Packets to a host with a VNID of its own have that VNID.
func TestTenantTunnel(t *testing.T) {
	c, pods := tenantSample(true)
	s := startWith(t, sorted(tenantSections(c, pods)), len(pods))
	for _, pod := range pods {
		mac := pipeline.PodMAC(pod.Addrs[0]).String()
		from := fmt.Sprintf("in_port=%d,dl_src=%s,", pod.OFPort, mac)
		for name, packet := range map[string]string{
			"IPv4": from + toRemote + "tcp,nw_src=" + pod.Addrs[0].String() + ",nw_dst=10.129.0.7,tp_dst=80",
			"ARP":  from + broadcast + "arp,arp_op=1,arp_sha=" + mac + ",arp_spa=" + pod.Addrs[0].String() + ",arp_tpa=10.129.0.7",
		} {
			o := s.trace(t, packet)
			vni := fmt.Sprintf("NXM_NX_TUN_ID[0..31] is now %#x\n", pod.VNID)
			if pod.VNID == 0 {
				vni = "NXM_NX_TUN_ID[0..31] is now 0\n"
			}
			if !slices.Equal(o.leaving(), []string{"1"}) || !strings.Contains(o.text, vni) || !strings.Contains(o.text, "set_field:192.0.2.2->tun_dst") {
				t.Errorf("%s of %s, VNID %d, leaves by %v without %s\n%s", name, pod.Owner, pod.VNID, o.leaving(), vni, o.text)
			}
		}
		o := s.trace(t, from+toRemote+"tcp,nw_src="+pod.Addrs[0].String()+",nw_dst=10.130.0.7,tp_dst=80")
		if !slices.Equal(o.leaving(), []string{"1"}) || !strings.Contains(o.text, "set_field:0x63->tun_id") || !strings.Contains(o.text, "set_field:192.0.2.9->tun_dst") {
			t.Errorf("to the host with a VNID of its own, %s sends with another\n%s", pod.Owner, o.text)
		}
	}
	// ARP is not isolated: it has only addresses.
	o := s.trace(t, fromA+broadcast+arpA+"arp_tpa=10.128.0.6")
	if !slices.Equal(o.leaving(), []string{"4"}) {
		t.Errorf("ARP to another project's pod leaves by %v\n%s", o.leaving(), o.text)
	}
}

// Packets that are hostile in a flat network are dropped between projects as well, and no sender can use another project's VNID.
func TestTenantHostile(t *testing.T) {
	c, pods := tenantSample(true)
	s := startWith(t, sorted(tenantSections(c, pods)), len(pods))
	packets := hostileBesideAnswers()
	packets["tunnel: a foreign host with VNI 0"] = strings.Replace(fromTunnel, "tun_src=192.0.2.2", "tun_src=192.0.2.66", 1) + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.8"
	packets["tunnel: a foreign host with a project's VNI"] = strings.Replace(strings.Replace(fromTunnel, "tun_src=192.0.2.2", "tun_src=192.0.2.66", 1), "tun_id=0", "tun_id=42", 1) + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.5"
	packets["a pod that says it came by the tunnel"] = strings.Replace(fromA, "in_port=3", "in_port=3,tun_src=192.0.2.2,tun_dst=192.0.2.1,tun_id=77", 1) + toB + "tcp," + ipA + "nw_dst=10.128.0.6"
	packets["another project's pod"] = fromA + toB + "tcp," + ipA + "nw_dst=10.128.0.6,tp_dst=80"
	packets["another project's pod by way of the gateway"] = fromA + toGateway + "tcp," + ipA + "nw_dst=10.128.0.6,tp_dst=80"
	packets["another project's pod in an ICMP error"] = fromA + toB + "icmp," + ipA + "nw_dst=10.128.0.6,icmp_type=3"
	for name, packet := range packets {
		t.Run(name, func(t *testing.T) {
			for _, state := range []string{"trk,new", "trk,est", "trk,est,rpl", "trk,inv"} {
				if o := s.trace(t, packet, "--ct-next", state); len(o.leaving()) > 0 {
					t.Errorf("%s: is let through\n%s", state, o.text)
				}
			}
		})
	}
}

// Isolation applies to the endpoint of a Service and not to its address. The host rejects packets of isolated projects to Services that the
// switch does not serve: by forwarding them it would hide the sender.
func TestTenantServices(t *testing.T) {
	n := startNode(t, 4)
	n.config.Mode = pipeline.ModeMultitenant
	n.flows = n.config.Static()
	vnids := map[string]uint32{"a": 42, "b": 42, "c": 77, "d": 0}
	for name, pod := range n.pods {
		pod.VNID = vnids[name]
		maps.Copy(n.flows, n.config.Pod(pod.Pod))
		n.serve(pod.space, name, "tcp", ":8080")
		n.serve(pod.space, name, "udp", ":5353")
	}
	n.serve(n.NetNS, "host", "tcp", "192.0.2.1:6443")
	n.in(n.NetNS, "nft", "add table inet t; add chain inet t p { type filter hook prerouting priority 0; };"+
		"add rule inet t p ether saddr "+pipeline.RejectMAC().String()+" meta l4proto tcp reject with tcp reset;"+
		"add rule inet t p ether saddr "+pipeline.RejectMAC().String()+" reject")
	n.serve(n.NetNS, "kube-proxy", "tcp", "10.128.0.1:81") // in place of a Service that the host serves
	n.in(n.NetNS, "nft", "add table ip k; add chain ip k p { type nat hook prerouting priority -100; };"+
		"add rule ip k p ip daddr 172.30.0.77 tcp dport 80 ether saddr != "+pipeline.RejectMAC().String()+" dnat to 10.128.0.1:81")
	maps.Copy(n.flows, leftToHost(n.config, "172.30.0.77"))
	n.apply(
		vip("own", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080"), vip("ownu", "172.30.0.10", transport.UDP, 53, "10.128.0.6:5353"),
		vip("self", "172.30.0.11", transport.TCP, 80, "10.128.0.5:8080"),
		vip("others", "172.30.0.12", transport.TCP, 80, "10.128.0.7:8080"), vip("othersu", "172.30.0.12", transport.UDP, 53, "10.128.0.7:5353"),
		vip("global", "172.30.0.13", transport.TCP, 80, "10.128.0.8:8080"),
		vip("kubernetes", "172.30.0.1", transport.TCP, 443, "192.0.2.1:6443"),
	)
	n.want("a", "tcp", "172.30.0.10:80", "b sees 10.128.0.5")
	n.want("a", "udp", "172.30.0.10:53", "b sees 10.128.0.5")
	n.want("a", "tcp", "172.30.0.11:80", "a sees 169.254.0.1")
	n.want("a", "tcp", "172.30.0.13:80", "d sees 10.128.0.5")
	n.want("a", "tcp", "172.30.0.1:443", "host sees 10.128.0.5")
	n.want("a", "tcp", "10.128.0.6:8080", "b sees 10.128.0.5")
	n.want("a", "tcp", "10.128.0.8:8080", "d sees 10.128.0.5")
	n.want("d", "tcp", "172.30.0.12:80", "c sees 10.128.0.8")
	n.want("d", "udp", "172.30.0.12:53", "c sees 10.128.0.8")
	n.want("c", "tcp", "172.30.0.12:80", "c sees 169.254.0.1")
	n.want("d", "tcp", "172.30.0.77:80", "kube-proxy sees 10.128.0.8")
	for _, no := range [][2]string{{"tcp", "172.30.0.12:80"}, {"udp", "172.30.0.12:53"}, {"tcp", "10.128.0.7:8080"}} { // of another project
		n.silent("a", no[0], no[1])
	}
	if got, err := n.ask("a", "tcp", "172.30.0.77:80"); !refused(err) {
		t.Errorf("a asks for a Service that the host serves: %q, %v; want it refused", got, err)
	}

	t.Run("a connection ends when its project moves away", func(t *testing.T) {
		direct, err := n.dial("a", "tcp", "10.128.0.6:8080")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = direct.Close() }()
		served, err := n.dial("a", "tcp", "172.30.0.10:80")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = served.Close() }()
		move := func(vnid uint32) {
			n.pods["b"].VNID = vnid
			maps.Copy(n.flows, n.config.Pod(n.pods["b"].Pod))
			n.apply(vip("own", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080"))
		}
		for key := range n.config.Pod(n.pods["b"].Pod) {
			delete(n.flows, key)
		}
		move(77)
		if got, err := sayWithin(long, direct); err == nil {
			t.Errorf("the connection goes on: %q", got)
		}
		if got, err := sayWithin(long, served); err == nil {
			t.Errorf("the connection by a Service goes on: %q", got)
		}
		n.want("c", "tcp", "10.128.0.6:8080", "b sees 10.128.0.7")
	})
}
