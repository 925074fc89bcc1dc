package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tb has the common methods of testing.T and rapid.T.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

const (
	bootID  = "boot-1"
	patient = 10 * time.Second
)

// life is one run of an agent on a node. Its requests pass through attach/lifecycle, as the runtime's do.
type life struct {
	*Network
	*lifecycle.Handler
	requests
	programmed
	node  *node
	store *attach.Store
	stop  func()
}

// requests makes the requests of a container runtime on a node, for sandboxes whose namespaces it creates.
type requests struct{ on *node }

// programmed reads what is recorded and programmed on a node.
type programmed struct {
	at    *node
	store *attach.Store
}

func (n *node) begin(t tb) *life {
	t.Helper()
	return n.beginIn(t, bootID)
}

func (n *node) beginIn(t tb, boot string) *life {
	t.Helper()
	store, err := attach.Open(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	engines := Engines{
		Flows: reconcile.NewLoop(n.flowEngine, reconcile.Options[openflow.Key, openflow.Entry]{
			Name: "openflow", Seal: pipeline.Note,
			Encode: openflow.Encode,
		}),
		Rows:  reconcile.NewLoop(n.rowEngine, reconcile.Options[ovsdb.Key, ovsdb.Row]{Name: "ovsdb"}),
		Links: reconcile.NewLoop(n.linkEngine, reconcile.Options[link.Key, link.Item]{Name: "link"}),
		Rules: reconcile.NewLoop(n.ruleEngine, reconcile.Options[nft.Key, nft.Item]{Name: "nft"}),
		Ports: n.ports, Pods: n.pods, Preplugged: n.pods, HostEnds: n.pods, Connections: n.tracked, Uplink: n.uplink, Kernel: n.kernel, Macvlans: n.pods, Shapers: n.pods,
	}
	handler := lifecycle.New(store, lifecycle.Options{
		BootID: boot, Waiting: func() string { return "the tests" }, Default: func() (string, error) { return NetworkName, nil },
		Place: func(context.Context, *cni.Request) (placement.Decision, error) {
			return placement.Decision{Network: NetworkName}, nil
		},
	})
	l := &life{Handler: handler, requests: requests{n}, programmed: programmed{n, store}, Network: New(engines, store, Options{BootID: boot, Records: handler.Records(NetworkName), RuntimeCache: n.cache, Ports: portsNetns, Spare: n.spare, PortRest: max(n.rest, 1), Privileged: n.privileged, Reserved: reserved, Conflict: n.conflict, Now: n.now}), node: n, store: store}
	leave := handler.Serve(NetworkName, l.Network, l.HandedOver())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{
		engines.Flows.Run, engines.Rows.Run, engines.Links.Run, engines.Rules.Run, l.Network.Run, handler.Run,
	} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		leave()
		if err := store.Close(); err != nil {
			t.Errorf("closing the records: %v", err)
		}
	})
	return l
}

// start returns a serving agent on a new node.
func start(t *testing.T) *life {
	t.Helper()
	l := newNode(t.TempDir()).begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	return l
}

// restart stops this agent and starts the next one, with the same view.
func (l *life) restart(t *testing.T) *life {
	t.Helper()
	l.stop()
	next := l.node.begin(t)
	t.Cleanup(next.stop)
	next.update(t, sample())
	return next
}

