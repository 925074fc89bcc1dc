package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/neutron/ports"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/reconcile"
)

// lastRetry is the delay before what failed is tried again.
const lastRetry = 30 * time.Second

// compiler keeps the flows of the networks that have pods on this node in step with the objects and the attachments. Each network is
// compiled separately, when something has changed that it depends on, and by one goroutine at a time: so the flows handed over last are
// from the objects read last. Nothing is compiled under mu, so that a DEL and the ADDs of other networks do not wait for a compilation.
type compiler struct {
	node    string
	objects client.Reader
	// set hands flows over to the switch's loop, and does not wait for it.
	set func(fragments)
	log *slog.Logger
	// warn reports why a NetworkPolicy is not in effect as written. Nil: no reports.
	warn func(policy client.Object, note string)
	// outdated takes the connections that flows that were handed over outdate, and does not wait. Nil: they are kept.
	outdated func([]openflow.CTFlush)
	// groups numbers the Services' groups.
	groups groups
	// wake makes run look for networks to compile.
	wake chan struct{}

	// mu keeps handovers in the order of attach and detach.
	mu sync.Mutex
	// attached are the open attachments. Each opening has a new object, which distinguishes it from an earlier one with the same key.
	attached map[attach.Key]*attachment
	// shut are attachments that were closed, until they are removed or opened again.
	shut map[attach.Key]bool
	jobs map[scope]*job
}

// attachment is an open attachment with its network.
type attachment struct {
	rec   attach.Record
	scope scope
	// tracked are the families of which the flows that were handed over track its connections.
	tracked tracked
}

// job is the compilation of one network.
type job struct {
	// asked counts the changes, and served how many of them are in what was handed over.
	asked, served uint64
	// running reports that a goroutine compiles it.
	running bool
	// judge is that of what was handed over; nil: no policy.
	judge *judge
	// handed has the fragments that the switch's loop has from this network. They are not changed any more.
	handed fragments
	// services are those in handed; nil: nothing was handed over yet.
	services []pipeline.Service
	// err is why nothing was handed over.
	err error
	// logged is the problem that was logged last.
	logged string
	// done is closed and replaced when served changes.
	done chan struct{}
}

// batch is one running compilation.
type batch struct {
	scope    scope
	asked    uint64
	attached []*attachment
	// made is nil if nothing could be compiled, because of err. Otherwise err has what is invalid.
	made  fragments
	judge *judge
	// handed are the job's at the beginning, and same the owners whose fragments in made are equal to these.
	handed fragments
	same   map[reconcile.Owner]bool
	err    error
	// numbered are the groups in made.
	numbered map[groupKey]bool
	// before are the job's Services at the beginning, services those in made, and stale the connections that the change outdates.
	before, services []pipeline.Service
	stale            []openflow.CTFlush
	// tracked are the attachments' families whose connections are tracked.
	tracked map[attach.Key]tracked
}

func newCompiler(node string, objects client.Reader, log *slog.Logger, set func(fragments)) *compiler {
	return &compiler{
		node: node, objects: objects, set: set, log: log, wake: make(chan struct{}, 1),
		attached: map[attach.Key]*attachment{}, shut: map[attach.Key]bool{}, jobs: map[scope]*job{},
	}
}

// run compiles requested networks until ctx ends.
func (c *compiler) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	var retry <-chan time.Time
	for {
		if retry == nil && c.anyFailed() {
			retry = time.After(lastRetry)
		}
		for _, s := range c.waiting() {
			group.Go(func() { c.serve(ctx, s) })
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-retry:
			retry = nil
			c.askFailed()
		}
	}
}

// waiting returns the networks that have to be compiled and that no goroutine compiles.
func (c *compiler) waiting() []scope {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []scope
	for s, j := range c.jobs {
		if !j.running && j.asked > j.served {
			all = append(all, s)
		}
	}
	return all
}

// serve compiles a network until no change is left.
func (c *compiler) serve(ctx context.Context, s scope) {
	for {
		b := c.begin(s)
		if b == nil {
			return
		}
		b.compile(ctx, c)
		c.reportRefused(c.handOver(ctx, b))
	}
}

// serveAll compiles all requested networks.
func (c *compiler) serveAll(ctx context.Context) {
	for _, s := range c.waiting() {
		c.serve(ctx, s)
	}
}

