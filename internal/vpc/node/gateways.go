package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/vpc/nat"
)

// errClosed reports that the traffic of a gateway's attachment was stopped.
var errClosed = errors.New("the attachment was closed")

// gateways are the pods of NAT gateways on this node. Their state follows from the API's objects, and is programmed here.
type gateways struct {
	node *node.Node
	deps network.Deps
	wake chan struct{}

	// compiler is used with compiling held.
	compiling sync.Mutex
	compiler  nat.Compiler

	mu sync.Mutex
	// watching is set once all objects are known.
	watching bool
	open     map[attach.Key]*natGateway
	// closed are attachments whose traffic was stopped.
	closed map[attach.Key]bool
	// outcomes are those of programming, and reported what the pods' conditions say.
	outcomes map[attach.Key]outcome
	reported map[attach.Key]said
	// report wakes the goroutine that reports.
	report chan struct{}
	// busy are the gateways that a step programs; true: a later step has omitted the gateway meanwhile.
	busy map[attach.Key]bool
	// following has a goroutine for each of them.
	following sync.WaitGroup
}

func newGateways(n *node.Node, deps network.Deps) *gateways {
	return &gateways{
		node: n, deps: deps, wake: make(chan struct{}, 1), report: make(chan struct{}, 1),
		open: map[attach.Key]*natGateway{}, closed: map[attach.Key]bool{}, outcomes: map[attach.Key]outcome{}, reported: map[attach.Key]said{},
		busy: map[attach.Key]bool{},
	}
}

// gatewayKinds are the objects from which gateways are compiled.
func gatewayKinds() []client.Object {
	return []client.Object{
		&kubeovn.Vpc{}, &kubeovn.Subnet{}, &kubeovn.VpcNatGateway{}, &kubeovn.IptablesEIP{}, &kubeovn.IptablesSnatRule{},
		&kubeovn.IptablesDnatRule{}, &kubeovn.IptablesFIPRule{}, nat.Definition(),
	}
}

func (g *gateways) signal() { signal(g.wake) }

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// watch begins to watch the objects, and returns once all are known. A node without gateways watches none.
func (g *gateways) watch(ctx context.Context) error {
	g.mu.Lock()
	watching := g.watching
	g.mu.Unlock()
	if watching {
		return nil
	}
	for _, kind := range gatewayKinds() {
		informer, err := g.deps.Objects.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(true))
		if err != nil {
			return fmt.Errorf("watch %s: %w", kind.GetObjectKind().GroupVersionKind().Kind, err)
		}
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { g.signal() }, UpdateFunc: func(any, any) { g.signal() }, DeleteFunc: func(any) { g.signal() },
		})
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	g.mu.Lock()
	g.watching = true
	g.mu.Unlock()
	return nil
}

