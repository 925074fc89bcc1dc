package egressips

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/egressip"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/overlay/node/watch"
)

func egressHost(name, hostIP, subnet string, ips ...string) networkv1.HostSubnet {
	return networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: hostIP, Subnet: subnet, EgressIPs: ips}
}

// egressNode returns the agent's egress IPs on node n1.
func egressNode(mode clusternetwork.Mode, namespaces ...egressip.Namespace) *Follower {
	e := New(nil, nil, "n1", func() {})
	vip := netip.MustParseAddr("192.0.2.50")
	e.site = site{
		mode: mode, node: netip.MustParseAddr("192.0.2.1"), network: netip.MustParsePrefix("192.0.2.0/24"), uplink: "eth0",
		others: map[netip.Addr]struct{}{vip: {}}, gateways: map[netip.Addr]struct{}{netip.MustParseAddr("192.0.2.254"): {}},
	}
	for _, ns := range namespaces {
		e.known[ns.Name] = ns
	}
	return e
}

func TestEgressWays(t *testing.T) {
	addr := netip.MustParseAddr
	n1 := egressHost("n1", "192.0.2.1", "10.128.0.0/23", "192.0.2.101")
	n2 := egressHost("n2", "192.0.2.2", "10.128.2.0/23", "192.0.2.102", "192.0.2.104")
	n3 := egressHost("n3", "192.0.2.3", "10.128.4.0/23", "192.0.2.103")
	wants := func(name string, vnid uint32, ips ...string) egressip.Namespace {
		ns := egressip.Namespace{Name: name, VNID: vnid}
		for _, text := range ips {
			ns.IPs = append(ns.IPs, addr(text))
		}
		return ns
	}
	type ways = map[uint32]egress.Way
	for _, test := range []struct {
		name       string
		mode       clusternetwork.Mode
		namespaces []egressip.Namespace
		hosts      []networkv1.HostSubnet
		want       egress.IPs
		refused    string
	}{
		{
			"its own address before others'", clusternetwork.ModeMultitenant,
			[]egressip.Namespace{wants("a", 10, "192.0.2.102", "192.0.2.101"), wants("b", 11)},
			[]networkv1.HostSubnet{n1, n2},
			egress.IPs{Ways: ways{10: {Address: addr("192.0.2.101")}}, Namespaces: map[string]uint32{"a": 10}},
			"",
		},
		{
			"a share for each of the others", clusternetwork.ModeMultitenant,
			[]egressip.Namespace{wants("a", 10, "192.0.2.103", "192.0.2.102")},
			[]networkv1.HostSubnet{n1, n2, n3},
			egress.IPs{Ways: ways{10: {Nodes: []netip.Addr{addr("192.0.2.3"), addr("192.0.2.2")}}}, Namespaces: map[string]uint32{"a": 10}},
			"",
		},
		{
			"joined projects leave together", clusternetwork.ModeMultitenant,
			[]egressip.Namespace{wants("a", 10, "192.0.2.102"), wants("b", 10)},
			[]networkv1.HostSubnet{n2},
			egress.IPs{Ways: ways{10: {Nodes: []netip.Addr{addr("192.0.2.2")}}}, Namespaces: map[string]uint32{"a": 10, "b": 10}},
			"",
		},
		{
			"in a mode in which VNIDs do not isolate, namespaces of the same VNID do not leave together", clusternetwork.ModeNetworkPolicy,
			[]egressip.Namespace{wants("a", 10, "192.0.2.102"), wants("b", 10)},
			[]networkv1.HostSubnet{n2},
			egress.IPs{Ways: ways{10: {Nodes: []netip.Addr{addr("192.0.2.2")}}}, Namespaces: map[string]uint32{"a": 10}},
			"",
		},
		{
			"held by no node, or by a host that cannot be used: closed", clusternetwork.ModeMultitenant,
			[]egressip.Namespace{wants("a", 10, "192.0.2.199"), wants("b", 11, "192.0.2.110")},
			[]networkv1.HostSubnet{n2, egressHost("odd", "nonsense", "", "192.0.2.110")},
			egress.IPs{Ways: ways{10: {}, 11: {}}, Namespaces: map[string]uint32{"a": 10, "b": 11}},
			"",
		},
		{
			"an address of another network is not held", clusternetwork.ModeMultitenant,
			[]egressip.Namespace{wants("a", 10, "198.51.100.1")},
			[]networkv1.HostSubnet{egressHost("n1", "192.0.2.1", "10.128.0.0/23", "198.51.100.1")},
			egress.IPs{Ways: ways{10: {}}, Namespaces: map[string]uint32{"a": 10}},
			"is not in 192.0.2.0/24",
		},
		{
			"an address that the node has for another purpose is not held", clusternetwork.ModeMultitenant,
			[]egressip.Namespace{wants("a", 10, "192.0.2.50")},
			[]networkv1.HostSubnet{egressHost("n1", "192.0.2.1", "10.128.0.0/23", "192.0.2.50")},
			egress.IPs{Ways: ways{10: {}}, Namespaces: map[string]uint32{"a": 10}},
			"is already an address of the node",
		},
		{
			"an address of another node is not held", clusternetwork.ModeMultitenant,
			[]egressip.Namespace{wants("a", 10, "192.0.2.2")},
			[]networkv1.HostSubnet{egressHost("n1", "192.0.2.1", "10.128.0.0/23", "192.0.2.2"), n2},
			egress.IPs{Ways: ways{10: {}}, Namespaces: map[string]uint32{"a": 10}},
			"is the address of node n2",
		},
	} {
		e := egressNode(test.mode, test.namespaces...)
		refused := ""
		e.refused = func(_ types.UID, _ string, _ netip.Addr, note string) { refused += note }
		got := e.ways(test.hosts)
		if diff := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		if !strings.Contains(refused, test.refused) || (refused == "") != (test.refused == "") {
			t.Errorf("%s: reported: %q", test.name, refused)
		}
	}
}

