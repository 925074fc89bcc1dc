package overlay

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/policy"
)

// doubt is why a policy may not be realised as it says.
type doubt struct {
	problems []error
	// sctp says that it names SCTP.
	sctp bool
	// told says that it was told since the policy changed.
	told bool
}

var errSCTP = errors.New("it names SCTP, of which this node's datapath tracks no ports: all associations between two addresses count as one connection, whose answers pass at every port")

// doubt notes what of a policy that changed may not be realised as it says; wrong is what cannot be understood. A nil policy is gone.
func (x *policies) doubt(key policy.Key, object *policy.Policy, wrong error) {
	delete(x.doubts, key)
	if object == nil {
		return
	}
	d := &doubt{}
	if wrong != nil {
		d.problems = append(d.problems, wrong)
	}
	for direction := range object.Sides {
		for i := range object.Sides[direction].Allows {
			allow := &object.Sides[direction].Allows[i]
			named := func(n policy.NamedPort) bool { return n.Protocol == policy.SCTP }
			offered := func(s policy.Service) bool { return s.Protocol == policy.SCTP }
			d.sctp = d.sctp || slices.ContainsFunc(allow.Named, named) || slices.ContainsFunc(allow.Services, offered)
			if len(allow.Peers) == 0 && len(allow.Blocks) > 0 && !slices.ContainsFunc(allow.Blocks, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
				d.problems = append(d.problems, fmt.Errorf("spec.%s[%d]: all its ipBlocks are of IPv6, which the network does not have: it allows nothing", policy.Direction(direction), i))
			}
		}
	}
	if d.sctp || len(d.problems) > 0 {
		x.doubts[key] = d
	}
}

// untold returns what is to be told of policies that isolate pods of this node, and notes that it was.
func (x *policies) untold(sctp bool) map[policy.Key][]error {
	due := map[policy.Key][]error{}
	for key, d := range x.doubts {
		problems := d.problems
		if d.sctp && !sctp {
			problems = append(slices.Clip(problems), errSCTP)
		}
		if !d.told && len(problems) > 0 && x.isolatesHere(key) {
			d.told = true
			due[key] = problems
		}
	}
	return due
}

// PolicyProblems returns what policies that isolate pods of this node say that is not so here.
func (n *Network) PolicyProblems() map[policy.Key]error {
	s := n.settings.Load()
	if s == nil || !s.policies() {
		return nil
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	x := &n.policies
	found := map[policy.Key]error{}
	if len(x.doubts) == 0 {
		return found
	}
	for pod := range x.attached {
		for _, key := range x.index.Policies(pod) {
			d := x.doubts[key]
			if d == nil || found[key] != nil {
				continue
			}
			problems := d.problems
			if d.sctp && !s.pipeline.SCTP {
				problems = append(slices.Clip(problems), errSCTP)
			}
			if len(problems) > 0 {
				found[key] = errors.Join(problems[:min(len(problems), mostProblems)]...)
			}
		}
	}
	return found
}

// mostProblems is how many problems of a policy are told: it may be wrong in thousands of places.
const mostProblems = 3

// isolatesHere reports whether a policy isolates a pod of this node.
func (x *policies) isolatesHere(key policy.Key) bool {
	for pod := range x.attached {
		if pod.Namespace == key.Namespace && slices.Contains(x.index.Policies(pod), key) {
			return true
		}
	}
	return false
}

// tellProblems tells what policies say that is not so on this node: once for each change of a policy that isolates one of its pods.
func (n *Network) tellProblems() {
	s := n.settings.Load()
	if n.opts.PolicyProblems == nil || s == nil || !s.policies() {
		return
	}
	n.opening.Lock()
	due := n.policies.untold(s.pipeline.SCTP)
	n.opening.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(due), compareKeys) {
		n.opts.PolicyProblems(key, due[key])
	}
}