// compile returns the named gateways, from the current objects.
func (g *gateways) compile(ctx context.Context, names ...string) (*nat.Network, error) {
	if err := g.watch(ctx); err != nil {
		return nil, err
	}
	var (
		vpcs    kubeovn.VpcList
		subnets kubeovn.SubnetList
		gates   kubeovn.VpcNatGatewayList
		eips    kubeovn.IptablesEIPList
		snats   kubeovn.IptablesSnatRuleList
		dnats   kubeovn.IptablesDnatRuleList
		fips    kubeovn.IptablesFIPRuleList
	)
	definitions := nat.DefinitionList()
	for _, list := range []client.ObjectList{&vpcs, &subnets, &gates, &eips, &snats, &dnats, &fips, definitions} {
		if err := g.deps.Objects.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil { // nat.Compile changes nothing
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	g.compiling.Lock()
	defer g.compiling.Unlock()
	return g.compiler.Compile(&nat.Objects{
		Vpcs: vpcs.Items, Subnets: subnets.Items, Gateways: gates.Items, EIPs: eips.Items, SNATs: snats.Items, DNATs: dnats.Items, FIPs: fips.Items,
		Definitions: nat.Definitions(definitions),
	}, names...), nil
}

// get returns the gateway of an attachment, opened. The attachment may have been removed since the caller read its record: unless its ADD is
// in progress (adding), get opens only what is attached. It checks this with the lock that disconnect takes, after the attachment was marked
// as closing: either disconnect finds the opened gateway, or get finds no attachment.
func (g *gateways) get(ctx context.Context, rec *attach.Record, adding bool) (*natGateway, error) {
	g.mu.Lock()
	have, closed := g.open[rec.Key()], g.closed[rec.Key()]
	g.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case have != nil && have.rec.Netns == rec.Netns:
		return have, nil
	}
	made, err := openGateway(ctx, g.node, rec)
	if err != nil {
		return nil, err
	}
	made.connecting = adding
	g.mu.Lock()
	if other := g.open[rec.Key()]; g.closed[rec.Key()] || other != nil && other.rec.Netns == rec.Netns { // another call was faster
		g.mu.Unlock()
		made.close()
		return g.get(ctx, rec, adding)
	}
	if !adding && !g.isAttached(rec) {
		g.mu.Unlock()
		made.close()
		return nil, errClosed
	}
	g.open[rec.Key()] = made
	g.mu.Unlock()
	if have != nil {
		have.close() // of a former namespace
	}
	return made, nil
}

// isAttached reports whether the record is that of an attachment, with the same namespace.
func (g *gateways) isAttached(rec *attach.Record) bool {
	return slices.ContainsFunc(g.deps.Records.Attached(), func(now attach.Record) bool { return now.Key() == rec.Key() && now.Netns == rec.Netns })
}

// prepare returns the steps of a gateway's attachment: first its table is brought into effect, before packets can reach the gateway by eth0;
// once eth0 exists, the whole state is programmed, before the ADD is answered.
func (g *gateways) prepare(ctx context.Context, rec *attach.Record) (of steps, err error) {
	name := gatewayOf(rec)
	all, err := g.compile(ctx, name)
	if err != nil {
		return of, cni.Errorf(cni.CodeTryAgainLater, "NAT gateway %s: %w", name, err)
	}
	want := all.Gateways[name]
	switch {
	case want == nil:
		return of, cni.Errorf(cni.CodeTryAgainLater, "NAT gateway %s: there is no VpcNatGateway of this name", name)
	case want.Problem != (nat.Problem{}):
		if !g.knows(rec) {
			g.deny(ctx, rec, nat.ReasonNothing, all.Required(name).Hash())
		}
		return of, cni.Errorf(cni.CodeTryAgainLater, "NAT gateway %s: %s", name, want.Problem.Message)
	}
	g.mu.Lock()
	delete(g.closed, rec.Key())
	g.mu.Unlock()
	made, err := g.get(ctx, rec, true)
	if err != nil {
		return of, err
	}
	of.before = func(ctx context.Context) error { return made.prepare(ctx, want) }
	of.meanwhile = func(ctx context.Context) error {
		if err := made.connected(ctx); err != nil {
			return err
		}
		all, err := g.compile(ctx, name) // an EIP may have been deleted meanwhile
		if err != nil {
			return cni.Errorf(cni.CodeTryAgainLater, "NAT gateway %s: %w", name, err)
		}
		if now := all.Gateways[name]; now != nil && now.Problem == (nat.Problem{}) {
			want = now
		}
		if err := made.program(ctx, want); err != nil {
			if ctx.Err() == nil && !errors.Is(err, errClosed) { // else it fails for another reason
				g.deny(ctx, rec, nat.ReasonFailed, bounded(err))
			}
			return err
		}
		g.signal() // the report, and what has changed meanwhile
		return nil
	}
	return of, nil
}

// disconnect stops a gateway's traffic.
func (g *gateways) disconnect(ctx context.Context, rec *attach.Record) error {
	g.mu.Lock()
	have := g.open[rec.Key()]
	delete(g.open, rec.Key())
	delete(g.outcomes, rec.Key())
	delete(g.reported, rec.Key())
	g.closed[rec.Key()] = true
	g.mu.Unlock()
	if have == nil {
		have = &natGateway{name: gatewayOf(rec), rec: *rec, node: g.node, close: func() {}, serial: make(chan struct{}, 1)}
	}
	return have.stop(ctx)
}

// removed deletes the state of a removed attachment.
func (g *gateways) removed(key attach.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.closed, key)
}

// knows reports whether the gateway's pod is attached, or being attached: it may have a state.
func (g *gateways) knows(rec *attach.Record) bool {
	g.mu.Lock()
	open := g.open[rec.Key()] != nil
	g.mu.Unlock()
	return open || g.isAttached(rec)
}

// attached returns the records of the gateways on this node, including those whose ADD is in progress.
func (g *gateways) attached() map[attach.Key]attach.Record {
	recs := map[attach.Key]attach.Record{}
	for _, rec := range g.deps.Records.Attached() {
		if gatewayOf(&rec) != "" {
			recs[rec.Key()] = rec
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, one := range g.open {
		recs[key] = one.rec
	}
	maps.DeleteFunc(recs, func(key attach.Key, _ attach.Record) bool { return g.closed[key] })
	return recs
}

// run keeps the gateways in step with the objects, and reports what is in effect, until ctx ends. A report delays no change.
func (g *gateways) run(ctx context.Context) {
	defer g.closeAll()
	defer g.following.Wait()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		repeat(ctx, reportPace, g.report, func(ctx context.Context) error {
			err := g.reportAll(ctx)
			if err != nil && ctx.Err() == nil {
				g.deps.Log.Warn("reports of NAT gateways could not be written, trying again", "error", err)
			}
			return err
		})
	})
	repeat(ctx, stepPace, g.wake, func(ctx context.Context) error {
		err := g.step(ctx)
		if err != nil && ctx.Err() == nil {
			g.deps.Log.Warn("NAT gateways are not in step, trying again", "error", err)
		}
		return err
	})
}

