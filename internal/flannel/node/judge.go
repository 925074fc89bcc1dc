package node

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

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/policy/follow"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/reconcile"
)

// Pod is an attached pod, as a Judge needs it.
type Pod struct {
	Key                  attach.Key
	Namespace, Name, UID string
	Addresses            []netip.Addr
}

func podOf(rec *attach.Record) Pod {
	pod := Pod{Key: rec.Key(), Namespace: rec.PodNamespace, Name: rec.PodName, UID: rec.PodUID}
	for _, address := range rec.Addresses {
		pod.Addresses = append(pod.Addresses, address.Addr())
	}
	return pod
}

// record returns the part of the pod's record that the enforcer reads.
func (p *Pod) record() attach.Record {
	rec := attach.Record{ContainerID: p.Key.ContainerID, IfName: p.Key.IfName, PodNamespace: p.Namespace, PodName: p.Name, PodUID: p.UID}
	for _, address := range p.Addresses {
		rec.Addresses = append(rec.Addresses, netip.PrefixFrom(address, address.BitLen()))
	}
	return rec
}

// Judge enforces NetworkPolicies on the pods of this node. A pod that is not admitted is closed.
type Judge interface {
	// Run follows policies until ctx ends.
	Run(ctx context.Context) error
	// HandedOver is closed once all policies are known.
	HandedOver() <-chan struct{}
	// Admit returns once the pods' verdicts are in effect. The first call, after HandedOver, has all attached pods. A pod may be admitted
	// again.
	Admit(ctx context.Context, pods []Pod) error
	// Dismiss closes pods. It does not wait.
	Dismiss(keys []attach.Key)
}

const (
	judgeTable = "weft-flannel-pods"
	guardTable = "weft-flannel-guard"
	// judgePriority is before other programs' filter chains, and after the chains of earlier releases (-10 and -9), which the transaction
	// that adds these chains removes: a packet that it finds between two chains is judged by the ones or by the others.
	judgePriority = -8
	// revokeRest is how long the connections of removed pods may wait for their flush, so that several are flushed together.
	revokeRest = time.Second
	// judgeRetry is the delay before a failed step is repeated, unless an object changes.
	judgeRetry = time.Second
)

// enforced is the agent's Judge: NetworkPolicies with nftables.
type enforced struct {
	log     *slog.Logger
	node    string
	bridge  string
	objects ctrlcache.Cache
	tables  map[string]*judged
	tracked *conntrack.Table
	handed  chan struct{}
	nodes   chan struct{}

	follower    *follow.Follower
	revocations *enforcer.Revocations
	enforcer    *enforcer.Enforcer

	vacated vacated

	// mu guards what follows.
	mu      sync.Mutex
	pods    map[attach.Key]attach.Record
	started bool
}

// judged is a table with its loop.
type judged struct {
	engine *nftnl.Engine
	loop   *portLoop
	// altered is called when the table is correct again after another program changed it.
	altered func(ctx context.Context)
}

func newJudged(family nftnl.Family, name string) (*judged, error) {
	engine, err := nftnl.NewEngine(nftnl.Options{Family: family, Table: name})
	if err != nil {
		return nil, err
	}
	loop := reconcile.NewLoop(engine, reconcile.Options[nftnl.Key, nftnl.Item]{Name: "nftables " + name})
	return &judged{engine: engine, loop: loop, altered: func(context.Context) {}}, nil
}

// run maintains the table until ctx ends, also when other programs change it.
func (j *judged) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return j.loop.Run(ctx) })
	group.Go(func() error {
		drifts, err := j.engine.Watch(ctx)
		if err != nil {
			return err
		}
		if _, open := <-drifts; open { // watching has begun
			j.loop.Resync()
		}
		for drift := range drifts {
			if drift.Err != nil {
				return drift.Err
			}
			// If this fails, the loop retries. The flush below then removes what the table's current state does not allow.
			_, _ = j.loop.Verify(ctx)
			j.altered(ctx)
		}
		return ctx.Err()
	})
	return group.Wait()
}

// settled waits until a commit of the owners' fragments was tried, and returns why they are not in effect, if so.
func (j *judged) settled(ctx context.Context, owners ...reconcile.Owner) error {
	err := j.loop.Apply(ctx, nil)
	for _, o := range owners {
		err = errors.Join(err, j.loop.Failure(o))
	}
	return err
}

// NewJudge returns the judge of the pods of a bridge, in the caller's network namespace. Run has to be called.
func NewJudge(node, bridge string, deps *network.Deps) (Judge, error) {
	return newEnforced(node, bridge, deps)
}

