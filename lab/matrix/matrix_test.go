package matrix

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/hostile"
)

func nodes(n int) (hosts []Party, gateways map[string]netip.Addr) {
	gateways = map[string]netip.Addr{}
	for i := 1; i <= n; i++ {
		name := fmt.Sprintf("n%d", i)
		hosts = append(hosts, Party{Name: name, Node: name, IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), kind: host})
		gateways[name] = netip.AddrFrom4([4]byte{10, 128, byte(2 * i), 1})
	}
	return hosts, gateways
}

func podOn(node, n byte) Party {
	return Party{
		Name: fmt.Sprintf("p%d%d", node, n), Node: fmt.Sprintf("n%d", node), kind: pod,
		IP: netip.AddrFrom4([4]byte{10, 128, 2 * node, 1 + n}),
	}
}

var beyond = Party{Name: "outside", IP: netip.MustParseAddr("198.51.100.10"), kind: outside} //nolint:gochecknoglobals // a constant

func TestWays(t *testing.T) {
	for _, test := range []struct {
		name  string
		nodes int
		pods  []Party
		want  []string
	}{
		{"one node, one pod: what there is", 1, []Party{podOn(1, 1)}, []string{
			"pod to its own host: p11 to n1 as 10.128.2.2",
			"host to its own pod: n1 to p11 as 10.128.2.1",
			"pod to outside: p11 to outside as 192.0.2.1",
		}},
		{"two nodes, a neighbour on the first", 2, []Party{podOn(1, 1), podOn(1, 2), podOn(2, 1)}, []string{
			"pod to pod, same node: p11 to p12 as 10.128.2.2",
			"pod to pod, other node: p11 to p21 as 10.128.2.2",
			"pod to pod, other node: p21 to p11 as 10.128.4.2",
			"pod to its own host: p11 to n1 as 10.128.2.2",
			"pod to its own host: p21 to n2 as 10.128.4.2",
			"pod to another host: p11 to n2 as 192.0.2.1",
			"pod to another host: p21 to n1 as 192.0.2.2",
			"host to its own pod: n1 to p11 as 10.128.2.1",
			"host to its own pod: n2 to p21 as 10.128.4.1",
			"host to a pod elsewhere: n1 to p21 as 10.128.2.1",
			"host to a pod elsewhere: n2 to p11 as 10.128.4.1",
			"pod to outside: p11 to outside as 192.0.2.1",
			"pod to outside: p21 to outside as 192.0.2.2",
		}},
		{"a node without pods", 2, []Party{podOn(2, 1)}, []string{
			"pod to its own host: p21 to n2 as 10.128.4.2",
			"pod to another host: p21 to n1 as 192.0.2.2",
			"host to its own pod: n2 to p21 as 10.128.4.1",
			"host to a pod elsewhere: n1 to p21 as 10.128.2.1",
			"pod to outside: p21 to outside as 192.0.2.2",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			hosts, gateways := nodes(test.nodes)
			var got []string
			for _, w := range ways(test.pods, hosts, beyond, gateways, gateways) {
				got = append(got, fmt.Sprintf("%s: %s to %s as %s", w.Kind, w.From.Name, w.To.Name, w.Source))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestServiceWays(t *testing.T) {
	pods := []Party{podOn(1, 1), podOn(1, 2), podOn(2, 1)}
	services := []Party{
		{Name: "web", IP: netip.MustParseAddr("172.30.1.1"), kind: service, port: 80, answers: "p12", name: "web.ns.svc.cluster.local."},
		{Name: "other", IP: netip.MustParseAddr("172.30.1.2"), kind: service, port: 80, answers: "nobody of the scene"},
	}
	var got []string
	for _, w := range serviceWays(pods, services, newRealms(plan.NetworkOverlay, "")[0].hairpin) {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s: %s to %s as %s %s", w.Kind, w.From.Name, w.To.Name, w.Source, w.Name)))
	}
	want := []string{
		"pod to Service, endpoint here: p11 to web as 10.128.2.2",
		"pod to Service, endpoint elsewhere: p21 to web as 10.128.4.2",
		"pod to itself by its Service: p12 to web as 169.254.0.1",
		"pod to Service by name: p11 to web as 10.128.2.2 web.ns.svc.cluster.local.",
		"pod to Service by name: p21 to web as 10.128.4.2 web.ns.svc.cluster.local.",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTable(t *testing.T) {
	a, b := podOn(1, 1), podOn(2, 1)
	good := Measured{Sent: 20, Answered: 20, Median: 512 * time.Microsecond}
	web := Party{Name: "web", IP: netip.MustParseAddr("172.30.1.1"), kind: service}
	r := &Report{
		Ways: []Way{
			{Kind: "pod to pod, other node", From: a, To: b, Source: a.IP, Seen: a.IP, Reached: true, HTTP: good, Ping: good, AsItMust: true},
			{Kind: "pod to outside", From: a, To: beyond, Source: netip.MustParseAddr("192.0.2.1"), Seen: a.IP, Reached: true, HTTP: good, Ping: good},
			{
				Kind: "pod to pod, other node", From: b, To: a, Source: b.IP,
				HTTP: Measured{Sent: 3, Problem: "no route"}, Ping: Measured{Sent: 20, Answered: 19, Problem: "timeout"},
			},
			{Kind: "pod to Service by name", From: a, To: web, Name: "web", Source: a.IP, Seen: a.IP, Reached: true, DNS: good, HTTP: good, AsItMust: true},
			{Kind: "pod to Service by name", From: b, To: web, Name: "web", Source: b.IP, Seen: b.IP, DNS: Measured{Sent: 3, Problem: "refused"}, HTTP: good},
		},
		Judged: []Judged{
			{
				Kind: "in its project, same node", From: member("shop", a), To: member("shop", b), HTTP: Cell{Must: true, Measured: good, Arrived: 5, AsItMust: true},
				Ping: Cell{Measured: Measured{Sent: 1, Problem: "timeout"}, AsItMust: true}, Seen: a.IP, Control: true, ControlName: "it to p, n1 to the receiver", AsItMust: true,
			},
			{
				Kind: "to another project, other node", From: member("street", a), To: member("shop", b), HTTP: Cell{Measured: Measured{Sent: 1, Problem: "timeout"}, Arrived: 1},
				Ping: Cell{Measured: Measured{Sent: 1, Problem: "timeout"}, AsItMust: true}, ControlName: "it to p, n1 to the receiver (no route)",
			},
			{
				Kind: "to another project, other node", From: member("shop", a), To: member("street", b), Seen: a.IP,
				HTTP: Cell{Must: true, Measured: good, Arrived: 5, AsItMust: true}, Ping: Cell{Must: true, Measured: good, Arrived: 5, AsItMust: true}, AsItMust: true,
			},
		},
		Tricks: []Trick{
			{Kind: "pod with another's IP address", From: a, Sent: 90, Control: true, ControlName: "UDP in its own name", AsItMust: true},
			{
				Kind: "pod's ARP for another's address", From: a, Sent: 96, Arrived: 1, Control: false, ControlName: "ARP in its own name",
				Examples: []string{"gratuitous ARP: announcing the gateway: seen at ns/p12"},
			},
		},
	}
	var got bytes.Buffer
	if err := r.Table(&got); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "table.golden")
	goldentest.Compare(t, golden, got.String())
}

// member is a pod of a project.
func member(project string, p Party) Party {
	p.key = project + "/" + p.Name
	return p
}

func TestJudgedWays(t *testing.T) {
	pods := []Party{member("shop", podOn(1, 1)), member("shop", podOn(2, 1)), member("street", podOn(1, 2))}
	var got []string
	for _, row := range judgedWays(pods) {
		got = append(got, fmt.Sprintf("%s: %s to %s", row.Kind, row.From.key, row.To.key))
	}
	want := []string{
		"in its project, other node: shop/p11 to shop/p21",
		"in its project, other node: shop/p21 to shop/p11",
		"to another project, same node: shop/p11 to street/p12",
		"to another project, other node: shop/p21 to street/p12",
		"to another project, same node: street/p12 to shop/p11",
		"to another project, other node: street/p12 to shop/p21",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// frameOf returns a frame from one pod to another.
func frameOf(t *testing.T, from, to Party, layer gopacket.SerializableLayer, protocol layers.IPProtocol) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: from.IP.AsSlice(), DstIP: to.IP.AsSlice()}
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, eth, ip, layer); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// Denied packets must not arrive, and they must not be missing because the path is broken: a missing answer is not enough. Replies in
// exchanges that the receiver began do not count as arrivals.
func TestConclude(t *testing.T) {
	a, b := podOn(1, 1), podOn(2, 1)
	syn := frameOf(t, a, b, &layers.TCP{SrcPort: 4000, DstPort: podPort, SYN: true}, layers.IPProtocolTCP)
	answers := [][]byte{
		frameOf(t, a, b, &layers.TCP{SrcPort: podPort, DstPort: 4000, SYN: true, ACK: true}, layers.IPProtocolTCP),
		frameOf(t, a, b, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoReply, 0)}, layers.IPProtocolICMPv4),
		frameOf(t, b, a, &layers.TCP{SrcPort: 4000, DstPort: podPort, SYN: true}, layers.IPProtocolTCP),
	}
	echo := frameOf(t, a, b, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0)}, layers.IPProtocolICMPv4)
	none, all := Measured{Sent: 1}, Measured{Sent: 5, Answered: 5}
	for _, test := range []struct {
		name   string
		row    Judged
		frames [][]byte
		want   bool
	}{
		{"all refused", Judged{HTTP: Cell{Measured: none}, Ping: Cell{Measured: none}, Control: true}, answers, true},
		{"the way is closed", Judged{HTTP: Cell{Measured: none}, Ping: Cell{Measured: none}}, answers, false},
		{"a SYN arrived, unanswered", Judged{HTTP: Cell{Measured: none}, Ping: Cell{Measured: none}, Control: true}, append(answers, syn), false},
		{"an echo arrived", Judged{HTTP: Cell{Measured: none}, Ping: Cell{Measured: none}, Control: true}, append(answers, echo), false},
		{"HTTP allowed", Judged{HTTP: Cell{Must: true, Measured: all}, Ping: Cell{Measured: none}, Seen: a.IP, Control: true}, [][]byte{syn}, true},
		{"HTTP allowed, by another source", Judged{HTTP: Cell{Must: true, Measured: all}, Ping: Cell{Measured: none}, Seen: b.IP, Control: true}, [][]byte{syn}, false},
		{"HTTP allowed and lost", Judged{HTTP: Cell{Must: true, Measured: Measured{Sent: 5, Answered: 4}}, Ping: Cell{Must: true, Measured: all}, Seen: a.IP}, nil, false},
		{"all allowed", Judged{HTTP: Cell{Must: true, Measured: all}, Ping: Cell{Must: true, Measured: all}, Seen: a.IP}, [][]byte{syn, echo}, true},
	} {
		test.row.From, test.row.To = a, b
		test.row.conclude(test.frames)
		if test.row.AsItMust != test.want || (test.row.problem() == "") != test.want {
			t.Errorf("%s: as it must be: %t, want %t: %s", test.name, test.row.AsItMust, test.want, test.row.problem())
		}
	}
}

func scenery(t *testing.T) *cast {
	t.Helper()
	end := func(n byte) hostile.End {
		return hostile.End{MAC: []byte{2, 0, 0, 0, 0, n}, IP: netip.AddrFrom4([4]byte{10, 128, 0, n})}
	}
	c := &cast{
		podDevice: tun,
		attacker:  Party{Name: "a", Node: "n1", key: "ns/a"}, neighbour: Party{Name: "b", Node: "n1", key: "ns/b"},
		remote: Party{Name: "c", Node: "n2", key: "ns/c"},
		scene: hostile.Scene{
			Attacker: end(2), Neighbour: end(3), Remote: end(4), Gateway: end(1), HostEnd: []byte{2, 0, 0, 0, 1, 0},
			Node: netip.MustParseAddr("192.0.2.1"), OtherNode: netip.MustParseAddr("192.0.2.2"),
			Service: netip.MustParseAddr("172.30.0.1"), VXLANPort: vxlanPort,
		},
	}
	if err := c.makeControls(); err != nil {
		t.Fatal(err)
	}
	return c
}

// A row is as expected if none of its frames was seen and its honest frame was: neither is enough alone.
func TestJudge(t *testing.T) {
	c := scenery(t)
	frames, err := hostile.Frames(c.scene)
	if err != nil {
		t.Fatal(err)
	}
	rows, sent, err := sort(frames, c.attacker)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string][]string{}
	for i, h := range c.controls {
		at := h.at
		if i == 1 {
			at = "elsewhere" // the honest frame of the second row does not arrive where it should
		}
		seen[h.marker] = []string{at}
	}
	for _, f := range sent {
		if f.row == 0 {
			seen[string(f.Marker)] = []string{"ns/c"}
			break
		}
	}
	judge(rows, sent, c.controls, c.beyondHost(sent, seen))
	for i, row := range rows {
		if want := i > 1; row.AsItMust != want {
			t.Errorf("%s: as it must be: %t, want %t: %+v", row.Kind, row.AsItMust, want, row)
		}
	}
	if rows[0].Arrived != 1 || len(rows[0].Examples) != 1 {
		t.Errorf("the frame that arrived is not told: %+v", rows[0])
	}
}

// A fragment may reach its own host, which never gets the rest; a whole packet may not, and nothing may go further.
func TestFragmentsStayWithTheirHost(t *testing.T) {
	c := scenery(t)
	frames, err := hostile.Frames(c.scene)
	if err != nil {
		t.Fatal(err)
	}
	_, sent, err := sort(frames, c.attacker)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string][]string{}
	for _, f := range sent {
		seen[string(f.Marker)] = []string{"n1, tun0", "n2, tun0"}
	}
	seen = c.beyondHost(sent, seen)
	fragments, whole := 0, 0
	for _, f := range sent {
		want := 2
		if isFragment(f.Data) {
			want = 1
			fragments++
		} else {
			whole++
		}
		if len(seen[string(f.Marker)]) != want {
			t.Errorf("%s: %s: seen at %q", f.Class, f.Name, seen[string(f.Marker)])
		}
	}
	if fragments == 0 || whole == 0 {
		t.Errorf("%d fragments and %d whole packets among the frames: there must be some of each", fragments, whole)
	}
}

func TestMarkers(t *testing.T) {
	frame := []byte("...hostile-0007-frame...control-0001-framehostile-0008-frame...hostile-")
	want := []string{"hostile-0007-frame", "hostile-0008-frame", "control-0001-frame"}
	if diff := cmp.Diff(want, markers(frame)); diff != "" {
		t.Error(diff)
	}
}

func TestRepeatGivesUp(t *testing.T) {
	never := repeat(20, func(int) (time.Duration, error) { return 0, os.ErrDeadlineExceeded })
	if never.Sent != giveUp || never.Answered != 0 || never.Problem == "" {
		t.Errorf("a way that is closed: %+v", never)
	}
	flaky := repeat(20, func(n int) (time.Duration, error) {
		if n == 4 {
			return 0, os.ErrDeadlineExceeded
		}
		return time.Duration(n), nil
	})
	if flaky.Sent != 20 || flaky.Answered != 19 || flaky.Problem == "" {
		t.Errorf("one lost of 20: %+v", flaky)
	}
}
