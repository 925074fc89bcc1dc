package overlay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/firewalls"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/ports"
	"weft.dev/weft/internal/overlay/settings"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// openPods are the attachments whose ports are open or being opened, the settings by which their flows are compiled, and these flows.
type openPods struct {
	engines   *Engines
	opts      *Options
	ports     *ports.Ports
	firewalls *firewalls.Firewalls
	egress    *egress.Addresses
	multicast *multicast.Feature

	// settings is nil until the first View is programmed. Until then no pod is attached. It is replaced only while mu is held.
	settings atomic.Pointer[settings.Settings]

	// mu guards live and policies. Fragments compiled from live are handed to the loops before mu is unlocked. So none is handed over after
	// the attachment has left live and its fragment is withdrawn. It is not held across a commit or other I/O.
	mu       sync.Mutex
	live     map[attach.Key]attach.Record
	policies *policies
}

// closes reports whether close was called, and handOver was not called since.
func (p *openPods) closes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.policies.closed
}

// follow makes s the network's settings. From here on ADDs use them, and policies are enforced if they say so. ADDs under way finish with
// the old settings, and then compile again.
func (p *openPods) follow(s *settings.Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings.Store(s)
	p.policies.enforcer.Enforce(s.Policies())
}

// followNodes programs policies for a changed set of nodes, when nothing else of the View changes.
func (p *openPods) followNodes(s *settings.Settings, remotes []clusternetwork.HostSubnet) {
	if !s.Policies() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.policies.enforcer.SetNodes(settings.NodesOf(&s.View.Local, remotes))
	p.policies.enforcer.Place(settings.PodRanges(remotes))
	p.policies.enforcer.Narrow(false)
	if p.policies.enforcer.HandOver() {
		p.policies.purges.Later()
	}
}

// report logs which attachments' ports stay closed.
func (p *openPods) report(closed map[attach.Key]error) {
	for key, why := range closed {
		p.opts.Log.Error("port of a pod stays closed", "attachment", key.String(), "error", why)
	}
}

// handOver hands over the fragments of all attachments without waiting. Their failures are those of the engine (Failure). It returns the
// attachments whose ports stay closed, with the reasons.
func (p *openPods) handOver(s *settings.Settings) map[attach.Key]error {
	closed := map[attach.Key]error{}
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := make(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row, len(p.live))
	// These go together with the pods' flows, which carry the numbers of their firewalls and say whether they are isolated. Without the rules
	// of policies, isolated pods would receive nothing.
	p.policies.closed = false
	flows := p.policies.adapt(s)
	maps.Copy(flows, p.egress.Regroup())
	maps.Copy(flows, p.firewalls.Adapt(s.FeatureView(p.live)))
	maps.Copy(flows, p.multicast.Adapt(p.multicast.View(&s.Pipeline), p.live))
	for key, rec := range p.live {
		if why := closure(s, &rec); why != nil {
			closed[key] = why
			p.reportClosed(&rec, why)
		}
		flows[owner(key)], rows[owner(key)] = p.policies.flows(s, &rec), p.ports.Preplugged.PodRows(&rec)
	}
	p.engines.Rows.Set(rows)
	p.engines.Flows.Set(flows)
	if p.settings.Load() != nil { // so that ADDs under way compile again: features may have changed what their flows depend on
		again := *s
		p.settings.Store(&again)
	}
	return closed
}

// closed returns the attachments whose ports are closed although they are attached, with the reasons.
func (p *openPods) closed() map[reconcile.Owner]error {
	s := p.settings.Load()
	if s == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	closed := map[reconcile.Owner]error{}
	for key, rec := range p.live {
		if why := closure(s, &rec); why != nil {
			closed[owner(key)] = why
		}
	}
	return closed
}

// closure returns why an attached pod's port is closed by settings, and how to open it; nil if it is not. A port that is closed because the
// pod is not known to the API server is not reported: no such pod exists there.
func closure(s *settings.Settings, rec *attach.Record) error {
	if err := s.Pipeline.CheckPod(settings.PodOf(rec)); err != nil {
		return fmt.Errorf("the port is closed, and the pod has no traffic: %w: delete the pod, or assign the node its former subnet again", err)
	}
	if rec.State != attach.Attached { // the ADD has the error
		return nil
	}
	if _, open := s.Pod(rec); !open {
		return fmt.Errorf("the port is closed, and the pod has no traffic: namespace %q has no VNID: the controller assigns one in the NetNamespace of that name; "+
			"delete that NetNamespace if it is not valid", rec.PodNamespace)
	}
	return nil
}

// reportClosed reports that an attached pod's port is closed. It is called with mu held, and does not block.
func (p *openPods) reportClosed(rec *attach.Record, why error) {
	if p.opts.Closed != nil {
		p.opts.Closed(*rec, why)
	}
}

