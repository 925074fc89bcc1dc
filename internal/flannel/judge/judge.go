// Package judge enforces NetworkPolicies on the pods that are ports of a bridge, with nftables. A pod must be kept from the bridge until it is
// admitted: while no pod of the node is isolated, no packet is judged.
package judge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/policy/follow"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// Pod is an attached pod.
type Pod struct {
	Key                  attach.Key
	Namespace, Name, UID string
	Addresses            []netip.Addr
}

// PodOf returns the pod of an attachment.
func PodOf(rec *attach.Record) Pod {
	return Pod{Key: rec.Key(), Namespace: rec.PodNamespace, Name: rec.PodName, UID: rec.PodUID, Addresses: rec.Addrs()}
}

// record returns the part of the pod's record that the enforcer reads.
func (p *Pod) record() attach.Record {
	rec := attach.Record{ContainerID: p.Key.ContainerID, IfName: p.Key.IfName, PodNamespace: p.Namespace, PodName: p.Name, PodUID: p.UID}
	for _, address := range p.Addresses {
		rec.Addresses = append(rec.Addresses, netip.PrefixFrom(address, address.BitLen()))
	}
	return rec
}

const (
	podsTable  = "weft-flannel-pods"
	guardTable = "weft-flannel-guard"
	// revokeRest is how long the connections of removed pods may wait for their flush, so that several are flushed together.
	revokeRest = time.Second
	// retry is the delay before a failed step is repeated, unless an object changes.
	retry = time.Second
)

// Judge enforces NetworkPolicies on the pods of this node.
type Judge struct {
	log     *slog.Logger
	node    string
	bridge  string
	objects ctrlcache.Cache
	tables  map[string]*table
	tracked *conntrack.Table
	kernel  *netlink.Handle
	handed  chan struct{}
	nodes   chan struct{}
	gates   *gates

	follower    *follow.Follower
	revocations *enforcer.Revocations
	enforcer    *enforcer.Enforcer

	vacated vacated

	// lock guards the enforcer and its compiler.
	lock sync.Mutex
	// mu guards what follows.
	mu      sync.Mutex
	pods    map[attach.Key]attach.Record
	taken   map[netip.Addr]attach.Key // the addresses of pods
	started bool
	// ranges are those of this node's pods at the start.
	ranges []netip.Prefix
}

// Loop keeps a table.
type Loop = reconcile.Loop[nftnl.Key, nftnl.Item]

// table is a table of nftables with its loop.
type table struct {
	engine *nftnl.Engine
	loop   *Loop
	// drifted is called when another program has changed the table, and altered when it is correct again.
	drifted func()
	altered func(ctx context.Context)
}

func newTable(family nftnl.Family, name string) (*table, error) {
	engine, err := nftnl.NewEngine(nftnl.Options{Family: family, Table: name})
	if err != nil {
		return nil, err
	}
	loop := reconcile.NewLoop(engine, reconcile.Options[nftnl.Key, nftnl.Item]{Name: "nftables " + name})
	return &table{engine: engine, loop: loop, drifted: func() {}, altered: func(context.Context) {}}, nil
}

// run maintains the table until ctx ends, also when other programs change it.
func (t *table) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.loop.Run(ctx) })
	group.Go(func() error {
		drifts, err := t.engine.Watch(ctx)
		if err != nil {
			return err
		}
		if _, open := <-drifts; open { // watching has begun
			t.loop.Resync()
		}
		for drift := range drifts {
			if drift.Err != nil {
				return drift.Err
			}
			t.drifted()
			// If this fails, the loop retries. The flush below then removes what the table's current state does not allow.
			_, _ = t.loop.Verify(ctx)
			t.altered(ctx)
		}
		return ctx.Err()
	})
	return group.Wait()
}

// settled waits until a commit of the owners' fragments was tried, and returns why they are not in effect, if so.
func (t *table) settled(ctx context.Context, owners ...reconcile.Owner) error {
	err := t.loop.Apply(ctx, nil)
	for _, o := range owners {
		err = errors.Join(err, t.loop.Failure(o))
	}
	return err
}

// settled waits until the owners' fragments are in effect, and the base chains that lead packets to them.
func (j *Judge) settled(ctx context.Context, owners ...reconcile.Owner) error {
	j.gates.changed()
	owners = append(slices.Clone(owners), nftables.OwnerStatic)
	if j.gates.wanted() {
		owners = append(owners, nftables.OwnerGates)
	}
	if err := j.tables[podsTable].settled(ctx, owners...); err != nil {
		return fmt.Errorf("table %s: %w", podsTable, err)
	}
	return nil
}

