package publish_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
)

const table = "test"

// refusing is the node's rules; the kernel refuses changes while refuse is set.
type refusing struct {
	*nft.Fake
	refuse atomic.Bool
}

func (e *refusing) Commit(ctx context.Context, change reconcile.Change[nft.Key, nft.Item]) error {
	if e.refuse.Load() {
		return errors.New("device or resource busy")
	}
	return e.Fake.Commit(ctx, change)
}

// conntrack records what was to be flushed.
type conntrack struct {
	flushed []string
	err     error
}

func (c *conntrack) FlushTo(protocol uint8, ports ...netip.AddrPort) error {
	c.flushed = append(c.flushed, fmt.Sprint(protocol, ports))
	return c.err
}

func (c *conntrack) FlushTranslatedTo(addresses ...netip.Addr) error {
	c.flushed = append(c.flushed, fmt.Sprint(addresses))
	return c.err
}

// node is a node's rules, in a loop that runs until the test ends.
type node struct {
	publish.Options
	engine    *refusing
	conntrack *conntrack
	records   []attach.Record
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{engine: &refusing{Fake: nft.NewFake()}, conntrack: &conntrack{}}
	loop := reconcile.NewLoop[nft.Key, nft.Item](n.engine, reconcile.Options[nft.Key, nft.Item]{Name: "nft"})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = loop.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	n.Options = publish.Options{
		Rules: loop, Compile: func(of *hostport.Published) publish.Items { return of.Elements(table) }, Tracked: n.conntrack, BootID: "this", IPv6: true,
		Attached: func() []attach.Record { return n.records },
	}
	return n
}

// start starts the loop with the table, as a network does.
func (n *node) start(t *testing.T) {
	t.Helper()
	static := publish.Items{}
	for _, item := range append(hostport.Maps(table, hostport.IPv4(), hostport.IPv6()), &nft.Table{Family: nft.FamilyInet, Name: table}) {
		static[item.Key()] = item
	}
	if err := n.Rules.Start(t.Context(), map[reconcile.Owner]publish.Items{"static": static}); err != nil {
		t.Fatal(err)
	}
}

// has fails the test unless exactly these host ports are in the rules.
func (n *node) has(t *testing.T, when string, want ...string) {
	t.Helper()
	if err := n.Rules.Apply(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	items, err := n.engine.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, item := range items {
		if e, is := item.(*nft.Element); is {
			got = append(got, e.Set+" "+strings.Join(e.Match, " ")+": "+strings.Join(e.Value, " "))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: host ports %q, want %q", when, got, want)
	}
}

// pod returns the record of a pod with the addresses 10.0.0.number and fd00::number, and with host ports that lead to its port 80.
func pod(name string, number int, ports ...cni.HostPort) attach.Record {
	rec := attach.Record{
		ContainerID: name, IfName: "eth0", PodNamespace: "shop", PodName: name, PodUID: "uid-" + name, BootID: "this", State: attach.Attached,
		Addresses: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/24", number)), netip.MustParsePrefix(fmt.Sprintf("10.0.1.%d/24", number)),
			netip.MustParsePrefix(fmt.Sprintf("fd00::%d/64", number)),
		},
	}
	for _, port := range ports {
		port.ContainerPort = 80
		rec.HostPorts = append(rec.HostPorts, port)
	}
	return rec
}

func tcp(port uint16, at string) cni.HostPort {
	h := cni.HostPort{Port: port, Protocol: "tcp"}
	if at != "" {
		h.Address = netip.MustParseAddr(at)
	}
	return h
}

// TestRequested: the error for a host port that is refused names the pod, and what is wrong.
func TestRequested(t *testing.T) {
	four, both := []netip.Prefix{netip.MustParsePrefix("10.244.3.7/24")}, pod("a", 1).Addresses
	for _, c := range []struct {
		mapping   cni.PortMapping
		ipv6      bool
		addresses []netip.Prefix
		words     string
	}{
		{cni.PortMapping{HostPort: 9, ContainerPort: 80}, true, four, "reserved for probes"},
		{cni.PortMapping{HostPort: 9, ContainerPort: 80}, false, nil, "reserved for probes"},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "2001:db8::1"}, true, four, "it has no address of that family"},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "2001:db8::1"}, true, both, ""},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "2001:db8::1"}, true, nil, ""},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "2001:db8::1"}, false, nil, "portMappings[0].hostIP"},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "::"}, true, four, "it has no address of that family"},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "::"}, true, both, ""},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "0.0.0.0"}, true, four, ""},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "0.0.0.0"}, false, nil, ""},
		{cni.PortMapping{HostPort: 80}, true, both, "portMappings[0].containerPort"},
	} {
		p := publish.New(publish.Options{IPv6: c.ipv6, Reserved: func(port cni.HostPort) string {
			if port.Port == 9 {
				return "probes"
			}
			return ""
		}})
		ports, err := p.Requested(&cni.Request{
			Args: cni.Args{PodNamespace: "shop", PodName: "web"}, NetConf: &cni.NetConf{RuntimeConfig: cni.RuntimeConfig{PortMappings: []cni.PortMapping{c.mapping}}},
		}, c.addresses...)
		if c.words == "" && err == nil && len(ports) == 1 {
			continue
		}
		if err == nil || c.words == "" || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), "pod shop/web") {
			t.Errorf("%+v of a pod with %v: %v, %v, want %q", c.mapping, c.addresses, ports, err, c.words)
		}
	}
	if ports, err := publish.New(publish.Options{}).Requested(&cni.Request{}); len(ports) > 0 || err != nil {
		t.Errorf("a request without a configuration: %v, %v", ports, err)
	}
}