func newEnforced(node, bridge string, deps *network.Deps) (*enforced, error) {
	pods, err := newJudged(nftnl.FamilyInet, judgeTable)
	if err != nil {
		return nil, err
	}
	guard, err := newJudged(nftnl.FamilyBridge, guardTable)
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
	e := &enforced{
		log: deps.Log, node: node, bridge: bridge, objects: deps.Objects, tracked: tracked, handed: make(chan struct{}), nodes: make(chan struct{}, 1),
		tables: map[string]*judged{judgeTable: pods, guardTable: guard}, pods: map[attach.Key]attach.Record{}, follower: follow.New(deps.Objects, nil),
		vacated: vacated{left: map[netip.Addr]departure{}},
	}
	lock := &sync.Mutex{}
	e.revocations = enforcer.NewRevocations(enforcer.RevocationOptions{
		Lock: lock, Rest: func() time.Duration { return revokeRest }, Log: deps.Log,
		Settled: func(ctx context.Context, owners []reconcile.Owner) error { return pods.settled(ctx, owners...) },
		Revoke:  e.revoke,
	})
	pods.altered = e.judgeAgain
	e.enforcer = enforcer.New(enforcer.Options{
		Node: node, Lock: lock, Revocations: e.revocations, PerPolicy: true, SCTP: true, Families: enforcer.Families{IPv4: true, IPv6: true},
		Problems: func(key policy.Key, problems []error) { e.report(deps.Events, key, problems) },
	})
	return e, nil
}

// report reports the parts of a NetworkPolicy that are not enforced on this node.
func (e *enforced) report(events network.Events, key policy.Key, problems []error) {
	const most = 20 // an object may have thousands of errors
	wrong := errors.Join(problems[:min(most, len(problems))]...)
	e.log.Warn("a NetworkPolicy is not enforced as it says", "policy", key.String(), "error", wrong)
	if object := e.follower.Policy(context.Background(), key); object != nil && events != nil {
		events.Warning(object, "PolicyNotAsSpecified", "Enforce", wrong.Error())
	}
}

// judgeAgain ends connections that were opened while another program's change of the table allowed them.
func (e *enforced) judgeAgain(ctx context.Context) {
	e.revocations.Due(true)
	if err := e.revocations.Flush(ctx); err != nil && ctx.Err() == nil {
		e.log.Warn("connections that began while the table was changed by another program may go on; trying again", "error", err)
	}
}

// close releases the resources; Run calls it when it ends.
func (e *enforced) close() {
	for _, table := range e.tables {
		table.engine.Close()
	}
	e.tracked.Close()
}

// HandedOver implements Judge.
func (e *enforced) HandedOver() <-chan struct{} { return e.handed }

// Run implements Judge.
func (e *enforced) Run(ctx context.Context) error {
	defer e.close()
	group, ctx := errgroup.WithContext(ctx)
	for _, table := range e.tables {
		group.Go(func() error { return table.run(ctx) })
	}
	group.Go(func() error { return e.revocations.Run(ctx) })
	group.Go(func() error { return e.follow(ctx) })
	return group.Wait()
}