// pace is how changes that arrive one after the other are gathered: each step costs processes and a walk through the connections, and each
// report a request and a plan of the controller. A change that comes more than limit after the last step does not wait. Another one waits until
// none has come for quiet, but not longer than limit after the last step.
type pace struct{ quiet, limit time.Duration }

var (
	stepPace   = pace{quiet: 20 * time.Millisecond, limit: 150 * time.Millisecond}  //nolint:gochecknoglobals // constants
	reportPace = pace{quiet: 100 * time.Millisecond, limit: 100 * time.Millisecond} //nolint:gochecknoglobals // constants
)

// gather waits as long as the pace says. A change has come; wake tells of others. last is when the last step ended.
func (p pace) gather(ctx context.Context, last time.Time, wake <-chan struct{}) {
	limit := time.NewTimer(time.Until(last.Add(p.limit)))
	defer limit.Stop()
	quiet := time.NewTimer(p.quiet)
	defer quiet.Stop()
	for {
		select {
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		case <-quiet.C:
			return
		case <-wake:
			quiet.Reset(p.quiet)
		}
	}
}

// repeat calls do at first, when it is woken, at a pace, and again after an error, until ctx ends.
func repeat(ctx context.Context, pace pace, wake <-chan struct{}, do func(context.Context) error) {
	delay := firstRetry
	for {
		var again <-chan time.Time
		if err := do(ctx); err != nil {
			timer := time.NewTimer(delay)
			again, delay = timer.C, min(2*delay, lastRetry)
		} else {
			delay = firstRetry
		}
		last := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-wake:
			pace.gather(ctx, last, wake)
		}
	}
}

func (g *gateways) closeAll() {
	g.mu.Lock()
	open := slices.Collect(maps.Values(g.open))
	g.open = map[attach.Key]*natGateway{}
	g.mu.Unlock()
	for _, one := range open {
		one.close()
	}
}

// patience is how long a step waits for a gateway. A change takes some ten milliseconds.
const patience = time.Second

// errSlow reports that a gateway is still being programmed.
var errSlow = errors.New("programming takes longer than usual; the other gateways do not wait for it")

// step programs the changes. A gateway that cannot be programmed, or whose programming takes long, does not affect the others.
func (g *gateways) step(ctx context.Context) error {
	recs := g.attached()
	if len(recs) == 0 {
		return nil
	}
	names := make([]string, 0, len(recs))
	for _, rec := range recs {
		names = append(names, gatewayOf(&rec))
	}
	all, err := g.compile(ctx, names...)
	if err != nil {
		return err
	}
	results, begun := make(chan error, len(recs)), 0
	for key, rec := range recs {
		if !g.begin(key) {
			continue
		}
		begun++
		g.following.Go(func() {
			began := time.Now()
			err := g.follow(ctx, &rec, all)
			if errors.Is(err, errClosed) {
				err = nil
			}
			if err != nil && ctx.Err() == nil && time.Since(began) >= patience { // the step has not waited for it
				g.deps.Log.Warn("a NAT gateway could not be programmed, trying again", "gateway", gatewayOf(&rec), "error", err)
			}
			g.end(key)
			results <- err
		})
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	var errs []error
	for range begun {
		select {
		case err := <-results:
			errs = append(errs, err)
		case <-limit.C:
			return errors.Join(append(errs, errSlow)...)
		}
	}
	return errors.Join(errs...)
}

// begin reports whether a gateway can be programmed, because no earlier step programs it. If one does, its end wakes the next step.
func (g *gateways) begin(key attach.Key) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, busy := g.busy[key]
	g.busy[key] = busy
	return !busy
}

func (g *gateways) end(key attach.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy[key] {
		g.signal()
	}
	delete(g.busy, key)
}

// follow brings one gateway in step. A gateway that cannot be compiled keeps its state, and the controller reports why; what its rules and
// EIPs do not require any more is withdrawn nevertheless.
func (g *gateways) follow(ctx context.Context, rec *attach.Record, all *nat.Network) error {
	name := gatewayOf(rec)
	made, err := g.get(ctx, rec, false)
	if err != nil {
		return err
	}
	var hash string
	if want := all.Gateways[name]; want != nil && want.Problem == (nat.Problem{}) {
		hash, err = want.Hash, made.program(ctx, want)
	} else {
		required := all.Required(name)
		hash, err = required.Hash(), made.withdraw(ctx, required)
	}
	if !errors.Is(err, errClosed) {
		g.conclude(made, hash, err)
	}
	return err
}
