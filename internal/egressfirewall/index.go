package egressfirewall

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Index holds everything that firewalls depend on, and reports the effect of changes. It is not safe for concurrent use.
type Index struct {
	policies map[string]map[string]Policy // by namespace and name
	vnids    map[string]uint32
	members  map[uint32]map[string]struct{}
	// answers has the addresses of the names for which they are known; users has the namespaces with policies that contain a name.
	answers map[string][]netip.Addr
	users   map[string]map[string]struct{}
	// stale has the namespaces whose firewall may differ from the one returned last; reported has the firewalls returned last.
	stale    map[string]struct{}
	reported map[string]*Firewall
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		policies: map[string]map[string]Policy{}, vnids: map[string]uint32{}, members: map[uint32]map[string]struct{}{},
		answers: map[string][]netip.Addr{}, users: map[string]map[string]struct{}{},
		stale: map[string]struct{}{}, reported: map[string]*Firewall{},
	}
}

// SetPolicy adds a policy, or replaces it.
func (x *Index) SetPolicy(p Policy) {
	if x.policies[p.Namespace] == nil {
		x.policies[p.Namespace] = map[string]Policy{}
	}
	x.unuse(p.Key)
	x.policies[p.Namespace][p.Name] = p
	for _, rule := range p.Rules {
		if rule.Name != "" {
			if x.users[rule.Name] == nil {
				x.users[rule.Name] = map[string]struct{}{}
			}
			x.users[rule.Name][p.Namespace] = struct{}{}
		}
	}
	x.touch(p.Namespace)
}

// DeletePolicy removes a policy. A policy that does not exist is no error.
func (x *Index) DeletePolicy(key Key) {
	x.unuse(key)
	delete(x.policies[key.Namespace], key.Name)
	if len(x.policies[key.Namespace]) == 0 {
		delete(x.policies, key.Namespace)
	}
	x.touch(key.Namespace)
}

// unuse removes a policy's use of its names, except those that other policies of its namespace use.
func (x *Index) unuse(key Key) {
	gone := map[string]struct{}{}
	for _, rule := range x.policies[key.Namespace][key.Name].Rules {
		if rule.Name != "" {
			gone[rule.Name] = struct{}{}
		}
	}
	for name, other := range x.policies[key.Namespace] {
		if name != key.Name {
			for _, rule := range other.Rules {
				delete(gone, rule.Name)
			}
		}
	}
	for name := range gone {
		delete(x.users[name], key.Namespace)
		if len(x.users[name]) == 0 {
			delete(x.users, name)
		}
	}
}

// SetVNID sets the VNID of a namespace.
func (x *Index) SetVNID(namespace string, vnid uint32) {
	if was, had := x.vnids[namespace]; had && was == vnid {
		return
	}
	x.DeleteVNID(namespace)
	x.vnids[namespace] = vnid
	if x.members[vnid] == nil {
		x.members[vnid] = map[string]struct{}{}
	}
	x.members[vnid][namespace] = struct{}{}
	x.touch(namespace)
}

// DeleteVNID removes the VNID of a namespace.
func (x *Index) DeleteVNID(namespace string) {
	vnid, had := x.vnids[namespace]
	if !had {
		return
	}
	x.touch(namespace)
	delete(x.vnids, namespace)
	delete(x.members[vnid], namespace)
	if len(x.members[vnid]) == 0 {
		delete(x.members, vnid)
	}
}

// SetAddresses sets the addresses of a name.
func (x *Index) SetAddresses(name string, addrs []netip.Addr) {
	if was, known := x.answers[name]; known && slices.Equal(was, addrs) {
		return
	}
	x.answers[name] = addrs
	x.touchUsers(name)
}

// ForgetName makes the addresses of a name unknown.
func (x *Index) ForgetName(name string) {
	if _, known := x.answers[name]; known {
		delete(x.answers, name)
		x.touchUsers(name)
	}
}

func (x *Index) touchUsers(name string) {
	for namespace := range x.users[name] {
		x.stale[namespace] = struct{}{}
	}
}

// touch notes that the firewalls of a namespace, and of those that share its VNID, may have changed.
func (x *Index) touch(namespace string) {
	x.stale[namespace] = struct{}{}
	if vnid, has := x.vnids[namespace]; has && vnid != 0 {
		for member := range x.members[vnid] {
			x.stale[member] = struct{}{}
		}
	}
}

// Changed returns the namespaces whose firewalls have changed since the last call; nil means none.
func (x *Index) Changed() map[string]*Firewall {
	changed := map[string]*Firewall{}
	for namespace := range x.stale {
		now := x.judge(namespace)
		if now.Equal(x.reported[namespace]) {
			continue
		}
		changed[namespace] = now
		if now == nil {
			delete(x.reported, namespace)
		} else {
			x.reported[namespace] = now
		}
	}
	x.stale = map[string]struct{}{}
	return changed
}

// Firewall returns a namespace's firewall as of the last call of Changed; nil means none.
func (x *Index) Firewall(namespace string) *Firewall { return x.reported[namespace] }

