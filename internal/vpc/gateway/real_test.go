//go:build real

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/northbound"
)

// program programs a gateway's state into its namespace, by the engines.
func program(ctx context.Context, t *testing.T, netns ns.NetNS, state *gateway.State) (nftChanges, linkChanges int) {
	t.Helper()
	path := fmt.Sprintf("/proc/self/fd/%d", netns.Fd())
	for name, value := range state.Sysctls {
		ovntest.Run(t, netns, "sysctl", "-qw", strings.ReplaceAll(name, "/", ".")+"="+value)
	}
	rules, err := ruleset.NewEngine(ruleset.Options{Netns: path, Tables: []nft.Table{{Family: nft.FamilyIPv4, Name: gateway.Table}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rules.Close)
	links, err := marked.New(marked.Options{Namespaces: []string{path}, Devices: []link.Key{{Netns: path, Kind: link.KindDevice, Name: gateway.Outside}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(links.Close)
	want := state.Links(path, "gw1")
	have, err := links.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	linkChange := reconcile.Diff(want, have)
	for key := range linkChange.Delete {
		if key.Netns != path {
			delete(linkChange.Delete, key)
		}
	}
	if err := links.Commit(ctx, linkChange); err != nil {
		t.Fatal(err)
	}
	items, err := rules.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ruleChange := reconcile.Diff(state.Items, items)
	if err := rules.Commit(ctx, ruleChange); err != nil {
		t.Fatal(err)
	}
	return len(ruleChange.Set) + len(ruleChange.Delete), len(linkChange.Set) + len(linkChange.Delete)
}

// testSpoofed sends packets to a floating IP from outside, with the source address of another pod of the VPC. None arrives.
func testSpoofed(t *testing.T, host, floating *ovntest.Pod) {
	t.Helper()
	const honest, spoofed = "192.168.100.10", "10.0.1.11"
	ovntest.Run(t, floating.NetNS, "nft", "add table ip spoofed; add chain ip spoofed in { type filter hook prerouting priority -300; }; "+
		"add rule ip spoofed in ip saddr "+spoofed+" udp dport 7777 counter; add rule ip spoofed in ip saddr "+honest+" udp dport 7778 counter; "+
		"add rule ip spoofed in ip saddr "+honest+" udp dport 7779 counter")
	host.IP("addr", "add", spoofed+"/32", "dev", "lo")
	defer host.IP("addr", "del", spoofed+"/32", "dev", "lo")
	list := func() string { return ovntest.Run(t, floating.NetNS, "nft", "list", "table", "ip", "spoofed") }
	send := func(source string, port int) {
		err := host.Do(func(ns.NetNS) error {
			conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(source)}, &net.UDPAddr{IP: net.ParseIP("192.168.100.232"), Port: port})
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			for range 10 {
				if _, err := conn.Write([]byte("x")); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if source == honest {
			ovntest.Eventually(t, "honest packets arrive", func() bool { return !strings.Contains(list(), fmt.Sprint(port, " counter packets 0 ")) })
		}
	}
	send(honest, 7778) // from then on all neighbours are known
	send(spoofed, 7777)
	send(honest, 7779) // when they have arrived, those before would have, too
	if have := list(); !strings.Contains(have, "7777 counter packets 0 ") {
		t.Errorf("a host outside reaches a pod as %s: %s", spoofed, have)
	}
}

// The complete path of packets between pods of a VPC and an outside network, by OVN and the gateway's engines.
func TestGateway(t *testing.T) {
	site := ovntest.NewSite(t, 1)
	node := site.Chassis[0]
	in := input()
	in.SNATs, in.DNATs, in.FIPs = in.SNATs[2:3], in.DNATs[:2], in.FIPs[:1] // the typo, web, dns, fip01
	in.VPC.Routes, in.VPC.Peerings = in.VPC.Routes[:1], nil
	engine, err := ovn.Open(t.Context(), ovn.Config{Endpoints: []string{site.NB()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	if err := engine.Lead(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	rows := northbound.Router(&northbound.Network{VPC: in.VPC, Subnets: in.Subnets}).Rows
	attach := func(subnet int, address string, isGateway bool) func() *ovntest.Pod {
		s, a := &in.Subnets[subnet], addr(address)
		key, row := northbound.SwitchPort(s, northbound.Port{Addr: a, Gateway: isGateway})
		rows[key] = row
		return func() *ovntest.Pod {
			via := s.Gateway.String()
			if isGateway {
				via = ""
			}
			p := node.AddPod(t, northbound.PortName(s.Name, a), northbound.MAC(a), netip.PrefixFrom(a, 24).String(), via)
			node.Installed(t, p)
			return p
		}
	}
	for i := range in.Subnets {
		maps.Copy(rows, northbound.Switch(&in.Subnets[i], in.VPC.Meta))
	}
	pods := []func() *ovntest.Pod{
		attach(0, "10.0.1.11", false), attach(0, "10.0.1.12", false), attach(1, "10.0.2.13", false), attach(0, "10.0.1.254", true),
	}
	if err := engine.Commit(t.Context(), ovn.Change{Set: rows}); err != nil {
		t.Fatal(err)
	}
	a1, a2, a3, gw := pods[0](), pods[1](), pods[2](), pods[3]()
	host, router := ovntest.Outside(t, node.NetNS)
	for _, p := range []*ovntest.Pod{host, router} {
		ovntest.Run(t, p.NetNS, "nft", "add table ip sources; add chain ip sources in { type filter hook prerouting priority -300; }; "+
			"add rule ip sources in iifname eth0 ip saddr 10.0.0.0/8 counter comment \"private\"; "+
			"add rule ip sources in iifname eth0 ip saddr 192.168.100.0/24 counter comment \"public\"")
	}
	ovntest.Run(t, node.NetNS, "ip", "link", "add", "link", "ens37", "name", "mv", "type", "macvlan", "mode", "bridge")
	ovntest.Run(t, node.NetNS, "ip", "link", "set", "mv", "netns", gw.ProcPath(), "name", "net1")
	for _, device := range []string{"net1", "eth0"} {
		ovntest.Run(t, gw.NetNS, "ethtool", "-K", device, "tx", "off")
	}
	gw.IP("link", "set", "net1", "up")
	for _, setting := range []string{"rp_filter=2", "arp_ignore=8", "arp_announce=0", "arp_filter=1", "proxy_arp=1", "accept_local=1", "route_localnet=1"} {
		for _, device := range []string{"all", "default", "eth0", "net1"} { // a new namespace has the settings of its node
			ovntest.Run(t, gw.NetNS, "sysctl", "-qw", "net.ipv4.conf."+device+"."+setting)
		}
	}
	first := gateway.Compile(in)
	program(t.Context(), t, gw.NetNS, &first.State)
	if n, m := program(t.Context(), t, gw.NetNS, &first.State); n != 0 || m != 0 {
		t.Errorf("programming the same state again changes %d items of nftables and %d links", n, m)
	}
	for _, s := range []struct {
		netns ns.NetNS
		name  string
	}{{a1.NetNS, "a1"}, {a2.NetNS, "a2"}, {a3.NetNS, "a3"}, {host.NetNS, "host"}, {router.NetNS, "router"}} {
		ovntest.Serve(t, s.netns, s.name, 7000)
	}
	a1.Reaches("10.0.1.254")
	expect := func(what string, from ns.NetNS, network, to, want string) {
		t.Helper()
		ask := ovntest.Ask
		if want == "" {
			ask = ovntest.Silent
		}
		if have := ask(t, from, network, to); have != want {
			t.Errorf("%s: %q, want %q", what, have, want)
		}
	}
	expect("a source that no rule matches", a1.NetNS, "tcp4", "1.1.1.1:7000", "")
	if out := ovntest.Run(t, gw.NetNS, "nft", "list", "chain", "ip", gateway.Table, "postrouting"); strings.Contains(out, "_addresses counter packets 0 ") {
		t.Errorf("no packet was counted: %s", out)
	}
	in.SNATs[0].Prefix = prefix("10.0.1.0/24") // the corrected rule
	second := gateway.Compile(in)
	program(t.Context(), t, gw.NetNS, &second.State)
	expect("SNAT", a1.NetNS, "tcp4", "1.1.1.1:7000", "router 192.168.100.230")
	expect("SNAT, UDP", a1.NetNS, "udp4", "192.168.100.10:7000", "host 192.168.100.230")
	expect("a subnet without SNAT", a3.NetNS, "tcp4", "1.1.1.1:7000", "")
	expect("floating IP, out", a2.NetNS, "tcp4", "1.1.1.1:7000", "router 192.168.100.232")
	expect("floating IP, in", host.NetNS, "tcp4", "192.168.100.232:7000", "a2 192.168.100.10")
	expect("port forward to another subnet", host.NetNS, "tcp4", "192.168.100.231:8080", "a3 192.168.100.10")
	expect("port that is not forwarded", host.NetNS, "tcp4", "192.168.100.231:8081", "")
	expect("hairpin to a floating IP", a1.NetNS, "tcp4", "192.168.100.232:7000", "a2 10.0.1.254")
	expect("hairpin to a port forward", a1.NetNS, "tcp4", "192.168.100.231:8080", "a3 10.0.1.254")
	expect("a pod's address from outside", host.NetNS, "tcp4", "10.0.1.11:7000", "")
	host.IP("route", "add", "10.0.0.0/8", "via", "192.168.100.230")
	expect("a pod's address by way of the gateway", host.NetNS, "tcp4", "10.0.1.11:7000", "")
	ovntest.Serve(t, router.NetNS, "geneve", 6081)
	expect("UDP 6081", a1.NetNS, "udp4", "1.1.1.1:6081", "")
	ovntest.Serve(t, a3.NetNS, "a3", 53)
	in.SNATs[0].Prefix = prefix("10.0.0.0/16") // for a3 too
	third := gateway.Compile(in)
	program(t.Context(), t, gw.NetNS, &third.State)
	testUnknownConnections(t, &unknown{from: host, source: "192.168.100.10", open: "192.168.100.231", segments: []segment{
		{"192.168.100.232", layers.TCP{DstPort: 7000, FIN: true}},            // a floating IP
		{"192.168.100.232", layers.TCP{DstPort: 7000, FIN: true, ACK: true}}, // retransmitted by a client that has closed
		{"192.168.100.232", layers.TCP{DstPort: 7000, SYN: true, ACK: true}},
		{"192.168.100.232", layers.TCP{DstPort: 7000, ACK: true}},
		{"192.168.100.231", layers.TCP{DstPort: 8080, FIN: true}}, // a forwarded port
		{"192.168.100.231", layers.TCP{DstPort: 8080, ACK: true, PSH: true}},
		{"192.168.100.231", layers.TCP{DstPort: 8081, ACK: true}},  // a port that is not forwarded
		{"192.168.100.230", layers.TCP{DstPort: 40000, FIN: true}}, // the EIP of an SNAT rule
		{"192.168.100.230", layers.TCP{DstPort: 40000, ACK: true}},
		{"192.168.100.230", layers.TCP{DstPort: 40000, ACK: true, PSH: true}},
	}}, a2, a3)
	testUnknownConnections(t, &unknown{from: a1, source: "10.0.1.11", open: "10.0.1.254", segments: []segment{
		{"192.168.100.232", layers.TCP{DstPort: 7000, FIN: true}}, // the client of a hairpin
		{"10.0.1.254", layers.TCP{DstPort: 40000, FIN: true}},     // the server of a hairpin
		{"10.0.1.254", layers.TCP{DstPort: 40000, ACK: true}},
	}})
	testICMP(t, host, a1, a2)
	testSpoofed(t, host, a2)
	testRemovedRoute(t, gw, host, a1, a3)
	for name, p := range map[string]*ovntest.Pod{"host": host, "router": router} {
		for line := range strings.Lines(ovntest.Run(t, p.NetNS, "nft", "list", "table", "ip", "sources")) {
			none := strings.Contains(line, "packets 0 ")
			if strings.Contains(line, `"private"`) && !none || strings.Contains(line, `"public"`) && none {
				t.Errorf("packets at the %s outside, from the VPC's addresses and from the gateway's: %s", name, line)
			}
		}
	}
}

// segment is a TCP segment to an address.
type segment struct {
	to  string
	tcp layers.TCP
}

// unknown are segments of connections that the gateway's conntrack does not know. The gateway itself answers at the address open.
type unknown struct {
	from         *ovntest.Pod
	source, open string
	segments     []segment
}

// The gateway itself answers no segment of a connection that its conntrack does not know: a reset would end the connection. It answers the
// first segment of a connection to a port that it does not forward. The pods that may receive segments send no resets, so that each answer
// is the gateway's; a segment without FIN and RST reaches them, so that their connections go on.
func testUnknownConnections(t *testing.T, u *unknown, servers ...*ovntest.Pod) {
	t.Helper()
	for _, server := range servers {
		ovntest.Run(t, server.NetNS, "nft", "add table ip test; add chain ip test out { type filter hook output priority 0; }; "+
			"add rule ip test out tcp flags rst counter drop")
	}
	const own, last = 7002, 8099
	var conn *net.IPConn
	err := u.from.Do(func(ns.NetNS) (err error) {
		conn, err = net.ListenIP("ip4:tcp", &net.IPAddr{IP: net.ParseIP(u.source)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, s := range append(u.segments, segment{u.open, layers.TCP{DstPort: last, SYN: true}}) {
		s.tcp.SrcPort, s.tcp.Seq, s.tcp.Ack, s.tcp.Window = own, 1000, 2000, 1024
		ip := &layers.IPv4{SrcIP: net.ParseIP(u.source), DstIP: net.ParseIP(s.to), Protocol: layers.IPProtocolTCP}
		if err := s.tcp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		buffer := gopacket.NewSerializeBuffer()
		if err := s.tcp.SerializeTo(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.WriteTo(buffer.Bytes(), &net.IPAddr{IP: ip.DstIP}); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for answered := false; !answered; {
		answer := make([]byte, 1500)
		n, from, err := conn.ReadFrom(answer)
		if err != nil {
			t.Fatalf("no answer from a port of %s that is not forwarded: %v", u.open, err)
		}
		var tcp layers.TCP
		if err := tcp.DecodeFromBytes(answer[:n], gopacket.NilDecodeFeedback); err != nil || tcp.DstPort != own {
			continue
		}
		if answered = tcp.SrcPort == last; !answered {
			t.Errorf("%s answers %s at port %d, reset is %t", from, u.source, tcp.SrcPort, tcp.RST)
		}
	}
	for i, server := range servers {
		ovntest.Eventually(t, fmt.Sprintf("a segment reaches pod %d", i), func() bool {
			return !strings.Contains(ovntest.Run(t, server.NetNS, "nft", "list", "table", "ip", "test"), "packets 0 ")
		})
		ovntest.Run(t, server.NetNS, "nft", "delete", "table", "ip", "test")
	}
}

// The gateway answers pings of addresses that are no floating IPs, and forwards ICMP errors in both directions.
func testICMP(t *testing.T, host, translated, floating *ovntest.Pod) {
	t.Helper()
	for _, ping := range []struct {
		from *ovntest.Pod
		to   string
	}{
		{host, "192.168.100.221"},
		{host, "192.168.100.230"},
		{host, "192.168.100.231"},
		{host, "192.168.100.232"}, // a2 answers
		{translated, "10.0.1.254"},
		{translated, "192.168.100.230"},
	} {
		ping.from.Reaches(ping.to)
	}
	for what, refused := range map[string]net.Conn{
		"SNAT":                 dial(t, translated, "192.168.100.10:9"),
		"a floating IP, out":   dial(t, floating, "192.168.100.10:9"),
		"a floating IP, in":    dial(t, host, "192.168.100.232:9"),
		"the gateway's own":    dial(t, host, "192.168.100.221:9"),
		"a hairpin to a port":  dial(t, translated, "192.168.100.232:9"),
		"an EIP without a FIP": dial(t, host, "192.168.100.230:9"),
	} {
		if err := send(refused); err != nil {
			t.Fatal(err)
		}
		if err := refused.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := refused.Read(make([]byte, 64)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: a packet to a closed port: %v, want the ICMP error", what, err)
		}
	}
}

// The connections of an internal address that has no route any more do not leave by net1, where the default route leads: neither those to a
// forwarded address, from outside and from inside, nor the answers to one that the gateway translated.
func testRemovedRoute(t *testing.T, gw, host, neighbour, inside *ovntest.Pod) {
	t.Helper()
	forwarded, hairpin := dial(t, host, "192.168.100.231:8080"), dial(t, neighbour, "192.168.100.231:8080")
	var answers net.PacketConn
	err := host.Do(func(ns.NetNS) (err error) {
		answers, err = net.ListenPacket("udp4", "192.168.100.10:7001") //nolint:noctx // on this thread, which is in the namespace
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answers.Close() })
	translated := dial(t, inside, "192.168.100.10:7001")
	deadline := time.Now().Add(time.Minute)
	for _, err := range []error{
		forwarded.SetReadDeadline(deadline), hairpin.SetReadDeadline(deadline), answers.SetReadDeadline(deadline), send(forwarded), send(hairpin), send(translated),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range []net.Conn{forwarded, hairpin} {
		if _, err := conn.Read(make([]byte, 64)); err != nil {
			t.Fatalf("the port forward for UDP does not answer: %v", err)
		}
	}
	_, client, err := answers.ReadFrom(make([]byte, 64))
	if err != nil {
		t.Fatalf("no packet of the translated connection: %v", err)
	}
	if _, err := answers.WriteTo([]byte("\n"), client); err != nil { // the connection is established now
		t.Fatal(err)
	}
	if err := translated.SetReadDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	if _, err := translated.Read(make([]byte, 64)); err != nil {
		t.Fatalf("no answer on the translated connection: %v", err)
	}
	dropped := func() (packets int) {
		out := ovntest.Run(t, gw.NetNS, "nft", "list", "chain", "ip", gateway.Table, "forward")
		_, counter, _ := strings.Cut(out, "\tcounter packets ")
		if _, err := fmt.Sscanf(counter, "%d", &packets); err != nil {
			t.Fatalf("no counter at the end of the chain: %v\n%s", err, out)
		}
		return packets
	}
	before := dropped()
	gw.IP("route", "del", "10.0.2.0/24")
	for i, c := range []struct {
		what string
		send func() error
	}{
		{"a packet from outside to the forwarded address", func() error { return send(forwarded) }},
		{"a packet from inside to the forwarded address", func() error { return send(hairpin) }},
		{"the answer", func() error {
			_, err := answers.WriteTo([]byte("\n"), client)
			return err
		}},
	} {
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		ovntest.Eventually(t, c.what+" is dropped", func() bool { return dropped() == before+i+1 })
	}
	if err := send(dial(t, neighbour, "192.168.100.231:8080")); err != nil {
		t.Fatal(err)
	}
	ovntest.Eventually(t, "a new connection to the forwarded address is dropped", func() bool {
		out := ovntest.Run(t, gw.NetNS, "nft", "list", "chain", "ip", gateway.Table, "postrouting")
		return strings.Contains(out, "status dnat counter packets 1 ")
	})
}

// dial returns a UDP connection from a pod to an address.
func dial(t *testing.T, from *ovntest.Pod, to string) (conn net.Conn) {
	t.Helper()
	err := from.Do(func(ns.NetNS) (err error) {
		conn, err = net.Dial("udp4", to) //nolint:noctx // on this thread, which is in the namespace
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// send sends a line, which servers of the test answer.
func send(conn net.Conn) error {
	_, err := conn.Write([]byte("\n"))
	return err
}