// The share of a node that does not answer is given to nodes that do; their own shares stay in place. If no node answers, all keep their
// shares.
func TestEgressShares(t *testing.T) {
	addr := netip.MustParseAddr
	var nodes []peer
	for _, n := range []string{"1", "2", "3"} {
		nodes = append(nodes, peer{node: addr("192.0.2." + n), gateway: addr("10.128.0." + n)})
	}
	dead := map[string]bool{}
	for _, test := range []struct{ dead, want string }{
		{"", "1 2 3"},
		{"2", "1 3 3"},
		{"1 3", "2 2 2"},
		{"1 2 3", "1 2 3"},
	} {
		clear(dead)
		for n := range strings.FieldsSeq(test.dead) {
			dead["10.128.0."+n] = true
		}
		e := egressNode(clusternetwork.ModeMultitenant)
		asked := make(chan struct{}, 100)
		e.alive.Ask = func(_ context.Context, host netip.Addr) error {
			asked <- struct{}{}
			if dead[host.String()] {
				return errors.New("dead")
			}
			return nil
		}
		var gateways []netip.Addr
		for _, n := range nodes {
			gateways = append(gateways, n.gateway)
		}
		e.alive.Watch(gateways)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.alive.Run(ctx) }()
		deadline := time.After(10 * time.Second)
		for known := false; !known; {
			select {
			case <-asked:
			case <-deadline:
				t.Fatal("no node is reported as unreachable")
			}
			known = true
			for _, n := range nodes {
				known = known && e.alive.Gone(n.gateway) == dead[n.gateway.String()]
			}
		}
		var words []string
		for _, at := range e.answering(nodes) {
			words = append(words, strings.TrimPrefix(at.String(), "192.0.2."))
		}
		if got := strings.Join(words, " "); got != test.want {
			t.Errorf("dead %q: shares %s, want %s", test.dead, got, test.want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A node is probed only by nodes with pods that leave through it, and only if there is a choice.
func TestEgressNodesAreAskedForPods(t *testing.T) {
	addr := netip.MustParseAddr
	wants := func(name string, vnid uint32, ips ...string) egressip.Namespace {
		ns := egressip.Namespace{Name: name, VNID: vnid}
		for _, text := range ips {
			ns.IPs = append(ns.IPs, addr(text))
		}
		return ns
	}
	e := egressNode(
		clusternetwork.ModeMultitenant, wants("a", 10, "192.0.2.102", "192.0.2.103"), wants("joined", 10), wants("b", 11, "192.0.2.112", "192.0.2.114"),
		wants("single", 12, "192.0.2.115"), wants("here", 13, "192.0.2.101", "192.0.2.116"), wants("none", 14),
	)
	e.ways([]networkv1.HostSubnet{
		egressHost("n1", "192.0.2.1", "10.128.0.0/23", "192.0.2.101"),
		egressHost("n2", "192.0.2.2", "10.128.2.0/23", "192.0.2.102", "192.0.2.112"),
		egressHost("n3", "192.0.2.3", "10.128.4.0/23", "192.0.2.103", "192.0.2.116"),
		egressHost("n4", "192.0.2.4", "10.128.6.0/23", "192.0.2.114"),
		egressHost("n5", "192.0.2.5", "10.128.8.0/23", "192.0.2.115"),
	})
	for withPods, want := range map[string]string{
		"": "", "none": "", "single": "", "here": "", "a": "10.128.2.1 10.128.4.1", "joined": "10.128.2.1 10.128.4.1",
		"b single": "10.128.2.1 10.128.6.1", "a b": "10.128.2.1 10.128.4.1 10.128.6.1",
	} {
		names := map[string]struct{}{}
		for name := range strings.FieldsSeq(withPods) {
			names[name] = struct{}{}
		}
		var words []string
		for _, gateway := range e.toProbe(names) {
			words = append(words, gateway.String())
		}
		if got := strings.Join(words, " "); got != want {
			t.Errorf("with pods of %q: %q are probed, want %q", withPods, got, want)
		}
	}
}

// watchedNothing is a cache without objects.
type watchedNothing struct {
	cache.Cache
	informer toolscache.SharedIndexInformer
}

func (w watchedNothing) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return w.informer, nil
}

func (watchedNothing) RemoveInformer(context.Context, client.Object) error { return nil }

func (watchedNothing) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return nil
}

// While a step waits for the node, the set of probed nodes follows the pods, and the node's status is reported.
func TestStepsHoldNoLock(t *testing.T) {
	records, err := attach.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = records.Close() }()
	network := overlay.New(overlay.Engines{}, records, overlay.Options{BootID: "boot"})
	source := fakesource.NewFakeControllerSource()
	defer source.Shutdown()
	objects := watchedNothing{informer: toolscache.NewSharedIndexInformer(source, &networkv1.NetNamespace{}, 0, toolscache.Indexers{})}
	go objects.informer.RunWithContext(t.Context())
	e := New(objects, watch.New(objects, watch.NewMarks()), "n1", func() {})
	began, release := make(chan struct{}), make(chan struct{})
	e.others = func() (map[netip.Addr]struct{}, error) {
		close(began)
		<-release
		return nil, errors.New("no netlink")
	}
	if err := e.spaces.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	stepped := make(chan error, 1)
	go func() { stepped <- e.Step(t.Context(), network) }()
	<-began
	met := make(chan struct{})
	go func() {
		defer close(met)
		e.UpdateProbed(network)
		if problems, refusals := e.Problems(), e.Refusals(); len(problems) > 0 || refusals != nil {
			t.Errorf("during the first step: problems %v, refusals %v", problems, refusals)
		}
	}()
	select {
	case <-met:
	case <-time.After(10 * time.Second):
		t.Error("a step that hangs delays the set of probed nodes")
	}
	close(release)
	if err := <-stepped; err == nil {
		t.Error("a step without the node's addresses succeeds")
	}
	<-met
	if err := e.End(t.Context(), network); err != nil {
		t.Error(err)
	}
}

