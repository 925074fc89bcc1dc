package nftables

import (
	"maps"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/reconcile"
)

// OwnerStatic owns the items of [Static], and OwnerGates those of [Gates].
const (
	OwnerStatic = reconcile.Owner("policies")
	OwnerGates  = reconcile.Owner("policies/gates")
)

// Table is the loop that keeps the table: a *reconcile.Loop[nftnl.Key, nftnl.Item].
type Table interface {
	Set(fragments map[reconcile.Owner]map[nftnl.Key]nftnl.Item)
}

// Compiler compiles policies for an enforcer.Enforcer with Options.PerPolicy. It keeps fragments for the policies that isolate a pod of
// the node, and for the sets that their rules name. Other policies cost nothing.
type Compiler struct {
	table    Table
	config   Config
	pods     map[attach.Key][]policy.Key
	policies map[policy.Key]*used
	sets     map[policy.SetName]int

	// held are the attachments whose pods are isolated or not known, with those of closed attachments until Left. gated says that the table has
	// the items of Gates.
	held  map[attach.Key]struct{}
	gated bool

	// begun says that the table has the items that depend on no policy, and revoking that its chains judge the packets of established
	// connections.
	begun, revoking bool

	dirtyPolicies map[policy.Key]struct{}
	dirtySets     map[policy.SetName]struct{}
	narrowed      bool
}

// used is a policy that isolates pods of the node: the number of attachments, and the sets that its rules name.
type used struct {
	by   int
	sets []policy.SetName
}

var _ enforcer.Compiler = (*Compiler)(nil)

// NewCompiler returns a Compiler. Its first Commit also sets the items of [Static].
func NewCompiler(table Table, config Config) *Compiler {
	return &Compiler{
		table: table, config: config, pods: map[attach.Key][]policy.Key{}, policies: map[policy.Key]*used{}, sets: map[policy.SetName]int{},
		held: map[attach.Key]struct{}{}, dirtyPolicies: map[policy.Key]struct{}{}, dirtySets: map[policy.SetName]struct{}{},
	}
}

// Hold makes a pod that the enforcer does not know Held until Left.
func (c *Compiler) Hold(key attach.Key) { c.held[key] = struct{}{} }

// Left notes attachments that no packet reaches any more. Until then, one that was isolated when it was closed is Held.
func (c *Compiler) Left(keys ...attach.Key) {
	for _, key := range keys {
		delete(c.held, key)
	}
}

// Held reports whether a pod of the node is isolated or not known, and Gated whether the table has the items of [Gates]: from the Commit of the
// first such pod until Ungate.
func (c *Compiler) Held() bool { return len(c.held) > 0 }

// Holds reports whether an attachment is one of those that Held is about.
func (c *Compiler) Holds(key attach.Key) bool {
	_, is := c.held[key]
	return is
}

// Gated is described at Held.
func (c *Compiler) Gated() bool { return c.gated }

// Ungate removes the items of [Gates], unless a pod is Held. A table with the items of [Guard] must not be in effect any more.
func (c *Compiler) Ungate() {
	if c.gated && !c.Held() {
		c.gated = false
		c.table.Set(map[reconcile.Owner]Items{OwnerGates: nil})
	}
}

// Apply implements enforcer.Compiler.
func (c *Compiler) Apply(effect policy.Effect, index *policy.Index) {
	for _, key := range effect.Policies {
		if _, is := c.policies[key]; is {
			c.dirtyPolicies[key] = struct{}{}
			// The rules are not compared: another pass over conntrack is cheaper. What a deleted policy allowed is missing where a pod
			// stays isolated, which the decision about that pod says.
			c.narrowed = c.narrowed || index.HasPolicy(key)
		}
	}
	for i := range effect.Sets {
		if name := effect.Sets[i].Set; c.sets[name] > 0 {
			c.dirtySets[name] = struct{}{}
			c.narrowed = c.narrowed || len(effect.Sets[i].Removed) > 0
		}
	}
}

// Narrowed implements enforcer.Compiler.
func (c *Compiler) Narrowed() bool {
	narrowed := c.narrowed
	c.narrowed = false
	return narrowed
}