// New returns the judge of a node's pods on a bridge, in the caller's network namespace. Run has to be called, or Close.
func New(node, bridge string, deps *network.Deps) (*Judge, error) {
	pods, err := newTable(nftnl.FamilyInet, podsTable)
	if err != nil {
		return nil, err
	}
	guard, err := newTable(nftnl.FamilyBridge, guardTable)
	if err != nil {
		pods.engine.Close()
		return nil, err
	}
	tracked, err := conntrack.New("")
	if err != nil {
		pods.engine.Close()
		guard.engine.Close()
		return nil, err
	}
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		pods.engine.Close()
		guard.engine.Close()
		tracked.Close()
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	j := &Judge{
		log: deps.Log, node: node, bridge: bridge, objects: deps.Objects, tracked: tracked, kernel: kernel,
		handed: make(chan struct{}), nodes: make(chan struct{}, 1),
		tables: map[string]*table{podsTable: pods, guardTable: guard}, follower: follow.New(deps.Objects, nil),
		pods: map[attach.Key]attach.Record{}, taken: map[netip.Addr]attach.Key{},
		vacated: vacated{left: map[netip.Addr]departure{}},
	}
	j.gates = &gates{wake: make(chan struct{}, 1), pods: pods, guard: guard, guarded: nftables.Guard(j.config()), compiled: j.compiled, sweep: j.sweepRanges}
	lock := &j.lock
	j.revocations = enforcer.NewRevocations(enforcer.RevocationOptions{
		Lock: lock, Rest: func() time.Duration { return revokeRest }, Log: deps.Log,
		Settled: func(ctx context.Context, owners []reconcile.Owner) error { return j.settled(ctx, owners...) },
		Revoke:  j.revoke,
		Apart:   true,
		Made: func() {
			if compiler, is := j.enforcer.Compiler().(*nftables.Compiler); is {
				compiler.Settle()
			}
		},
	})
	pods.drifted, pods.altered = j.gates.lost, j.judgeAgain
	j.enforcer = enforcer.New(enforcer.Options{
		Node: node, Lock: lock, Revocations: j.revocations, PerPolicy: true, SCTP: true, Families: enforcer.Families{IPv4: true, IPv6: true},
		Problems: func(key policy.Key, problems []error) { j.report(deps.Events, key, problems) },
	})
	return j, nil
}

// Loops returns the loops of the judge's tables, by the tables' names.
func (j *Judge) Loops() map[string]*Loop {
	loops := map[string]*Loop{}
	for name, t := range j.tables {
		loops[name] = t.loop
	}
	return loops
}

// Tables are the tables that judges create.
func Tables() []nft.Table {
	return []nft.Table{{Family: nft.FamilyInet, Name: podsTable}, {Family: nft.FamilyBridge, Name: guardTable}}
}

// report reports the parts of a NetworkPolicy that are not enforced on this node.
func (j *Judge) report(events network.Events, key policy.Key, problems []error) {
	const most = 20 // an object may have thousands of errors
	wrong := errors.Join(problems[:min(most, len(problems))]...)
	j.log.Warn("a NetworkPolicy is not enforced as it says", "policy", key.String(), "error", wrong)
	if object := j.follower.Policy(context.Background(), key); object != nil && events != nil {
		events.Warning(object, "PolicyNotAsSpecified", "Enforce", wrong.Error())
	}
}

// judgeAgain ends connections that were opened while another program's change of the table allowed them.
func (j *Judge) judgeAgain(ctx context.Context) {
	j.gates.lost()
	j.revocations.Due(true)
	if err := j.revocations.Flush(ctx); err != nil && ctx.Err() == nil {
		j.log.Warn("connections that began while the table was changed by another program may go on; trying again", "error", err)
	}
}

// Close releases the resources of a judge that does not run. Run does it when it ends.
func (j *Judge) Close() {
	for _, t := range j.tables {
		t.engine.Close()
	}
	j.tracked.Close()
	j.kernel.Close()
}

// HandedOver is closed once all policies are known.
func (j *Judge) HandedOver() <-chan struct{} { return j.handed }

// Run follows policies until ctx ends.
func (j *Judge) Run(ctx context.Context) error {
	defer j.Close()
	group, ctx := errgroup.WithContext(ctx)
	for _, t := range j.tables {
		group.Go(func() error { return t.run(ctx) })
	}
	group.Go(func() error { return j.revocations.Run(ctx) })
	group.Go(func() error { return j.follow(ctx) })
	group.Go(func() error {
		return steps.Keep(ctx, j.log, j.gates.wake, "the guard of the bridge", func() error { return j.gates.step(ctx) })
	})
	return group.Wait()
}