func (l *life) update(t tb, view View) {
	t.Helper()
	if _, _, has := l.Projects.Reached("default"); view.ByPolicies() && !has {
		if err := l.Projects.Update(context.Background(), TenantChange{VNIDs: map[string]uint32{"default": 0}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Update(context.Background(), view); err != nil {
		t.Fatal(err)
	}
}

// settled waits until the reaper is idle.
func (l *life) settled(t tb) {
	t.Helper()
	eventually(t, "the reaper is done", l.Idle)
}

func eventually(t tb, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patient)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("it never came true that %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func sample() View {
	return View{
		Cluster: clusternetwork.Config{
			ClusterNetworks: []ipam.Range{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
			ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"), VXLANPort: 4789, Mode: clusternetwork.ModeSubnet,
		},
		Local:   subnet("a", "192.0.2.1", "10.128.0.0/23"),
		Node:    Node{Datapath: ovsdb.DatapathNetdev, Uplink: "eth0", MTU: 1500},
		Remotes: []clusternetwork.HostSubnet{subnet("b", "192.0.2.2", "10.128.2.0/23"), subnet("c", "192.0.2.3", "10.128.4.0/23")},
	}
}

func subnet(name, ip, prefix string) clusternetwork.HostSubnet {
	return clusternetwork.HostSubnet{
		UID: types.UID("uid-" + name), Host: name, HostIP: netip.MustParseAddr(ip), Subnet: netip.MustParsePrefix(prefix),
	}
}

// small is sample with a subnet for a few pods.
func small() View {
	view := sample()
	view.Local.Subnet = netip.MustParsePrefix("10.128.0.0/29")
	return view
}

// request returns a request for the sandbox of that name, and creates its namespace.
func (r requests) request(name string) *cni.Request { return r.on.request(name, "/run/netns/"+name) }

func keyOf(req *cni.Request) attach.Key {
	return attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}
}

func (l *life) add(t tb, req *cni.Request) *types100.Result {
	t.Helper()
	result, err := l.Add(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func (l *life) del(t tb, req *cni.Request) {
	t.Helper()
	if err := l.Del(context.Background(), req); err != nil {
		t.Fatal(err)
	}
}

func (p programmed) record(t tb, req *cni.Request) attach.Record {
	t.Helper()
	rec, err := p.store.Get(keyOf(req))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// whole checks that an attachment is complete: record, link, port, and the flows of a new compilation.
func (l *life) whole(t tb, req *cni.Request) {
	t.Helper()
	rec := l.record(t, req)
	if rec.State != attach.Attached || rec.Netns != req.Netns || rec.BootID != bootID {
		t.Errorf("record %+v", rec)
	}
	pair, ok := l.node.pods.Pair(rec.HostInterface)
	if !ok || pair.Netns != req.Netns || pair.Owner != rec.Key().Owner() {
		t.Errorf("link of %s: %v %+v", rec.Key(), ok, pair)
	}
	if got := l.node.rows.Ports(host.Bridge)[rec.HostInterface]; got != int(rec.OFPort) { //nolint:gosec // small
		t.Errorf("port of %s is %d, want %d", rec.Key(), got, rec.OFPort)
	}
	eventually(t, "the row of the port names the pod", func() bool { return namesPod(t, l.node, &rec) })
	have, _ := l.node.flows.Read(context.Background())
	want := l.pods.settings.Load().PodFlows(&rec)
	if len(want) == 0 {
		t.Errorf("%s has no flows", rec.Key())
	}
	rules, _ := l.node.rules.Read(context.Background())
	for key, element := range l.hostPorts.Fragment(&rec) {
		if rules[key] == nil || !element.Equal(rules[key]) {
			t.Errorf("%s lacks host port %s, has %v", rec.Key(), element, rules[key])
		}
	}
	for key, flow := range want {
		if have[key] == nil || !flow.Equal(have[key]) {
			t.Errorf("%s lacks flow %s, has %v", rec.Key(), flow, have[key])
		}
	}
}

// left returns everything on the node that belongs to pods, as text: records, links, ports, addresses.
func (l *life) left(t tb) []string {
	t.Helper()
	all := []string{}
	for _, rec := range l.store.List() {
		all = append(all, fmt.Sprintf("record %s %s %s", rec.Key(), rec.State, rec.Addresses))
	}
	use := l.store.InUse()
	for a := range use.Addresses[NetworkName] {
		all = append(all, "address "+a.String())
	}
	for p := range use.OFPorts {
		all = append(all, fmt.Sprint("ofport ", p))
	}
	links, _ := l.node.pods.List(context.Background())
	for name := range links {
		all = append(all, "link "+name)
	}
	for name := range l.node.rows.Ports(host.Bridge) {
		if name != host.Tun && name != host.Tunnel {
			all = append(all, "port "+name)
		}
	}
	l.pods.mu.Lock()
	for key := range l.pods.live {
		all = append(all, "live "+key.String())
	}
	l.pods.mu.Unlock()
	slices.Sort(all)
	return all
}

// nothingLeft checks that nothing of any pod is left, and that the node's state is as before.
func (l *life) nothingLeft(t tb, before string) {
	t.Helper()
	l.settled(t)
	if left := l.left(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if now := l.node.state(t); now != before {
		t.Errorf("the node's state differs:\n%s\nit was:\n%s", now, before)
	}
}

// fresh returns the state that a new agent compiles from the records alone, on a node where nothing is programmed. The changes are passed
// before its first view.
func fresh(t tb, dir string, view View, records []attach.Record, tenants ...TenantChange) string {
	t.Helper()
	n := newNode(dir)
	store, err := attach.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range records {
		if err := store.Put(context.Background(), rec); err != nil {
			t.Fatal(err)
		}
		pair, err := plan.Pair(&rec, &plan.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		n.pods.AddNamespace(rec.Netns)
		if _, err := n.pods.Create(context.Background(), pair); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	l := n.begin(t)
	defer l.stop()
	for _, change := range tenants {
		l.tenancy(t, change)
	}
	l.update(t, view)
	return n.state(t)
}

func codeIs(err error, code cni.Code) bool {
	var own *cni.Error
	return errors.As(err, &own) && own.Code == code
}

func addresses(recs []attach.Record) map[netip.Addr]attach.Key {
	all := map[netip.Addr]attach.Key{}
	for _, rec := range recs {
		for _, p := range rec.Addresses {
			all[p.Addr()] = rec.Key()
		}
	}
	return all
}