// TestPublish: host ports lead to the pod's first address of each family that the network has. UDP and SCTP connections are flushed with
// them, those of TCP only when they end.
func TestPublish(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		n := newNode(t)
		n.IPv6 = ipv6
		n.start(t)
		p := publish.New(n.Options)
		rec := pod("a", 1, tcp(8080, ""), cni.HostPort{Port: 53, Protocol: "udp"}, cni.HostPort{Port: 54, Protocol: "sctp", Address: netip.MustParseAddr("192.0.2.1")})
		if err := p.Publish(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
		want := []string{"hostports tcp 8080: 10.0.0.1 80", "hostports udp 53: 10.0.0.1 80", "hostports-at 192.0.2.1 sctp 54: 10.0.0.1 80"}
		all := "17 [0.0.0.0:53]"
		if ipv6 {
			want, all = append(want, "hostports6 tcp 8080: fd00::1 80", "hostports6 udp 53: fd00::1 80"), "17 [invalid AddrPort]"
		}
		n.has(t, "published", want...)
		if err := p.Check(t.Context(), &rec); err != nil {
			t.Error(err)
		}
		other := pod("b", 2)
		if err := errors.Join(p.Publish(t.Context(), &other), p.Check(t.Context(), &other), p.Unpublish(t.Context(), []attach.Record{other})); err != nil {
			t.Errorf("a pod without host ports: %v", err)
		}
		former := pod("c", 3, tcp(8081, ""))
		former.BootID = "former"
		if err := p.Unpublish(t.Context(), []attach.Record{rec, other, former}); err != nil {
			t.Error(err)
		}
		n.has(t, "unpublished")
		flushed := []string{all, "132 [192.0.2.1:54]", "[10.0.0.1 10.0.1.1 fd00::1]"}
		if !slices.Equal(n.conntrack.flushed, flushed) {
			t.Errorf("flushed %q, want %q", n.conntrack.flushed, flushed)
		}
	}
}

// TestFailures: an ADD fails if the rules or the flush do; the removal fails while rules remain, so that the attachment's record stays, and not
// if only the flush does. CHECK reports what failed, and what another program has changed, which is put back.
func TestFailures(t *testing.T) {
	n := newNode(t)
	n.start(t)
	p := publish.New(n.Options)
	rec := pod("a", 1, cni.HostPort{Port: 53, Protocol: "udp", Address: netip.MustParseAddr("192.0.2.1")})
	n.engine.refuse.Store(true)
	if err := p.Publish(t.Context(), &rec); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("ADD with rules that the kernel refuses: %v", err)
	}
	if err := p.Check(t.Context(), &rec); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("CHECK with rules that the kernel refuses: %v", err)
	}
	n.engine.refuse.Store(false)
	n.conntrack.err = errors.New("no conntrack")
	if err := p.Publish(t.Context(), &rec); !errors.Is(err, n.conntrack.err) {
		t.Errorf("ADD with a flush that fails: %v", err)
	}
	n.has(t, "published", "hostports-at 192.0.2.1 udp 53: 10.0.0.1 80")
	foreign := reconcile.Change[nft.Key, nft.Item]{Delete: p.Fragment(&rec)}
	if err := n.engine.Fake.Commit(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(t.Context(), &rec); err == nil || !strings.Contains(err.Error(), "pod shop/a") || !strings.Contains(err.Error(), "udp . 53") {
		t.Errorf("CHECK of a host port that was removed: %v", err)
	}
	n.has(t, "put back", "hostports-at 192.0.2.1 udp 53: 10.0.0.1 80")
	n.engine.refuse.Store(true)
	if err := p.Unpublish(t.Context(), []attach.Record{rec}); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("removal that the kernel refuses: %v", err)
	}
	n.engine.refuse.Store(false)
	if err := p.Unpublish(t.Context(), []attach.Record{rec}); err != nil {
		t.Error(err)
	}
	n.has(t, "unpublished")
	if err := p.Check(t.Context(), &rec); err == nil {
		t.Error("CHECK of a pod that was removed finds its host ports")
	}
}