// compiled calls f with the compiler, once there is one.
func (j *Judge) compiled(f func(*nftables.Compiler)) {
	j.lock.Lock()
	defer j.lock.Unlock()
	if compiler, is := j.enforcer.Compiler().(*nftables.Compiler); is {
		f(compiler)
	}
}

func (j *Judge) config() nftables.Config {
	return nftables.Config{Bridge: j.bridge, Group: host.PodGroup}
}

// follow hands the objects to the enforcer until ctx ends.
func (j *Judge) follow(ctx context.Context) error {
	informer, err := j.objects.GetInformer(ctx, &corev1.Node{}, ctrlcache.BlockUntilSynced(true))
	if err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	signal := func(any) { steps.Wake(j.nodes) }
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: signal, UpdateFunc: func(was, now any) {
		if !samePlace(was, now) {
			signal(now)
		}
	}, DeleteFunc: signal})
	if err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	known, placed, failed := false, false, false
	for ctx.Err() == nil {
		err := j.step(ctx, !known)
		if err == nil && !known {
			known = true
			close(j.handed)
		}
		if !placed { // a problem of a policy does not keep nodes from being updated
			var moved error
			placed, moved = j.place(ctx)
			err = errors.Join(err, moved)
		}
		var again <-chan time.Time
		if err != nil && ctx.Err() == nil {
			if !failed {
				j.log.Warn("NetworkPolicies are not in effect, trying again", "error", err)
			}
			again = time.After(retry)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
		case <-j.follower.Wake():
		case <-j.nodes:
			placed = false
		case <-again:
		}
	}
	return ctx.Err()
}

// samePlace reports whether two states of a Node have the same addresses and ranges.
func samePlace(was, now any) bool {
	a, isNode := was.(*corev1.Node)
	b, areNodes := now.(*corev1.Node)
	return isNode && areNodes && slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) && slices.Equal(a.Status.Addresses, b.Status.Addresses)
}

// step hands over the changes; the first time, everything.
func (j *Judge) step(ctx context.Context, first bool) error {
	if first {
		if err := j.follower.Enter(ctx); err != nil {
			return err
		}
	}
	return j.follower.Step(ctx, j.enforcer.Update)
}

// place hands over the nodes' addresses, once the tables have pods. done is false if it has to be called again.
func (j *Judge) place(ctx context.Context) (done bool, err error) {
	j.mu.Lock()
	started := j.started
	j.mu.Unlock()
	if !started {
		return false, nil
	}
	ranges, nodes, err := j.places(ctx)
	if err == nil {
		err = j.enforcer.Move(ctx, ranges, nodes)
	}
	return err == nil, err
}

// places returns the ranges of the nodes' pods, and the nodes' addresses: those from which nodes reach pods, and those at which pods reach
// nodes.
func (j *Judge) places(ctx context.Context) (map[string][]netip.Prefix, map[policy.Key][]netip.Addr, error) {
	var list corev1.NodeList
	if err := j.objects.List(ctx, &list); err != nil {
		return nil, nil, fmt.Errorf("listing Nodes: %w", err)
	}
	ranges, nodes := map[string][]netip.Prefix{}, map[policy.Key][]netip.Addr{}
	for i := range list.Items {
		node := &list.Items[i]
		var own []netip.Addr
		for _, address := range node.Status.Addresses {
			if parsed, err := netip.ParseAddr(address.Address); err == nil && (address.Type == corev1.NodeInternalIP || address.Type == corev1.NodeExternalIP) {
				own = append(own, parsed.Unmap())
			}
		}
		for _, text := range node.Spec.PodCIDRs {
			subnet, err := netip.ParsePrefix(text)
			if err != nil {
				continue // the daemon of that node reports it
			}
			subnet = subnet.Masked()
			ranges[node.Name] = append(ranges[node.Name], subnet)
			own = append(own, subnet.Addr(), subnet.Addr().Next()) // flannel's device, and the bridge
		}
		slices.SortFunc(ranges[node.Name], netip.Prefix.Compare)
		slices.SortFunc(own, netip.Addr.Compare)
		nodes[policy.Key{Namespace: policy.HostNetworkNamespace, Name: "node/" + string(node.UID)}] = slices.Compact(own)
	}
	return ranges, nodes, nil
}

