package overlay

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
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

// newEnforcer returns the enforcer of policies. Its revocations purge the datapath: for policies, egress firewalls, and the ports closed
// for tunnels. An ADD purges nothing: it opens a new port, and the datapath has seen no packet of it.
func newEnforcer(n *Network) *enforcer.Enforcer {
	opts := enforcer.RevocationOptions{
		Lock: &n.opening, Caches: true, Log: n.opts.Log,
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
	n.purges = enforcer.NewRevocations(opts)
	return enforcer.New(enforcer.Options{
		Node: n.opts.Node, Lock: &n.opening, Revocations: n.purges, Families: enforcer.Families{IPv4: true},
		Problems: func(key policy.Key, problems []error) {
			if n.opts.PolicyProblems != nil {
				n.opts.PolicyProblems(key, problems)
			}
		},
	})
}

// UpdatePolicies programs a change of policies. Until the network is in the mode that isolates by NetworkPolicies, it only stores the
// change: all objects must be stored before the Update that brings the mode, because a pod is closed while its isolation is unknown. An
// Update that brings another mode discards all objects.
func (n *Network) UpdatePolicies(ctx context.Context, change PolicyChange) error {
	return n.enforcer.Update(ctx, change)
}

// PolicyProblems returns what policies that isolate pods of this node specify and this node does not enforce.
func (n *Network) PolicyProblems() map[policy.Key]error { return n.enforcer.Problems() }

// settled waits until the loop has tried what was handed over for the owners, and returns why any of it is not in effect.
func settled(ctx context.Context, flows *reconcile.Loop[openflow.Key, openflow.Entry], handed iter.Seq[reconcile.Owner]) error {
	err := flows.Apply(ctx, nil) // the next commit includes all that was handed over
	for o := range handed {
		err = errors.Join(err, flows.Failure(o))
	}
	return err
}

// ByPolicies reports whether the view's network isolates by NetworkPolicies. Then UpdatePolicies must have stored all objects first.
func (v *View) ByPolicies() bool { return v.Cluster.Mode == clusternetwork.ModeNetworkPolicy }

// Guarded reports whether namespaces may have egress firewalls in the view's network. Then Firewalls.Update must have stored all of them
// first.
func (v *View) Guarded() bool { return v.Cluster.Mode.HasVNIDs() }

// judges reports whether the switch decides which pods may send to which.
func (s *settings) judges() bool { return s.policies() || s.isolates() }

func (s *settings) policies() bool { return s.pipeline.Mode == pipeline.ModeNetworkPolicy }

// flowCompiler compiles policies to the switch's flows.
type flowCompiler struct {
	*pipeline.Conjunctions
	network *Network
}

var _ enforcer.Compiler = (*flowCompiler)(nil)

func (n *Network) flowCompiler(s *settings) *flowCompiler {
	return &flowCompiler{pipeline.NewConjunctions(s.view.Local.Subnet), n}
}

// Apply implements enforcer.Compiler.
func (c *flowCompiler) Apply(effect policy.Effect, index *policy.Index) {
	c.Conjunctions.Apply(effect, index)
}

// Commit implements enforcer.Compiler.
func (c *flowCompiler) Commit(_ *policy.Index, attachments []enforcer.Attachment, _ []attach.Record) []reconcile.Owner {
	s := c.network.settings.Load()
	fragments := c.Changed(&s.pipeline)
	for i := range attachments {
		fragments[owner(attachments[i].Key())] = c.network.podFlows(s, &attachments[i].Record)
	}
	if len(fragments) > 0 {
		c.network.engines.Flows.Set(fragments)
	}
	return slices.Collect(maps.Keys(fragments))
}

// conjunctions returns the compiled policies, nil if there are none. The caller holds opening.
func (n *Network) conjunctions() *pipeline.Conjunctions {
	if c, is := n.enforcer.Compiler().(*flowCompiler); is {
		return c.Conjunctions
	}
	return nil
}

// adaptPolicies compiles policies for new settings, and returns the fragments of all current and former owners. The caller holds opening.
func (n *Network) adaptPolicies(s *settings) map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	e, rules := n.enforcer, n.conjunctions()
	if rules != nil && (!s.policies() || rules.Subnet() != s.view.Local.Subnet) {
		e.Retire()
		fragments = rules.Changed(&s.pipeline)
		rules = nil
	}
	if !s.policies() {
		e.Forget()
		return fragments
	}
	if rules == nil { // only after a change of the subnet; else Compile has done it without the lock
		e.Recompile(n.flowCompiler(s), podRanges(s.view.Remotes))
	} else {
		e.Place(podRanges(s.view.Remotes))
	}
	e.SetNodes(nodesOf(&s.view.Local, s.view.Remotes))
	e.TracksSCTP(s.pipeline.SCTP)
	rules = n.conjunctions()
	rules.Refresh()
	maps.Copy(fragments, rules.Changed(&s.pipeline))
	return fragments
}

// follow makes s the network's settings. From here on ADDs use them, and policies are enforced if they say so. ADDs under way finish with
// the old settings, and then compile again.
func (n *Network) follow(s *settings) {
	n.opening.Lock()
	defer n.opening.Unlock()
	n.settings.Store(s)
	n.enforcer.Enforce(s.policies())
}

// podFlows returns the flows of an attachment; none while its pod's isolation is unknown. The caller holds opening.
func (n *Network) podFlows(s *settings, rec *attach.Record) map[openflow.Key]openflow.Entry {
	if !s.policies() {
		n.enforcer.Hide(rec.Key())
		return s.podFlows(rec)
	}
	decision := n.enforcer.Show(rec)
	if !decision.Known {
		return nil
	}
	p, open := s.pod(rec)
	if !open {
		return nil
	}
	p.Isolation = decision.Isolation
	return s.pipeline.Pod(p)
}

// inheritNothing flushes the connections of another pod that had the attachment's addresses before: packets of such a connection would
// count as replies. The port is not open yet, so no new connection is made meanwhile.
func (n *Network) inheritNothing(ctx context.Context, s *settings, rec *attach.Record) error {
	if !s.policies() || rec.State == attach.Attached { // an attached pod keeps its own connections
		return nil
	}
	var flushes []openflow.CTFlush
	for _, address := range rec.Addresses {
		flushes = append(flushes, pipeline.Services{Config: &s.pipeline}.FlushPod(address.Addr())...)
	}
	return named("flushing former connections of the address", n.engines.Connections.Flush(ctx, flushes))
}

// podRanges returns the pod subnets of other nodes, by the nodes' names.
func podRanges(remotes []clusternetwork.HostSubnet) map[string][]netip.Prefix {
	ranges := make(map[string][]netip.Prefix, len(remotes))
	for i := range remotes {
		if host := &remotes[i]; host.Subnet.IsValid() {
			ranges[host.Host] = append(ranges[host.Host], host.Subnet.Masked())
		}
	}
	for _, list := range ranges {
		slices.SortFunc(list, netip.Prefix.Compare)
	}
	return ranges
}

// programIsolated programs an attachment's flows once its pod's isolation is known, together with the rules that name its address.
func (n *Network) programIsolated(ctx context.Context, rec *attach.Record) error {
	if err := n.enforcer.Await(ctx, rec); err != nil {
		return err
	}
	if err := n.engines.Flows.Apply(ctx, nil); err != nil {
		return err
	}
	if err := n.engines.Flows.Failure(owner(rec.Key())); err != nil {
		return named("flows", err)
	}
	n.enforcer.ReportProblems()
	return nil
}