// begin starts a compilation; nil if none is requested, or one is running.
func (c *compiler) begin(s scope) *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.jobs[s]
	if j == nil || j.running || j.asked == j.served {
		return nil
	}
	j.running = true
	b := &batch{
		scope: s, asked: j.asked, numbered: map[groupKey]bool{}, handed: maps.Clone(j.handed), same: map[reconcile.Owner]bool{},
		before: j.services, tracked: map[attach.Key]tracked{},
	}
	for key, a := range c.attached {
		if a.scope == s {
			b.attached, b.tracked[key] = append(b.attached, a), a.tracked
		}
	}
	// The same objects result in the same problems, in the same order.
	slices.SortFunc(b.attached, func(x, y *attachment) int { return strings.Compare(x.rec.Key().String(), y.rec.Key().String()) })
	return b
}

// compile reads the objects from the cache, and compiles them. It holds no lock and waits for nothing.
func (b *batch) compile(ctx context.Context, c *compiler) {
	switch {
	case b.scope.host():
		b.made, b.err = compileHost(ctx, c.objects)
	case len(b.attached) == 0:
		b.made = fragments{b.scope.owner(): nil}
	default:
		w := world{scope: b.scope, node: c.node, number: func(key groupKey) uint32 {
			b.numbered[key] = true
			return c.groups.number(b.scope, key)
		}}
		for _, a := range b.attached {
			w.attached = append(w.attached, a.rec)
		}
		if b.err = read(ctx, c.objects, &w); b.err == nil {
			b.made, b.judge, b.err = w.compile()
			b.stale = append(untracked(&w, b.tracked), outdated(b.before, w.virtual, zonesOf(w.attached))...)
			b.services, b.tracked = w.virtual, w.tracked
		}
	}
	for owner, fragment := range b.made {
		before, had := b.handed[owner]
		b.same[owner] = had && maps.EqualFunc(before, fragment, openflow.Entry.Equal)
	}
}

// handOver hands over what was compiled, except what has been closed since, and ends the compilation. It returns what has to be reported.
func (c *compiler) handOver(ctx context.Context, b *batch) []refusal {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.jobs[b.scope]
	for _, a := range b.attached {
		if c.attached[a.rec.Key()] != a {
			delete(b.made, ownerOf(&a.rec))
		}
		a.tracked = b.tracked[a.rec.Key()]
	}
	j.running, j.served, j.err = false, b.asked, nil
	if b.made != nil {
		c.hand(b, j)
		if j.judge, j.services = b.judge, b.services; len(b.stale) > 0 && c.outdated != nil {
			c.outdated(b.stale)
		}
		c.groups.keep(b.scope, b.numbered)
	} else {
		j.err = b.err
	}
	close(j.done)
	j.done = make(chan struct{})
	refused := c.report(ctx, b, j)
	if j.err != nil || j.asked > j.served {
		c.wakeUp()
	} else if len(b.attached) == 0 && !b.scope.host() {
		delete(c.jobs, b.scope)
	}
	return refused
}

// hand hands over the fragments that differ from those of the last time, so that comparing them again takes no time under mu. The caller
// holds mu.
func (c *compiler) hand(b *batch, j *job) {
	changed, kept := fragments{}, fragments{}
	for owner, fragment := range b.made {
		if before, had := j.handed[owner]; had && b.same[owner] { // not closed since the comparison
			kept[owner] = before
			continue
		}
		changed[owner], kept[owner] = fragment, fragment
	}
	j.handed = kept
	if len(changed) > 0 {
		c.set(changed)
	}
}

// mostLogged limits a logged problem, in bytes. A tenant can cause one for each pod and policy.
const mostLogged = 4096

// bounded returns the text, cut at mostLogged.
func bounded(text string) string {
	if len(text) <= mostLogged {
		return text
	}
	return strings.ToValidUTF8(text[:mostLogged], "") + " (and more)"
}

// report logs what is invalid, once, and returns the problems for the policies' events.
func (c *compiler) report(ctx context.Context, b *batch, j *job) []refusal {
	problem := ""
	if b.err != nil {
		problem = bounded(b.err.Error())
	}
	if problem == j.logged || ctx.Err() != nil {
		return nil
	}
	j.logged = problem
	if b.err != nil {
		c.log.WarnContext(ctx, "flows of a Neutron network", "network", string(b.scope.owner()), "error", problem)
	}
	if b.judge == nil {
		return nil
	}
	return b.judge.refused
}

// reportRefused reports each policy once.
func (c *compiler) reportRefused(refused []refusal) {
	reported := map[*networkingv1.NetworkPolicy]bool{}
	for _, r := range refused {
		if c.warn != nil && !reported[r.policy] {
			reported[r.policy] = true
			c.warn(r.policy, r.err.Error())
		}
	}
}

func (c *compiler) anyFailed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if j.err != nil {
			return true
		}
	}
	return false
}