// Admit returns once the pods' verdicts are in effect, with the base chains. The guard of the bridge follows. The first call, after
// HandedOver, has all attached pods. A pod may be admitted again.
func (j *Judge) Admit(ctx context.Context, pods []Pod) error {
	j.mu.Lock()
	first, sweep := !j.started, j.gates.lastSweep()
	var fresh, all []attach.Record
	for i := range pods {
		rec := pods[i].record()
		if _, had := j.pods[rec.Key()]; !had {
			fresh = append(fresh, rec)
		}
		j.pods[rec.Key()] = rec
		for _, address := range rec.Addresses {
			j.taken[address.Addr()] = rec.Key()
		}
		all = append(all, rec)
	}
	j.mu.Unlock()
	if first {
		return j.start(ctx, all)
	}
	for i := range fresh { // a pod does not inherit the connections of its addresses
		if err := j.flushAddresses(ctx, j.vacated.reused(&fresh[i])); err != nil {
			return err
		}
	}
	for i := range all {
		j.enforcer.Open(&all[i])
		if err := j.enforcer.Await(ctx, &all[i]); err != nil {
			return err
		}
		if err := j.settled(ctx, reconcile.Owner(all[i].Key().Owner())); err != nil {
			return err
		}
	}
	if err := j.flushHeld(fresh, sweep == 0 || sweep != j.gates.lastSweep()); err != nil {
		return err
	}
	j.enforcer.ReportProblems()
	return nil
}

// start programs the tables for the first time, with all attached pods.
func (j *Judge) start(ctx context.Context, pods []attach.Record) error {
	for i := range pods {
		j.enforcer.Open(&pods[i])
	}
	ranges, nodes, err := j.places(ctx)
	if err != nil {
		return err
	}
	compiler := nftables.NewCompiler(j.tables[podsTable].loop, j.config())
	compiler.Hold(strangers())
	j.enforcer.Compile(compiler, ranges)
	j.enforcer.Begin(nodes)
	// A guard of before goes first: it drops what the base chains, which may go, have not marked.
	guard := j.tables[guardTable].loop
	err = guard.Start(ctx, nil)
	if err == nil {
		_, err = guard.Verify(ctx)
	}
	if err != nil {
		return fmt.Errorf("table %s: %w", guardTable, err)
	}
	if err := j.tables[podsTable].loop.Start(ctx, nil); err != nil {
		return fmt.Errorf("table %s: %w", podsTable, err)
	}
	// Start reports what could not be read. Without the base chains, pods would be open.
	if err := j.settled(ctx); err != nil {
		return err
	}
	j.sweep(ranges[j.node])
	var dismissed []attach.Record
	j.mu.Lock()
	j.started = true
	for i := range pods {
		if _, still := j.pods[pods[i].Key()]; !still { // its DEL came meanwhile, before the enforcer had it
			dismissed = append(dismissed, pods[i])
		}
	}
	j.mu.Unlock()
	j.enforcer.Close(dismissed...)
	steps.Wake(j.nodes) // a Node may have changed since they were read
	j.enforcer.ReportProblems()
	j.revocations.Due(true) // policies may have changed while no agent ran
	return j.revocations.Flush(ctx)
}

// Dismiss withdraws the verdicts of pods. It does not wait. Pods that were isolated stay closed until Left.
func (j *Judge) Dismiss(keys []attach.Key) {
	gone := map[attach.Key]attach.Record{}
	j.mu.Lock()
	for _, key := range keys {
		if rec, had := j.pods[key]; had {
			gone[key] = rec
			delete(j.pods, key)
			maps.DeleteFunc(j.taken, func(_ netip.Addr, by attach.Key) bool { return by == key })
		}
	}
	j.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	j.enforcer.Close(slices.Collect(maps.Values(gone))...)
	for _, rec := range gone {
		j.vacated.leave(&rec)
	}
	j.revocations.Soon()
}

// strangers stands for ports of the bridge that are not those of admitted pods.
func strangers() attach.Key { return attach.Key{ContainerID: "ports of other pods"} }

// Alone notes that the bridge has no other ports than those of admitted pods. Until then, packets to other ports are dropped.
func (j *Judge) Alone() { j.Left([]attach.Key{strangers()}) }

// Left notes pods that are no ports of the bridge any more.
func (j *Judge) Left(keys []attach.Key) {
	j.compiled(func(c *nftables.Compiler) { c.Left(keys...) })
	j.gates.changed()
}