// An address that its node's status refuses gets no share, and neither does one that this node cannot hold. This node reports its own,
// including addresses in its ranges.
func TestEgressWaysWithoutRefused(t *testing.T) {
	addr := netip.MustParseAddr
	n1 := egressHost("n1", "192.0.2.1", "10.128.0.0/23", "192.0.2.50", "192.0.2.101")
	n1.EgressCIDRs = []string{"192.0.2.0/24", "198.51.100.0/24"}
	n2 := egressHost("n2", "192.0.2.2", "10.128.2.0/23", "192.0.2.102")
	n2.Status.RefusedEgressIPs = []networkv1.HostSubnetRefusedEgressIP{{IP: "192.0.2.102", Reason: "it is taken"}}
	n3 := egressHost("n3", "192.0.2.3", "10.128.4.0/23", "192.0.2.103")
	e := egressNode(clusternetwork.ModeMultitenant,
		egressip.Namespace{Name: "a", VNID: 10, IPs: []netip.Addr{addr("192.0.2.102"), addr("192.0.2.103")}},
		egressip.Namespace{Name: "b", VNID: 11, IPs: []netip.Addr{addr("192.0.2.50"), addr("192.0.2.101")}},
		egressip.Namespace{Name: "c", VNID: 12, IPs: []netip.Addr{addr("198.51.100.7")}},
	)
	if e.Refusals() != nil {
		t.Error("refusals are known before the ways were computed")
	}
	reported := 0
	e.notify = func() { reported++ }
	want := map[uint32]egress.Way{10: {Nodes: []netip.Addr{addr("192.0.2.3")}}, 11: {Address: addr("192.0.2.101")}, 12: {}}
	for range 2 {
		got := e.ways([]networkv1.HostSubnet{n1, n2, n3})
		if diff := cmp.Diff(want, got.Ways, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("ways (-want +got):\n%s", diff)
		}
	}
	refusals := e.Refusals()
	if len(refusals) != 2 || refusals["192.0.2.50"] == "" || refusals["198.51.100.7"] == "" || reported != 1 {
		t.Errorf("refusals %v, reported %d times", refusals, reported)
	}
	if problems := e.Problems(); len(problems) != 1 || problems["b"] == "" {
		t.Errorf("not as they say: %v", problems)
	}
}