// follow hands the objects to the enforcer until ctx ends.
func (e *enforced) follow(ctx context.Context) error {
	informer, err := e.objects.GetInformer(ctx, &corev1.Node{}, ctrlcache.BlockUntilSynced(true))
	if err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	signal := func(any) {
		select {
		case e.nodes <- struct{}{}:
		default: // already signalled
		}
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: signal, UpdateFunc: func(was, now any) {
		if !samePlace(was, now) {
			signal(now)
		}
	}, DeleteFunc: signal})
	if err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	known, failed := false, false
	for ctx.Err() == nil {
		err := e.step(ctx, !known)
		if err == nil && !known {
			known = true
			close(e.handed)
		}
		var retry <-chan time.Time
		if err != nil && ctx.Err() == nil {
			if !failed {
				e.log.Warn("NetworkPolicies are not in effect, trying again", "error", err)
			}
			retry = time.After(judgeRetry)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
		case <-e.follower.Wake():
		case <-e.nodes:
		case <-retry:
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
func (e *enforced) step(ctx context.Context, first bool) error {
	if first {
		if err := e.follower.Enter(ctx); err != nil {
			return err
		}
	}
	refused := e.follower.Step(ctx, e.enforcer.Update, first)
	e.mu.Lock()
	started := e.started
	e.mu.Unlock()
	if !started {
		return refused
	}
	ranges, nodes, err := e.places(ctx)
	if err != nil {
		return errors.Join(refused, err)
	}
	return errors.Join(refused, e.enforcer.Move(ctx, ranges, nodes)) // a problem of a policy does not keep nodes from being updated
}

// places returns the ranges of the nodes' pods, and the nodes' addresses: those from which nodes reach pods, and those at which pods reach
// nodes.
func (e *enforced) places(ctx context.Context) (map[string][]netip.Prefix, map[policy.Key][]netip.Addr, error) {
	var list corev1.NodeList
	if err := e.objects.List(ctx, &list); err != nil {
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

// Admit implements Judge.
func (e *enforced) Admit(ctx context.Context, pods []Pod) error {
	e.mu.Lock()
	first := !e.started
	var fresh, all []attach.Record
	for i := range pods {
		rec := pods[i].record()
		if _, had := e.pods[rec.Key()]; !had {
			fresh = append(fresh, rec)
		}
		e.pods[rec.Key()] = rec
		all = append(all, rec)
	}
	e.mu.Unlock()
	if first {
		return e.start(ctx, all)
	}
	for i := range fresh { // a pod does not inherit the connections of its addresses
		if err := e.flushAddresses(ctx, e.vacated.reused(&fresh[i])); err != nil {
			return err
		}
	}
	for i := range all {
		e.enforcer.Open(&all[i])
		if err := e.enforcer.Await(ctx, &all[i]); err != nil {
			return err
		}
		if err := e.tables[judgeTable].settled(ctx, reconcile.Owner(all[i].Key().Owner())); err != nil {
			return fmt.Errorf("table inet %s: %w", judgeTable, err)
		}
	}
	e.enforcer.ReportProblems()
	return nil
}

// revoke flushes the connections that policies do not allow any more, and those of the addresses that pods have left. While rules for such
// a pod are still in effect, its connections are left for a later flush.
func (e *enforced) revoke(ctx context.Context) error {
	departed := e.vacated.departed()
	var err error
	if len(departed) > 0 {
		err = e.tables[judgeTable].settled(ctx, owners(departed)...)
	}
	if err != nil {
		departed = nil
	}
	err = errors.Join(err, nftables.Flush(e.tracked, e.enforcer.Revoked(), slices.Collect(maps.Keys(departed))...))
	if err == nil {
		e.vacated.flushed(departed)
	}
	return err
}

// flushAddresses flushes the connections of addresses, once no rules for their former pods are in effect.
func (e *enforced) flushAddresses(ctx context.Context, addresses map[netip.Addr]departure) error {
	if len(addresses) == 0 {
		return nil
	}
	if err := e.tables[judgeTable].settled(ctx, owners(addresses)...); err != nil {
		return fmt.Errorf("table inet %s: %w", judgeTable, err)
	}
	if err := nftables.FlushPods(e.tracked, slices.Collect(maps.Keys(addresses))...); err != nil {
		return err
	}
	e.vacated.flushed(addresses)
	return nil
}

// sweep flushes the connections of the node's ranges that belong to no attached pod: an earlier agent process has left them.
func (e *enforced) sweep(ranges []netip.Prefix, attached []attach.Record) {
	var addresses []netip.Addr
	for i := range attached {
		for _, address := range attached[i].Addresses {
			addresses = append(addresses, address.Addr())
		}
	}
	if err := nftables.FlushRanges(e.tracked, ranges, addresses...); err != nil {
		e.log.Warn("connections of former pods could not be removed: each new pod's addresses are looked for instead", "error", err)
		return
	}
	e.vacated.sweep(ranges)
}

// start programs the tables for the first time, with all attached pods.
func (e *enforced) start(ctx context.Context, pods []attach.Record) error {
	for i := range pods {
		e.enforcer.Open(&pods[i])
	}
	ranges, nodes, err := e.places(ctx)
	if err != nil {
		return err
	}
	table := e.tables[judgeTable].loop
	e.enforcer.Compile(nftables.NewCompiler(table), ranges)
	e.enforcer.Begin(nodes)
	config := nftables.Config{Bridge: e.bridge, Group: hostGroup, Priority: judgePriority}
	for name, static := range map[string]nftables.Items{judgeTable: nftables.Static(config), guardTable: nftables.Guard(config)} {
		if err := e.tables[name].loop.Start(ctx, map[reconcile.Owner]nftables.Items{nftables.OwnerStatic: static}); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	e.sweep(ranges[e.node], pods)
	e.mu.Lock()
	e.started = true
	e.mu.Unlock()
	e.enforcer.ReportProblems()
	e.revocations.Due(true) // policies may have changed while no agent ran
	return e.revocations.Flush(ctx)
}

// Dismiss implements Judge.
func (e *enforced) Dismiss(keys []attach.Key) {
	gone := map[attach.Key]attach.Record{}
	e.mu.Lock()
	for _, key := range keys {
		if rec, had := e.pods[key]; had {
			gone[key] = rec
			delete(e.pods, key)
		}
	}
	e.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	e.enforcer.Close(slices.Collect(maps.Values(gone))...)
	for _, rec := range gone {
		e.vacated.leave(&rec)
	}
	e.revocations.Soon()
}
