package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// change finds the effect of a change of the index on sets. It compares the addresses and pods that may be affected, before and after.
type change struct {
	cluster  *cluster
	sets     *sets
	views    map[view]*touched
	policies map[Key]struct{}
	pods     map[Key]struct{}
}

// touched are the addresses and pods of a view that may change. The value is whether the view had them before.
type touched struct {
	addresses map[netip.Addr]bool
	pods      map[Key]bool
}

func (x *Index) begin() *change {
	return &change{cluster: x.cluster, sets: x.sets, views: map[view]*touched{}, policies: map[Key]struct{}{}, pods: map[Key]struct{}{}}
}

// touch notes that a change may add this pod to a set or remove it.
func (c *change) touch(s *set, p *Pod) {
	if p == nil {
		return
	}
	if s.plain > 0 {
		c.note(view{set: s}, p)
	}
	for port := range s.splits {
		for _, number := range port.numbers(p) {
			c.note(view{s, port, number}, p)
		}
	}
}

func (c *change) note(v view, p *Pod) {
	t := c.views[v]
	if t == nil {
		t = &touched{map[netip.Addr]bool{}, map[Key]bool{}}
		c.views[v] = t
	}
	for _, ip := range p.Addresses {
		t.addresses[ip] = false
	}
	t.pods[p.Key] = false
}

// before records the noted addresses and pods before the change. Views that do not exist yet get no delta.
func (c *change) before() {
	for v, t := range c.views {
		if _, there := c.sets.views[v.name()]; !there {
			delete(c.views, v)
			continue
		}
		for ip := range t.addresses {
			t.addresses[ip] = c.cluster.hasAddress(v, ip)
		}
		for pod := range t.pods {
			t.pods[pod] = c.cluster.hasPod(v, pod)
		}
	}
}

// count updates the numbers of named ports of the sets that select a pod.
func (c *change) count(sets map[*set]struct{}, p *Pod, by int) {
	for s := range sets {
		if s.pods.Matches(p.Labels) {
			c.countSet(s, p, by)
		}
	}
}

func (c *change) countSet(s *set, p *Pod, by int) {
	for port, split := range s.splits {
		if !s.holds(p) {
			continue
		}
		for _, number := range port.numbers(p) {
			if c.sets.countNumber(split, number, by) {
				for user := range split.users {
					c.policies[user] = struct{}{}
				}
			}
		}
	}
}

// effect compares with the state after the change.
func (c *change) effect() Effect {
	e := Effect{Policies: sortedKeys(c.policies), Pods: sortedKeys(c.pods)}
	for v, t := range c.views {
		d := Delta{Set: v.name()}
		if _, there := c.sets.views[d.Set]; !there {
			continue
		}
		for ip, was := range t.addresses {
			sift(was, c.cluster.hasAddress(v, ip), ip, &d.Added, &d.Removed)
		}
		for pod, was := range t.pods {
			sift(was, c.cluster.hasPod(v, pod), pod, &d.Joined, &d.Left)
		}
		if len(d.Added)+len(d.Removed)+len(d.Joined)+len(d.Left) == 0 {
			continue
		}
		slices.SortFunc(d.Added, netip.Addr.Compare)
		slices.SortFunc(d.Removed, netip.Addr.Compare)
		slices.SortFunc(d.Joined, compareKeys)
		slices.SortFunc(d.Left, compareKeys)
		e.Sets = append(e.Sets, d)
	}
	slices.SortFunc(e.Sets, func(a, b Delta) int { return strings.Compare(string(a.Set), string(b.Set)) })
	return e
}

func sift[T any](was, is bool, item T, came, went *[]T) {
	switch {
	case is && !was:
		*came = append(*came, item)
	case was && !is:
		*went = append(*went, item)
	}
}

func sortedKeys(m map[Key]struct{}) []Key { return slices.SortedFunc(maps.Keys(m), compareKeys) }

func decimal(number uint16) string { return strconv.Itoa(int(number)) }
