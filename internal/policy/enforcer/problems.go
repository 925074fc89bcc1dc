package enforcer

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/transport"
)

// suspect is the reason why a policy may not be fully enforced.
type suspect struct {
	problems []error
	// sctp says that the policy names SCTP.
	sctp bool
	// reported says that the doubt was reported since the policy changed.
	reported bool
}

var errSCTP = errors.New("it names SCTP, but this node's datapath tracks no SCTP ports: all associations between two addresses count as one connection, and its replies pass at every port")

// mostProblems is the maximum number of reported problems of a policy: a policy may have thousands of errors.
const mostProblems = 3

// suspect notes why a changed policy may not be fully enforced; wrong is why it is invalid. A nil policy is deleted.
func (x *state) suspect(key policy.Key, object *policy.Policy, wrong error) {
	delete(x.suspects, key)
	if object == nil {
		return
	}
	d := &suspect{}
	if wrong != nil {
		d.problems = append(d.problems, wrong)
	}
	for direction := range object.Sides {
		for i := range object.Sides[direction].Allows {
			allow := &object.Sides[direction].Allows[i]
			named := func(n policy.NamedPort) bool { return n.Protocol == transport.SCTP }
			offered := func(s policy.Service) bool { return s.Protocol == transport.SCTP }
			d.sctp = d.sctp || slices.ContainsFunc(allow.Named, named) || slices.ContainsFunc(allow.Services, offered)
			if len(allow.Peers) == 0 && len(allow.Blocks) > 0 && !slices.ContainsFunc(allow.Blocks, x.families.has) {
				d.problems = append(d.problems, fmt.Errorf("spec.%s[%d]: all its ipBlocks are of %s, which the network does not have: it allows nothing",
					policy.Direction(direction), i, familyName(allow.Blocks[0])))
			}
		}
	}
	if d.sctp || len(d.problems) > 0 {
		x.suspects[key] = d
	}
}

func (f Families) has(block netip.Prefix) bool {
	if block.Addr().Is4() {
		return f.IPv4
	}
	return f.IPv6
}

func familyName(block netip.Prefix) string {
	if block.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// all returns the problems of a policy; sctp says that the engine tracks the ports of SCTP.
func (d *suspect) all(sctp bool) []error {
	if d.sctp && !sctp {
		return append(slices.Clip(d.problems), errSCTP)
	}
	return d.problems
}

// unreported returns the unreported problems of policies that isolate pods of this node, and marks them as reported.
func (x *state) unreported(sctp bool) map[policy.Key][]error {
	due := map[policy.Key][]error{}
	for key, d := range x.suspects {
		if problems := d.all(sctp); !d.reported && len(problems) > 0 && x.isolatesHere(key) {
			d.reported = true
			due[key] = problems
		}
	}
	return due
}

// isolatesHere reports whether a policy isolates a pod of this node.
func (x *state) isolatesHere(key policy.Key) bool {
	for pod := range x.attached {
		if x.index.Isolates(key, pod) {
			return true
		}
	}
	return false
}

// TracksSCTP sets whether the engine tracks the ports of SCTP. The caller holds the lock.
func (e *Enforcer) TracksSCTP(does bool) { e.sctp = does }

// Problems returns what is not enforced of policies that isolate pods of this node; nil while nothing is enforced. It takes the lock.
func (e *Enforcer) Problems() map[policy.Key]error {
	e.lock.Lock()
	defer e.lock.Unlock()
	if !e.enforcing {
		return nil
	}
	found := map[policy.Key]error{}
	if len(e.suspects) == 0 {
		return found
	}
	for pod := range e.attached {
		for _, key := range e.index.Policies(pod) {
			d := e.suspects[key]
			if d == nil || found[key] != nil {
				continue
			}
			if problems := d.all(e.sctp); len(problems) > 0 {
				found[key] = errors.Join(problems[:min(len(problems), mostProblems)]...)
			}
		}
	}
	return found
}

// ReportProblems reports the problems of policies that isolate pods of this node, once for each change of a policy. It takes the lock.
func (e *Enforcer) ReportProblems() {
	e.lock.Lock()
	report := e.opts.Problems != nil && e.enforcing
	var due map[policy.Key][]error
	if report {
		due = e.unreported(e.sctp)
	}
	e.lock.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(due), compareKeys) {
		e.opts.Problems(key, due[key])
	}
}
