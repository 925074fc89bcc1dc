package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// programmed are the hashes of what is in effect, and reported those that the pods' conditions have.
	programmed map[attach.Key]programmed
	reported   map[attach.Key]string
	// report wakes the goroutine that reports.
	report chan struct{}
	// busy are the gateways that a step programs; true: a later step has omitted the gateway meanwhile.
	busy map[attach.Key]bool
	// following has a goroutine for each of them.
	following sync.WaitGroup
}

// programmed is what is in effect in a gateway.
type programmed struct {
	rec  attach.Record
	hash string
}

func newGateways(n *node.Node, deps network.Deps) *gateways {
	return &gateways{
		node: n, deps: deps, wake: make(chan struct{}, 1), report: make(chan struct{}, 1),
		open: map[attach.Key]*natGateway{}, closed: map[attach.Key]bool{}, programmed: map[attach.Key]programmed{}, reported: map[attach.Key]string{},
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
		g.reportNothing(ctx, rec, all.Required(name).Hash())
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
		if err := made.program(ctx, want); err != nil {
			return g.reportFailure(ctx, rec, err)
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
	delete(g.programmed, rec.Key())
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
	if errors.Is(err, errClosed) || !g.keep(made, hash, err) || err == nil {
		return err
	}
	return g.reportFailure(ctx, rec, err)
}

// keep records the result of programming a gateway, for the report. It returns false if the gateway was closed meanwhile.
func (g *gateways) keep(made *natGateway, hash string, err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := made.rec.Key()
	switch {
	case g.open[key] != made:
		return false
	case err != nil:
		delete(g.programmed, key)
		delete(g.reported, key)
	default:
		g.programmed[key] = programmed{made.rec, hash}
		signal(g.report)
	}
	return true
}

// reportAll reports what is in effect and not reported yet. Of several changes during a report, only the last is reported.
func (g *gateways) reportAll(ctx context.Context) error {
	g.mu.Lock()
	due := maps.Clone(g.programmed)
	maps.DeleteFunc(due, func(key attach.Key, now programmed) bool { return g.reported[key] == now.hash })
	g.mu.Unlock()
	var errs []error
	for _, now := range due {
		errs = append(errs, g.reportOne(ctx, &now.rec, now.hash))
	}
	return errors.Join(errs...)
}

// reportOne writes the hash of what is programmed to the condition of the gateway's pod, for which its readiness waits.
func (g *gateways) reportOne(ctx context.Context, rec *attach.Record, hash string) error {
	g.mu.Lock()
	before := g.reported[rec.Key()]
	delete(g.reported, rec.Key()) // not known until the API server answers
	g.mu.Unlock()
	condition := corev1.PodCondition{Type: nat.Condition, Status: corev1.ConditionTrue, Reason: "Programmed", Message: hash}
	if err := g.patch(ctx, rec, condition, before != ""); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, there := g.programmed[rec.Key()]; there {
		g.reported[rec.Key()] = hash
	}
	return nil
}

// maxFailure limits the text of a failure in a condition, in bytes.
const maxFailure = 1024

// failureTimeout limits the request that reports a failure.
const failureTimeout = 2 * time.Second

// reportFailure writes to the pod's condition why it cannot be programmed, for the controller's report on the VpcNatGateway, and returns the error.
func (g *gateways) reportFailure(ctx context.Context, rec *attach.Record, err error) error {
	if ctx.Err() == nil { // else it fails for another reason
		text := err.Error()
		g.deny(ctx, rec, nat.ReasonFailed, strings.ToValidUTF8(text[:min(len(text), maxFailure)], ""))
	}
	return err
}

// reportNothing writes to the pod's condition that it has no state: the addresses that its gateway does not require are free.
func (g *gateways) reportNothing(ctx context.Context, rec *attach.Record, required string) {
	g.deny(ctx, rec, nat.ReasonNothing, required)
}

// deny sets the pod's condition to False.
func (g *gateways) deny(ctx context.Context, rec *attach.Record, reason, message string) {
	ctx, cancel := context.WithTimeout(ctx, failureTimeout)
	defer cancel()
	condition := corev1.PodCondition{Type: nat.Condition, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	if err := g.patch(ctx, rec, condition, false); err != nil {
		g.deps.Log.Warn("why a NAT gateway has no state could not be reported", "gateway", gatewayOf(rec), "error", err)
	}
}

// patch writes the condition of the gateway's pod, unless it has it already; changed: it has another one.
func (g *gateways) patch(ctx context.Context, rec *attach.Record, condition corev1.PodCondition, changed bool) error {
	condition.LastTransitionTime = metav1.Now()
	meta := map[string]any{}
	if rec.PodUID != "" {
		meta["uid"] = rec.PodUID // a later pod of this name is another one
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "status": map[string]any{"conditions": []corev1.PodCondition{condition}}})
	if err != nil {
		return fmt.Errorf("encode the condition of pod %s/%s: %w", rec.PodNamespace, rec.PodName, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rec.PodNamespace, Name: rec.PodName}}
	var now corev1.Pod // after a restart of the agent the pod has it already
	if changed || g.deps.API.Get(ctx, client.ObjectKeyFromObject(pod), &now) != nil || !has(&now, &condition) {
		err := g.deps.API.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("report on pod %s/%s: %w", rec.PodNamespace, rec.PodName, err)
		}
	}
	return nil
}

// has reports whether the pod has the condition.
func has(pod *corev1.Pod, condition *corev1.PodCondition) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == condition.Type && c.Status == condition.Status && c.Message == condition.Message
	})
}
