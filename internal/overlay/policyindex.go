package overlay

import (
	"maps"
	"slices"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// What changes with one object is indexed and compiled at once, while ADDs and DELs wait on Network.opening. All objects at once, when
// the mode that isolates by policies is about to come, are in large clusters the work of seconds: they are indexed beside
// (indexAll), and so are rules compiled (compileRules), with Network.indexing held, and opening only to take them over.

// index brings what is compiled in step with a change, hands over what differs, and returns whose flows may not be in effect yet.
func (n *Network) index(change PolicyChange) []reconcile.Owner {
	n.indexing.Lock()
	defer n.indexing.Unlock()
	beside := n.indexAll(change)
	n.opening.Lock()
	defer n.opening.Unlock()
	if beside != nil {
		n.policies.takeOver(beside)
	} else {
		n.policies.update(change)
	}
	n.policies.later = n.handOver() || n.policies.later
	return slices.Collect(maps.Keys(n.policies.handed))
}

// indexAll returns what all objects come to, if a change tells of all and nothing is isolated by what was told before; else nil. The
// caller holds indexing.
func (n *Network) indexAll(change PolicyChange) *policies {
	n.opening.Lock()
	compiled := n.policies.rules != nil
	n.opening.Unlock()
	if !change.Reset || compiled {
		return nil
	}
	beside := newPolicies(n.policies.node)
	beside.update(change)
	return &beside
}

// takeOver takes over what was indexed beside. The attachments are fed again; nodes are not known before rules are compiled.
func (x *policies) takeOver(beside *policies) {
	x.index, x.pods, x.byNode, x.objects, x.doubts = beside.index, beside.pods, beside.byNode, beside.objects, beside.doubts
	x.feedAttached()
	close(x.told)
	x.told = make(chan struct{})
}

// feedAttached tells the index of the pods that this node has addresses for, or of which it is not known whether it has.
func (x *policies) feedAttached() {
	for key := range x.attached {
		x.stale[key] = struct{}{}
		x.feed(key)
	}
}

// compile compiles the rules for a view. The index gets the pods' addresses first: which of them count depends on the HostSubnets.
func (x *policies) compile(view *View) {
	x.ranges = podRanges(view.Remotes)
	for _, key := range slices.SortedFunc(maps.Keys(x.pods), compareKeys) {
		x.feed(key)
	}
	x.rules = pipeline.NewConjunctions(view.Local.Subnet)
	// In order, so that conjunctions get the same ids in each life.
	x.rules.Apply(policy.Effect{Policies: slices.SortedFunc(maps.Keys(x.objects), compareKeys)}, x.index)
}

// compileRules compiles the rules for settings that are about to come, unless they are compiled, or not asked for. Meanwhile
// nobody knows how a pod is isolated, and of the network that there is, nobody asks.
func (n *Network) compileRules(s *settings) {
	if !s.policies() {
		return
	}
	n.indexing.Lock()
	defer n.indexing.Unlock()
	x := &n.policies
	n.opening.Lock()
	if x.rules != nil {
		n.opening.Unlock()
		return
	}
	x.lent = true
	beside := newPolicies(x.node)
	beside.index, beside.pods, beside.objects = x.index, x.pods, x.objects
	for key, records := range x.attached {
		beside.attached[key] = maps.Clone(records)
	}
	n.opening.Unlock()
	beside.compile(&s.view)
	n.opening.Lock()
	defer n.opening.Unlock()
	x.lent, x.rules, x.ranges = false, beside.rules, beside.ranges
	for key := range beside.attached { // of those that went meanwhile, the index knows addresses
		if _, still := x.attached[key]; !still {
			x.feed(key)
		}
	}
	x.feedAttached()
}