// events records events as text.
type events []string

func (e *events) Warning(object client.Object, reason, _, note string) {
	*e = append(*e, object.GetObjectKind().GroupVersionKind().Kind+" "+object.GetNamespace()+"/"+object.GetName()+" "+string(object.GetUID())+" "+reason+": "+note)
}

// TestConflict: of two pods with one host port, which records of earlier releases may have, one has it, and every other port of both is in
// effect. The error names both pods and the port. Once the one ends, the other has it. An ADD of such a record fails.
func TestConflict(t *testing.T) {
	n := newNode(t)
	var sent events
	n.Conflict = publish.Warnings(&sent)
	p := publish.New(n.Options)
	n.records = []attach.Record{
		pod("b", 2, tcp(8080, ""), tcp(81, "")), pod("a", 1, tcp(8080, "0.0.0.0"), tcp(82, "")), pod("c", 3, tcp(83, "192.0.2.1")), pod("d", 4, tcp(83, "")), pod("e", 5),
	}
	p.Restore(n.records...)
	p.Report(n.records)
	n.start(t)
	const others = "hostports6 tcp 8080: fd00::2 80"
	n.has(t, "restored",
		"hostports tcp 8080: 10.0.0.1 80", "hostports tcp 81: 10.0.0.2 80", "hostports tcp 82: 10.0.0.1 80", "hostports tcp 83: 10.0.0.4 80",
		"hostports-at 192.0.2.1 tcp 83: 10.0.0.3 80",
		others, "hostports6 tcp 81: fd00::2 80", "hostports6 tcp 82: fd00::1 80", "hostports6 tcp 83: fd00::4 80")
	const why = "pod shop/b cannot have host port 8080/tcp of this node: pod shop/a has it"
	if len(sent) != 1 || sent[0] != "Pod shop/b uid-b HostPortClosed: "+why {
		t.Errorf("events %q", sent)
	}
	for i := range n.records {
		err := p.Check(t.Context(), &n.records[i])
		if (err != nil) != (n.records[i].PodName == "b") {
			t.Errorf("CHECK of %s: %v", n.records[i].PodName, err)
		}
	}
	err := p.Publish(t.Context(), &n.records[0])
	if err == nil || err.Error() != why || cni.AsError(err).Code != cni.CodeTryAgainLater {
		t.Errorf("a repeated ADD: %v", err)
	}
	if err := p.Publish(t.Context(), &n.records[1]); err != nil {
		t.Errorf("a repeated ADD of the one that has it: %v", err)
	}
	if err := p.Unpublish(t.Context(), n.records[1:2]); err != nil {
		t.Fatal(err)
	}
	if left := p.Conflicts(slices.Delete(slices.Clone(n.records), 1, 2)); len(left) > 0 {
		t.Errorf("conflicts %v", left)
	}
	if err := p.Check(t.Context(), &n.records[0]); err != nil {
		t.Error(err)
	}
	n.has(t, "after its end",
		"hostports tcp 8080: 10.0.0.2 80", "hostports tcp 81: 10.0.0.2 80", "hostports tcp 83: 10.0.0.4 80", "hostports-at 192.0.2.1 tcp 83: 10.0.0.3 80",
		others, "hostports6 tcp 81: fd00::2 80", "hostports6 tcp 83: fd00::4 80")
	if publish.Warnings(nil) != nil {
		t.Error("warnings without events")
	}
}
