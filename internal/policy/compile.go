package policy

import "reflect"

// SetPolicy adds or replaces a policy.
func (x *Index) SetPolicy(policy Policy) Effect {
	old := x.policies.bound[policy.Key]
	if old != nil && reflect.DeepEqual(old.policy, policy) {
		return Effect{}
	}
	return x.movePolicy(policy.Key, old, &policy)
}

// DeletePolicy deletes a policy.
func (x *Index) DeletePolicy(policy Key) Effect {
	old, ok := x.policies.bound[policy]
	if !ok {
		return Effect{}
	}
	return x.movePolicy(policy, old, nil)
}

func (x *Index) movePolicy(key Key, old *bound, policy *Policy) Effect {
	space := x.cluster.space(key.Namespace)
	c := x.begin()
	c.policies[key] = struct{}{}
	before := map[Key]Isolation{}
	if old == nil || policy == nil || !isolatesAlike(&old.policy, policy) {
		if old != nil {
			x.observe(space, old.subjects, &old.policy, 1, before)
		}
		if policy != nil {
			x.observe(space, x.sets.byName[setName(scopeKey{oneNamespace, key.Namespace}, policy.Pods, nil)], policy, 0, before)
		}
	}
	// Bind the new policy before releasing the old one, so that sets of both remain.
	if policy != nil {
		x.policies.bound[key] = x.policies.bind(policy)
	} else {
		delete(x.policies.bound, key)
	}
	if old != nil {
		x.policies.release(old)
	}
	for pod, was := range before {
		if x.cluster.groups[pod].isolation() != was {
			c.pods[pod] = struct{}{}
		}
	}
	x.cluster.tidy(space)
	return c.effect()
}

// isolatesAlike reports whether two policies of one namespace isolate the same pods in the same directions, and treat established
// connections in the same way.
func isolatesAlike(a, b *Policy) bool {
	for d := range a.Sides {
		if a.Sides[d].Isolates != b.Sides[d].Isolates {
			return false
		}
	}
	return a.Pods.text == b.Pods.text && a.Keeps == b.Keeps
}

// observe records the isolation of the pods that a policy selects, if the policy may change their isolation: that is the case if at most
// others policies isolate the same set, or if some policies keep connections.
func (x *Index) observe(space *space, subjects *set, p *Policy, others int, before map[Key]Isolation) {
	alone := false
	for d := range p.Sides {
		if p.Sides[d].Isolates && (subjects == nil || p.Keeps || subjects.keeps[d] > 0 || subjects.isolates[d] <= others) {
			alone = true
		}
	}
	if !alone {
		return
	}
	space.find.match(p.Pods, func(g *group) {
		now, known := Isolation{}, false
		for pod := range g.pods {
			if !x.concerns(pod) {
				continue
			}
			if !known {
				now, known = g.isolation(), true
			}
			before[pod.Key] = now
		}
	})
}

// Rules returns the rules of a policy in its order; none if there is no such policy. It leaves out rules that can match no packet.
func (x *Index) Rules(policy Key) []Rule {
	b, ok := x.policies.bound[policy]
	if !ok {
		return nil
	}
	var list []Rule
	for d := range b.allows {
		for i := range b.allows[d] {
			list = append(list, b.allows[d][i].rules(b, Direction(d), i)...)
		}
	}
	return list
}