func (c *compiler) askFailed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, j := range c.jobs {
		if j.err != nil {
			c.ask(s)
		}
	}
}

// ask requests the compilation of a network, and returns its job. The caller holds mu.
func (c *compiler) ask(s scope) *job {
	j := c.jobs[s]
	if j == nil {
		j = &job{done: make(chan struct{})}
		c.jobs[s] = j
	}
	j.asked++
	c.wakeUp()
	return j
}

func (c *compiler) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// hostChanged requests the compilation of the Services that the host serves.
func (c *compiler) hostChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ask(scope{})
}

// namespaceChanged requests the compilation of the networks of a namespace that have pods on this node. policies reports that only policies
// depend on the change.
func (c *compiler) namespaceChanged(namespace string, policies bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, j := range c.jobs {
		// The last compilation had no policies, and nothing has changed since: the event of a new policy requests a compilation anyway.
		if s.namespace != namespace || s.host() || policies && j.judge == nil && j.err == nil && j.asked == j.served {
			continue
		}
		c.ask(s)
	}
}

// restore records an attachment of a former agent process and calls set, or returns false if it has been closed since.
func (c *compiler) restore(rec *attach.Record, s scope, set func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut[rec.Key()] {
		return false
	}
	c.attached[rec.Key()] = &attachment{rec: *rec, scope: s}
	c.ask(s)
	set()
	return true
}

// reopen allows a closed attachment to be opened again.
func (c *compiler) reopen(key attach.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.shut, key)
}

// errClosed is returned for an attachment that is closed while it is being opened.
var errClosed = errors.New("it was closed meanwhile")

// opening is an attachment whose flows are requested.
type opening struct {
	*attachment

	job   *job
	asked uint64
}

// admit records an attachment, and requests the compilation of its network with it.
func (c *compiler) admit(rec *attach.Record, s scope) opening {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &attachment{rec: *rec, scope: s}
	c.attached[rec.Key()] = a
	j := c.ask(s)
	return opening{a, j, j.asked}
}

// answer reports whether the flows of an opening are handed over, with the labels of its pod if its namespace has policies. compiled
// reports that at most the labels are missing, and again is closed when the answer may have changed.
func (c *compiler) answer(o *opening) (open, compiled bool, again <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	compiled = o.job.served >= o.asked
	switch {
	case c.attached[o.rec.Key()] != o.attachment:
		return false, compiled, nil, errClosed
	case compiled && o.job.err != nil:
		return false, compiled, nil, o.job.err
	}
	return compiled && (o.job.judge == nil || o.job.judge.knows(&o.rec)), compiled, o.job.done, nil
}

// open records an attachment, and returns once the flows of its network are handed over with it. It waits until the labels of the pod are
// known if its namespace has policies.
func (c *compiler) open(ctx context.Context, rec *attach.Record, s scope) error {
	waiting, cancel := context.WithTimeout(ctx, labelsPatience)
	defer cancel()
	o := c.admit(rec, s)
	for {
		open, compiled, done, err := c.answer(&o)
		if open || err != nil {
			return err
		}
		select {
		case <-done:
		case <-waiting.Done():
			if !compiled {
				return cni.Errorf(cni.CodeTryAgainLater, "flows of the pods in namespace %s are still being compiled: %w", s.namespace, waiting.Err())
			}
			return cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s (UID %s) has not been received from the API server: without its labels no NetworkPolicy can be applied: try again later",
				rec.PodNamespace, rec.PodName, rec.PodUID)
		}
	}
}

// close hands over that an attachment has no flows any more: no running compilation adds them again.
func (c *compiler) close(rec *attach.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut[rec.Key()] = true
	c.leave(rec.Key())
	c.set(fragments{ownerOf(rec): nil})
}

// leave deletes an attachment, whose flows have to be handed over again if it comes back. The caller holds mu.
func (c *compiler) leave(key attach.Key) {
	if a := c.attached[key]; a != nil {
		if j := c.jobs[a.scope]; j != nil {
			delete(j.handed, ownerOf(&a.rec))
		}
	}
	delete(c.attached, key)
}

// withdraw deletes removed attachments. Their networks are compiled without them.
func (c *compiler) withdraw(recs []attach.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range recs {
		c.leave(recs[i].Key())
		if d, err := ports.DetailsOf(&recs[i]); err == nil { // an unreadable one was never compiled
			c.ask(scopeOf(&recs[i], &d))
		}
	}
}

// removed deletes the records that attachments were closed.
func (c *compiler) removed(recs []attach.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range recs {
		delete(c.shut, recs[i].Key())
	}
}