// All returns all firewalls. Changed does not report them again.
func (x *Index) All() map[string]*Firewall {
	x.Changed()
	return maps.Clone(x.reported)
}

// Names returns the names in the policies of the given namespaces, without duplicates: the first of each namespace, then the second of
// each, and so on. So no namespace has to wait for all names of another one.
func (x *Index) Names(namespaces map[string]struct{}) []string {
	var lists [][]string
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		names := map[string]struct{}{}
		for _, p := range x.policies[namespace] {
			for _, rule := range p.Rules {
				if rule.Name != "" {
					names[rule.Name] = struct{}{}
				}
			}
		}
		lists = append(lists, slices.Sorted(maps.Keys(names)))
	}
	var all []string
	seen := map[string]struct{}{}
	for i, more := 0, true; more; i++ {
		more = false
		for _, list := range lists {
			if i >= len(list) {
				continue
			}
			more = true
			if _, again := seen[list[i]]; !again {
				seen[list[i]] = struct{}{}
				all = append(all, list[i])
			}
		}
	}
	return all
}

// Users returns the policies that contain a name, sorted.
func (x *Index) Users(name string) []Key {
	var keys []Key
	for namespace := range x.users[name] {
		for _, p := range x.policies[namespace] {
			if slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Name == name }) {
				keys = append(keys, p.Key)
			}
		}
	}
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

// Policies returns the policies of a namespace that have rules or an error, sorted.
func (x *Index) Policies(namespace string) []Key {
	var keys []Key
	for _, p := range x.effective(namespace) {
		keys = append(keys, p.Key)
	}
	return keys
}

// effective returns a namespace's policies that have rules or an error, sorted by name. A policy without rules has no effect.
func (x *Index) effective(namespace string) []Policy {
	var list []Policy
	for _, name := range slices.Sorted(maps.Keys(x.policies[namespace])) {
		if p := x.policies[namespace][name]; len(p.Rules) > 0 || p.Err != nil {
			list = append(list, p)
		}
	}
	return list
}

// Validity says whether a policy is in effect, and if not, why.
type Validity uint8

// The standings of a policy. All but InEffect and Global close the namespace.
const (
	// InEffect: it decides about the namespace's traffic out of the cluster.
	InEffect Validity = iota
	// Global: its namespace has VNID 0, where policies have no effect.
	Global
	// SharesVNID: other namespaces have the same VNID as its namespace.
	SharesVNID
	// OneOfSeveral: its namespace has several policies.
	OneOfSeveral
	// Unusable: it has an error.
	Unusable
)

// Validity returns the standing of an existing policy, and a text that explains it; "" for InEffect.
func (x *Index) Validity(key Key) (Validity, string) {
	own := x.policies[key.Namespace][key.Name]
	list := x.effective(key.Namespace)
	if len(own.Rules) == 0 {
		list = nil // it has no rules, so other policies do not matter to it
	}
	validity, why := x.validity(key.Namespace, list)
	if own.Err != nil && validity != Global {
		return Unusable, own.Err.Error()
	}
	return validity, why
}

// validity returns the standing of a namespace's policies.
func (x *Index) validity(namespace string, list []Policy) (Validity, string) {
	vnid, has := x.vnids[namespace]
	switch {
	case has && vnid == 0:
		return Global, fmt.Sprintf("namespace %s has VNID 0: it is global, and EgressNetworkPolicies have no effect there", namespace)
	case has && len(x.members[vnid]) > 1 && x.anyOf(vnid):
		return SharesVNID, SharedVNID(vnid)
	case len(list) > 1:
		return OneOfSeveral, Several(len(list))
	case len(list) == 1 && list[0].Err != nil:
		return Unusable, fmt.Sprintf("EgressNetworkPolicy %s cannot be used: %v", list[0].Key, list[0].Err)
	}
	return InEffect, ""
}

// judge returns a namespace's firewall, nil for none.
func (x *Index) judge(namespace string) *Firewall {
	list := x.effective(namespace)
	switch validity, why := x.validity(namespace, list); {
	case validity == Global:
		return nil
	case validity != InEffect:
		return &Firewall{Closed: why}
	case len(list) == 0:
		return nil
	}
	compiled := Compile(list[0].Rules, func(name string) ([]netip.Addr, bool) {
		addrs, known := x.answers[name]
		return addrs, known
	})
	return &compiled
}

// anyOf reports whether a namespace with the VNID has a policy with rules or an error.
func (x *Index) anyOf(vnid uint32) bool {
	for member := range x.members[vnid] {
		if len(x.effective(member)) > 0 {
			return true
		}
	}
	return false
}

// SharedVNID returns the text why namespaces that share a VNID are closed.
func SharedVNID(vnid uint32) string {
	return fmt.Sprintf("several namespaces have the VNID %d, and at least one of them an EgressNetworkPolicy: nothing leaves them", vnid)
}

// Several returns the text why a namespace with several policies is closed.
func Several(number int) string {
	return fmt.Sprintf("the namespace has %d EgressNetworkPolicies: nothing leaves it; put all rules into one", number)
}