// Clear implements enforcer.Compiler: the next Commit compiles everything from the index again.
func (c *Compiler) Clear() {
	for key := range c.policies {
		c.dirtyPolicies[key] = struct{}{}
	}
	for name := range c.sets {
		c.dirtySets[name] = struct{}{}
	}
	c.narrowed = true
}

// Commit implements enforcer.Compiler. The pass over conntrack that ends what is revoked takes the longer, the larger the kernel's table is.
// Until it has ended, the chains judge the packets of established connections.
func (c *Compiler) Commit(index *policy.Index, open []enforcer.Attachment, closed []attach.Record, revoking bool) []reconcile.Owner {
	fragments := map[reconcile.Owner]Items{}
	for i := range closed {
		key := closed[i].Key()
		fragments[podOwner(key)] = nil
		c.use(key, nil)
	}
	for i := range open {
		rec := &open[i].Record
		var policies []policy.Key
		var items Items
		c.held[rec.Key()] = struct{}{}
		if open[i].Known {
			key := enforcer.PodOf(rec)
			policies, items = index.Policies(key), Pod(index, key, rec.Addrs())
			if isolation, known := index.Isolation(key); known && !isolation.Ingress && !isolation.Egress {
				delete(c.held, rec.Key())
			}
		}
		fragments[podOwner(rec.Key())] = items
		c.use(rec.Key(), policies)
	}
	if c.Held() && !c.gated {
		c.gated = true
		fragments[OwnerGates] = Gates(c.config)
	}
	for key := range c.dirtyPolicies {
		fragments[policyOwner(key)] = c.compilePolicy(index, key)
	}
	for name := range c.dirtySets {
		fragments[setOwner(name)] = nil
		if c.sets[name] > 0 {
			fragments[setOwner(name)] = Set(name, index.Addresses(name))
		}
	}
	clear(c.dirtyPolicies)
	clear(c.dirtySets)
	owners := slices.Collect(maps.Keys(fragments)) // without OwnerStatic: what is revoked does not depend on it
	if begin := revoking && len(fragments) > 0 && !c.revoking; begin || !c.begun {
		c.begun, c.revoking = true, c.revoking || begin
		fragments[OwnerStatic] = compileStatic(c.config, c.revoking)
	}
	if len(fragments) > 0 {
		c.table.Set(fragments)
	}
	return owners
}

// Settle ends that the chains judge the packets of established connections: those that were revoked are removed.
func (c *Compiler) Settle() {
	if c.revoking {
		c.revoking = false
		c.table.Set(map[reconcile.Owner]Items{OwnerStatic: Static(c.config)})
	}
}

// use records the policies that isolate the pod of an attachment.
func (c *Compiler) use(key attach.Key, policies []policy.Key) {
	for _, p := range policies {
		if c.policies[p] == nil {
			c.policies[p] = &used{}
			c.dirtyPolicies[p] = struct{}{}
		}
		c.policies[p].by++
	}
	for _, p := range c.pods[key] {
		if c.policies[p].by--; c.policies[p].by == 0 {
			c.dirtyPolicies[p] = struct{}{}
		}
	}
	delete(c.pods, key)
	if len(policies) > 0 {
		c.pods[key] = policies
	}
}

// compilePolicy returns the fragment of a policy, nil if it isolates no pod of the node any more.
func (c *Compiler) compilePolicy(index *policy.Index, key policy.Key) Items {
	u := c.policies[key]
	if u == nil {
		return nil
	}
	was := u.sets
	var items Items
	u.sets = nil
	if u.by > 0 {
		rules := index.Rules(key)
		items, u.sets = Policy(key, rules), Sets(rules)
	} else {
		delete(c.policies, key)
	}
	for _, name := range u.sets {
		if c.sets[name]++; c.sets[name] == 1 {
			c.dirtySets[name] = struct{}{}
		}
	}
	for _, name := range was {
		if c.sets[name]--; c.sets[name] == 0 {
			delete(c.sets, name)
			c.dirtySets[name] = struct{}{}
		}
	}
	return items
}

func podOwner(key attach.Key) reconcile.Owner { return reconcile.Owner(key.Owner()) }

func policyOwner(key policy.Key) reconcile.Owner {
	return (&policy.Policy{Key: key}).Owner()
}

func setOwner(name policy.SetName) reconcile.Owner {
	return reconcile.Owner("policyset/" + string(name))
}
