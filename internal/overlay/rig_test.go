package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
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

// breakable is an engine that can be made to fail.
type breakable[K comparable, V any] struct {
	reconcile.Engine[K, V]
	mu   sync.Mutex
	err  error
	hook func()
	bad  func(reconcile.Change[K, V]) error
}

// refuse sets a function that decides about each commit; nil: nothing is refused.
func (b *breakable[K, V]) refuse(bad func(reconcile.Change[K, V]) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad = bad
}

func (b *breakable[K, V]) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// before sets a function that is called before each commit.
func (b *breakable[K, V]) before(hook func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = hook
}

func (b *breakable[K, V]) Read(ctx context.Context) (map[K]V, error) {
	b.mu.Lock()
	err := b.err
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return b.Engine.Read(ctx)
}

func (b *breakable[K, V]) Commit(ctx context.Context, change reconcile.Change[K, V]) error {
	b.mu.Lock()
	hook := b.hook
	b.mu.Unlock()
	if hook != nil {
		hook()
	}
	b.mu.Lock()
	err := b.err
	if err == nil && b.bad != nil {
		err = b.bad(change)
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.Engine.Commit(ctx, change)
}

// breakablePods are pods' links that can be made to fail.
type breakablePods struct {
	*podlink.Fake
	mu                     sync.Mutex
	create, delete, unplug func() error
}

func (p *breakablePods) Create(ctx context.Context, pair podlink.Pair) (podlink.Created, error) {
	p.mu.Lock()
	hook := p.create
	p.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return podlink.Created{}, err
		}
	}
	return p.Fake.Create(ctx, pair)
}

func (p *breakablePods) Delete(ctx context.Context, names ...string) error {
	p.mu.Lock()
	hook := p.delete
	p.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return err
		}
	}
	return p.Fake.Delete(ctx, names...)
}

func (p *breakablePods) Unplug(ctx context.Context, pair podlink.Pair, began func()) error {
	p.mu.Lock()
	hook := p.unplug
	p.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			began()
			return err
		}
	}
	return p.Fake.Unplug(ctx, pair, began)
}

func (p *breakablePods) onUnplug(hook func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unplug = hook
}

func (p *breakablePods) onCreate(hook func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.create = hook
}

func (p *breakablePods) onDelete(hook func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delete = hook
}

// switchPorts reports ports that the switch has added, as the function in added decides; nil: no port is reported.
type switchPorts struct {
	mu    sync.Mutex
	added func(name string, ofport uint32) <-chan struct{}
}

func (p *switchPorts) on(added func(name string, ofport uint32) <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.added = added
}

func (p *switchPorts) Added(name string, ofport uint32) (added <-chan struct{}, stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.added == nil {
		return nil, func() {}
	}
	return p.added(name, ofport), func() {}
}

// node is the state of a machine that survives the agent.
type node struct {
	flows *bridge.Fake
	rows  *ovsdb.Fake
	links *marked.Fake
	rules *nft.Fake
	pods  *breakablePods
	dir   string
	cache string
	// spare is Options.Spare of its agents.
	spare int
	// rest is Options.PortRest of its agents; 0: ports need no rest.
	rest time.Duration
	// tracked records the switch's conntrack flushes.
	tracked *tracked
	// ports reports ports that the switch has added, if set up to do so.
	ports *switchPorts
	// uplink is the node's own interface; nil: it is not used.
	uplink Uplink
	// privileged is Options.Privileged of its agents.
	privileged func(context.Context, cni.Args) (bool, error)
	// conflict is Options.Conflict of its agents.
	conflict func(*attach.Record, error)
	// ahead is how far its clock is ahead.
	ahead atomic.Int64
	// kernel records the conntrack flushes of the node's own kernel.
	kernel *kernel

	flowEngine *breakable[openflow.Key, openflow.Entry]
	rowEngine  *breakable[ovsdb.Key, ovsdb.Row]
	linkEngine *breakable[link.Key, link.Item]
	ruleEngine *breakable[nft.Key, nft.Item]
}

func newNode(dir string) *node {
	n := &node{
		flows: bridge.NewFake(), rows: ovsdb.NewFake(host.Bridge), links: marked.NewFake(host.Devices()...), rules: nft.NewFake(),
		pods: &breakablePods{Fake: podlink.NewFake()}, dir: dir, tracked: &tracked{}, ports: &switchPorts{}, kernel: &kernel{},
	}
	n.flowEngine = &breakable[openflow.Key, openflow.Entry]{Engine: n.flows}
	n.rowEngine = &breakable[ovsdb.Key, ovsdb.Row]{Engine: n.rows}
	n.linkEngine = &breakable[link.Key, link.Item]{Engine: n.links}
	n.ruleEngine = &breakable[nft.Key, nft.Item]{Engine: n.rules}
	return n
}

// now returns the time of its agents.
func (n *node) now() time.Time { return time.Now().Add(time.Duration(n.ahead.Load())) }

// commits returns the numbers of commits to the engines.
func (n *node) commits() [4]int {
	return [4]int{n.flows.Commits(), n.rows.Transactions(), n.links.Commits(), n.rules.Commits()}
}

// state returns everything that is programmed, as text.
func (n *node) state(t tb) string {
	t.Helper()
	rows, err := n.rows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	links, _ := n.links.Read(context.Background())
	rules, _ := n.rules.Read(context.Background())
	return strings.Join([]string{n.flows.String(), lines(rows), lines(links), lines(rules)}, "----\n")
}

func lines[K comparable, V fmt.Stringer](items map[K]V) string {
	var all []string
	for _, item := range items {
		all = append(all, item.String()+"\n")
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

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

func (n *node) request(name, netns string) *cni.Request {
	n.pods.AddNamespace(netns)
	return &cni.Request{
		ContainerID: name, IfName: "eth0", Netns: netns, NetConf: &cni.NetConf{CNIVersion: "1.0.0"},
		Args: cni.Args{PodNamespace: "default", PodName: "pod-" + name, PodUID: "uid-" + name},
	}
}

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

// obstruct makes the record of an attachment impossible to write or remove until the returned function is called.
func (n *node) obstruct(t tb, key attach.Key) (clear func()) {
	t.Helper()
	probe, err := os.MkdirTemp("", "weft-record-*")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(probe) }()
	store, err := attach.Open(probe)
	if err != nil {
		t.Fatal(err)
	}
	err = store.Put(context.Background(), attach.Record{
		Network: NetworkName, ContainerID: key.ContainerID, IfName: key.IfName, Netns: "/n", BootID: "b",
		State: attach.Planned, Created: time.Unix(1, 0),
	})
	if err = errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(probe, "*.json"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	path := filepath.Join(n.dir, filepath.Base(names[0]))
	if err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Join(path, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(path); err != nil {
			t.Errorf("clearing the way: %v", err)
		}
	}
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

func tempDir(t tb, base string) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "node-*")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