// close withdraws the flows of all pods, and waits until they are gone. Until handOver, changes of features and policies open none.
func (p *openPods) close(ctx context.Context) error {
	p.mu.Lock()
	closed := make(map[reconcile.Owner]map[openflow.Key]openflow.Entry, len(p.live))
	for key := range p.live {
		closed[owner(key)] = nil
	}
	p.policies.closed = true
	p.engines.Flows.Set(closed)
	p.policies.enforcer.Hide(slices.Collect(maps.Keys(p.live))...)
	p.mu.Unlock()
	return named("closing pods before the mode changes", p.engines.Flows.Apply(ctx, closed))
}

// inherit adds the attachments that the former process has left open.
func (p *openPods) inherit(attached func() []attach.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rec := range attached() {
		p.live[rec.Key()] = rec
		p.policies.enforcer.Attach(&rec)
	}
}

// open adds an attachment to those that handOver compiles. The caller hands over the attachment's own fragments afterwards.
func (p *openPods) open(rec attach.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, live := p.live[rec.Key()]; !live {
		p.countPods(rec.PodNamespace, 1)
	}
	p.live[rec.Key()] = rec
	if rec.State == attach.Attached {
		p.ports.Ends.Made(&rec)
	}
	p.policies.enforcer.Attach(&rec)
	if s := p.settings.Load(); s != nil {
		if flows, _ := p.multicast.Place(p.multicast.View(&s.Pipeline), rec); len(flows) > 0 {
			p.engines.Flows.Set(flows)
		}
	}
}

// apply programs the flows of an attachment, in a mode without policies. It hands over nothing if s has been replaced: a View or a feature has
// handed over newer flows then, which those compiled from s must not replace.
func (p *openPods) apply(ctx context.Context, s *settings.Settings, rec *attach.Record) error {
	p.mu.Lock()
	if p.settings.Load() != s {
		p.mu.Unlock()
		return nil
	}
	wait := reconcile.Submit(p.engines.Flows, map[reconcile.Owner]map[openflow.Key]openflow.Entry{owner(rec.Key()): p.policies.flows(s, rec)})
	p.mu.Unlock()
	return wait(ctx)
}

// countPods adds to the number of a namespace's pods on this node; pods may be negative. The caller holds mu.
func (p *openPods) countPods(namespace string, pods int) {
	var config *pipeline.Config
	if s := p.settings.Load(); s != nil {
		config = &s.Pipeline
	}
	flows, changed := p.firewalls.Inhabit(config, namespace, pods)
	if len(flows) > 0 {
		p.engines.Flows.Set(flows)
	}
	if changed && p.opts.WithPods != nil {
		p.opts.WithPods()
	}
}

// shut removes attachments from those that handOver compiles. Fragments that are withdrawn afterwards stay withdrawn.
func (p *openPods) shut(keys ...attach.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		if rec, live := p.live[key]; live {
			delete(p.live, key)
			p.ports.Ends.Closed(key)
			p.policies.enforcer.Detach(&rec)
			p.countPods(rec.PodNamespace, -1)
		}
	}
	if s := p.settings.Load(); s != nil {
		if flows := p.multicast.Leave(p.multicast.View(&s.Pipeline), keys...); len(flows) > 0 {
			p.policies.purges.Later()
			p.engines.Flows.Set(flows)
		}
	}
	p.policies.enforcer.HandOver()
	p.policies.enforcer.Narrow(true)
	p.policies.purges.Wake()
}

// Each implements ports.Live.
func (p *openPods) Each(do func(rec *attach.Record)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rec := range p.live {
		do(&rec)
	}
}

// IsLive implements ports.Live.
func (p *openPods) IsLive(key attach.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.live[key]
	return ok
}

// change hands over the flows that compile returns, with those of the attachments that it returns (feature.Network).
func (p *openPods) change(compile func(v feature.View) (feature.Flows, []attach.Record)) []reconcile.Owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.settings.Load()
	if s == nil {
		return nil
	}
	// The settings are replaced by a copy, so that ADDs under way compile again. This comes after compile, which may change what pods' flows
	// depend on: an ADD that compiled before then finds other settings afterwards.
	again := *s
	flows, changed := compile(again.FeatureView(p.live))
	p.settings.Store(&again)
	for i := range changed {
		flows[owner(changed[i].Key())] = p.policies.flows(&again, &changed[i])
		if why := closure(&again, &changed[i]); why != nil {
			p.reportClosed(&changed[i], why)
		}
	}
	if len(flows) > 0 {
		p.engines.Flows.Set(flows)
	}
	return slices.Collect(maps.Keys(flows))
}
