package overlay

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline/conjunction"
	"weft.dev/weft/internal/overlay/settings"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/reconcile"
)

// PolicyChange is a change of the objects that NetworkPolicies depend on.
type PolicyChange = enforcer.Change

// PolicyPod is a pod as policies see it.
type PolicyPod = enforcer.Pod

// Datapath is the datapath of the switch.
type Datapath interface {
	// Purge removes the datapath's flows, so that the switch processes the next packet of each again. Connections stay tracked.
	Purge(ctx context.Context) error
}

// DefaultPurgeRest is how long a purge may wait that is not due at once. After a purge, the switch processes the next packet of everything
// that it forwards. Once a second, that costs nothing compared with its own dumps of the datapath, which are as frequent.
const DefaultPurgeRest = time.Second

// policies are the NetworkPolicies as they apply to the pods of this node. The lock of openPods guards them.
type policies struct {
	engines  *Engines
	settings *atomic.Pointer[settings.Settings]
	// enforcer compiles NetworkPolicies for the pods of this node; purges purges the datapath.
	enforcer *enforcer.Enforcer
	purges   *enforcer.Revocations
	// closed says that all pods are closed while the network changes from one isolating mode to another.
	closed bool
}

// newPolicies returns the policies of a network. Their revocations purge the datapath: for policies, egress firewalls, and the ports closed
// for tunnels. An ADD purges nothing: it opens a new port, and the datapath has seen no packet of it.
func newPolicies(n *Network, pods *openPods) *policies {
	p := &policies{engines: &n.engines, settings: &pods.settings}
	opts := enforcer.RevocationOptions{
		Lock: &pods.mu, Caches: true, Log: n.opts.Log,
		Rest: func() time.Duration { return n.opts.PurgeRest },
		Settled: func(ctx context.Context, owners []reconcile.Owner) error {
			return settled(ctx, n.engines.Flows, slices.Values(owners))
		},
		Revoke: func(ctx context.Context) error {
			if n.engines.Datapath == nil {
				return nil
			}
			return named("the datapath's flows", n.engines.Datapath.Purge(ctx))
		},
	}
	p.purges = enforcer.NewRevocations(opts)
	p.enforcer = enforcer.New(enforcer.Options{
		Node: n.opts.Node, Lock: &pods.mu, Revocations: p.purges, Families: enforcer.Families{IPv4: true},
		Problems: func(key policy.Key, problems []error) {
			if n.opts.PolicyProblems != nil {
				n.opts.PolicyProblems(key, problems)
			}
		},
	})
	return p
}

// compile compiles all policies for settings, without the lock as far as possible: before openPods adapts its flows to them.
func (p *policies) compile(s *settings.Settings) {
	if s.Policies() {
		p.enforcer.Compile(p.compiler(s), settings.PodRanges(s.View.Remotes))
	}
}

// UpdatePolicies programs a change of policies. Until the network is in the mode that isolates by NetworkPolicies, it only stores the
// change: all objects must be stored before the Update that brings the mode, because a pod is closed while its isolation is unknown. An
// Update that brings another mode discards all objects.
func (n *Network) UpdatePolicies(ctx context.Context, change PolicyChange) error {
	return n.pods.policies.enforcer.Update(ctx, change)
}

// PolicyProblems returns what policies that isolate pods of this node specify and this node does not enforce.
func (n *Network) PolicyProblems() map[policy.Key]error { return n.pods.policies.enforcer.Problems() }

// settled waits until the loop has tried what was handed over for the owners, and returns why any of it is not in effect.
func settled(ctx context.Context, flows *reconcile.Loop[openflow.Key, openflow.Entry], handed iter.Seq[reconcile.Owner]) error {
	err := flows.Apply(ctx, nil) // the next commit includes all that was handed over
	for o := range handed {
		err = errors.Join(err, flows.Failure(o))
	}
	return err
}

// flowCompiler compiles policies to the switch's flows.
type flowCompiler struct {
	*conjunction.Compiler
	policies *policies
}

var _ enforcer.Compiler = (*flowCompiler)(nil)

func (p *policies) compiler(s *settings.Settings) *flowCompiler {
	return &flowCompiler{conjunction.New(s.View.Local.Subnet), p}
}

// Apply implements enforcer.Compiler.
func (c *flowCompiler) Apply(effect policy.Effect, index *policy.Index) {
	c.Compiler.Apply(effect, index)
}

// Commit implements enforcer.Compiler.
func (c *flowCompiler) Commit(_ *policy.Index, attachments []enforcer.Attachment, _ []attach.Record, _ bool) []reconcile.Owner {
	s := c.policies.settings.Load()
	fragments := c.Changed()
	for i := range attachments {
		fragments[owner(attachments[i].Key())] = c.policies.flows(s, &attachments[i].Record)
	}
	if len(fragments) > 0 {
		c.policies.engines.Flows.Set(fragments)
	}
	return slices.Collect(maps.Keys(fragments))
}

// conjunctions returns the compiled policies, nil if there are none. The caller holds the lock of openPods.
func (p *policies) conjunctions() *conjunction.Compiler {
	if c, is := p.enforcer.Compiler().(*flowCompiler); is {
		return c.Compiler
	}
	return nil
}

// adapt compiles policies for new settings, and returns the fragments of all current and former owners. The caller holds the lock of openPods.
func (p *policies) adapt(s *settings.Settings) map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	e, rules := p.enforcer, p.conjunctions()
	if rules != nil && (!s.Policies() || rules.Subnet() != s.View.Local.Subnet) {
		e.Retire()
		fragments = rules.Changed()
		rules = nil
	}
	if !s.Policies() {
		e.Forget()
		return fragments
	}
	if rules == nil { // only after a change of the subnet; else Compile has done it without the lock
		e.Recompile(p.compiler(s), settings.PodRanges(s.View.Remotes))
	} else {
		e.Place(settings.PodRanges(s.View.Remotes))
	}
	e.SetNodes(settings.NodesOf(&s.View.Local, s.View.Remotes))
	e.TracksSCTP(s.Pipeline.SCTP)
	rules = p.conjunctions()
	rules.Refresh()
	maps.Copy(fragments, rules.Changed())
	return fragments
}

// flows returns the flows of an attachment; none while its pod's isolation is unknown, or pods are closed. The caller holds the lock of openPods.
func (p *policies) flows(s *settings.Settings, rec *attach.Record) map[openflow.Key]openflow.Entry {
	if p.closed {
		p.enforcer.Hide(rec.Key())
		return nil
	}
	if !s.Policies() {
		p.enforcer.Hide(rec.Key())
		return s.PodFlows(rec)
	}
	decision := p.enforcer.Show(rec)
	if !decision.Known {
		return nil
	}
	port, open := s.Pod(rec)
	if !open {
		return nil
	}
	port.Isolation = decision.Isolation
	return s.Pipeline.Pod(port)
}

// await programs an attachment's flows once its pod's isolation is known, together with the rules that name its address.
func (p *policies) await(ctx context.Context, rec *attach.Record) error {
	if err := p.enforcer.Await(ctx, rec); err != nil {
		return err
	}
	if err := p.engines.Flows.Apply(ctx, nil); err != nil {
		return err
	}
	if err := p.engines.Flows.Failure(owner(rec.Key())); err != nil {
		return named("flows", err)
	}
	p.enforcer.ReportProblems()
	return nil
}
