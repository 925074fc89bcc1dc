// Package realised says on how many nodes an object of the API server is in effect, and why not on the others, by what the agents
// say of their nodes (HostSubnet's status.realised).
package realised

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
)

// Kind is a kind of object of which nodes say whether it is in effect.
type Kind string

// The kinds.
const (
	NetworkPolicy       Kind = "NetworkPolicy"
	EgressNetworkPolicy Kind = "EgressNetworkPolicy"
	// NetNamespace stands for the egress addresses and the multicast of one.
	NetNamespace Kind = "NetNamespace"
	// VNID stands for the VNID of a NetNamespace, where VNIDs isolate.
	VNID Kind = "VNID"
)

// Version returns a resourceVersion as a number; those of one kind are in the order of the changes (Kubernetes' "Resource versions
// must be comparable", KEP 5504).
func Version(text string) (uint64, error) {
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %q is no number: %w", text, err)
	}
	return version, nil
}

// Verdict is whether something is in effect on a node.
type Verdict struct {
	// Realised says that it is.
	Realised bool
	// Failing says that the node knows of it, and cannot do it, or not as it says; else it may only have to be waited for.
	Failing bool
	// Reason says why it is not.
	Reason string
}

// Subject is an object in a version.
type Subject struct {
	Kind Kind
	// Name is the object's, with its namespace before it if it has one: shop/web.
	Name    string
	Version uint64
}

// Judge says whether the object is in effect on a node, in this version or a later one. An agent that was stopped, or a node that is
// not ready, leaves in effect what was.
func (s *Subject) Judge(hs *networkv1.HostSubnet) Verdict {
	at := slices.IndexFunc(hs.Status.Realised, func(r networkv1.HostSubnetRealised) bool { return r.Kind == string(s.Kind) })
	if at < 0 {
		return Verdict{Reason: behind(hs, fmt.Sprintf("its agent says nothing of %s objects: it is about to follow them, or of a release that does not say", s.Kind))}
	}
	said := &hs.Status.Realised[at]
	for _, e := range said.Exceptions {
		if e.Object == s.Name {
			return Verdict{Failing: true, Reason: e.Reason}
		}
	}
	if last := len(said.Exceptions) - 1; said.More > 0 && (last < 0 || said.Exceptions[last].Object < s.Name) {
		return Verdict{Failing: true, Reason: fmt.Sprintf("it may be one of %d %s objects that are not in effect there and that its agent does not name", said.More, s.Kind)}
	}
	if version, err := Version(said.Version); err == nil && version >= s.Version {
		return Verdict{Realised: true}
	}
	return Verdict{Reason: behind(hs, said.Reason)}
}

// JudgeAll says whether all of several subjects are in effect on a node, and, of the first that is not, why.
func JudgeAll(subjects ...Subject) func(*networkv1.HostSubnet) Verdict {
	return func(hs *networkv1.HostSubnet) Verdict {
		for i := range subjects {
			if verdict := subjects[i].Judge(hs); !verdict.Realised {
				return verdict
			}
		}
		return Verdict{Realised: true}
	}
}

// behind says why a node has not followed.
func behind(hs *networkv1.HostSubnet, known string) string {
	ready := meta.FindStatusCondition(hs.Status.Conditions, networkv1.ConditionReady)
	step := meta.FindStatusCondition(hs.Status.Conditions, networkv1.ConditionEnginesInStep)
	switch {
	case ready == nil:
		return "its agent has not reported yet: it is starting, or of a release that does not report"
	case ready.Status != metav1.ConditionTrue:
		return ready.Message
	case step != nil && step.Reason == networkv1.ReasonRefused:
		return step.Message
	case known != "":
		return known
	case step != nil && step.Status != metav1.ConditionTrue:
		return step.Message
	}
	return "its agent has not said yet that it has followed"
}

// Node is a node where something is not in effect.
type Node struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	// Next says what to do.
	Next string `json:"next,omitempty"`
	// Failing says that to wait will not do.
	Failing bool `json:"failing,omitempty"`
}

// Count is how many nodes there are, and where something is in effect.
type Count struct {
	// Nodes counts the cluster's nodes, Realised those where it is in effect.
	Nodes    int `json:"nodes"`
	Realised int `json:"realised"`
	// Not are the others, in order.
	Not []Node `json:"notRealised,omitempty"`
}

// All reports whether it is in effect on all nodes.
func (c *Count) All() bool { return len(c.Not) == 0 }

// Summary says it in a sentence that names a few of the nodes where it is not.
func (c *Count) Summary() string {
	const most = 3
	var not []string
	for _, node := range c.Not[:min(most, len(c.Not))] {
		not = append(not, node.Name+": "+node.Reason)
	}
	if more := len(c.Not) - most; more > 0 {
		not = append(not, fmt.Sprintf("and %d more", more))
	}
	text := fmt.Sprintf("realised on %d of %d nodes", c.Realised, c.Nodes)
	if len(not) > 0 {
		text += "; not on " + strings.Join(not, "; ")
	}
	return text
}

// Names names the first of the nodes where it is not in effect.
func (c *Count) Names() string {
	const most = 5
	var names []string
	for i := range c.Not {
		names = append(names, c.Not[i].Name)
	}
	return clusternetwork.FirstNames(names, most)
}

// Tally judges the cluster's nodes, one by one.
type Tally struct {
	judge func(*networkv1.HostSubnet) Verdict
	nodes map[string]Verdict
}

// NewTally returns a Tally of no nodes.
func NewTally(judge func(*networkv1.HostSubnet) Verdict) *Tally {
	return &Tally{judge: judge, nodes: map[string]Verdict{}}
}

// Take judges a node, again if it was before. Hosts that are no nodes follow nothing, and do not count.
func (t *Tally) Take(hs *networkv1.HostSubnet) {
	if hs.Annotations[networkv1.AnnotationNodeUID] == "" {
		delete(t.nodes, hs.Name)
		return
	}
	t.nodes[hs.Name] = t.judge(hs)
}

// Drop forgets a node that has gone.
func (t *Tally) Drop(name string) { delete(t.nodes, name) }

// Count counts.
func (t *Tally) Count() Count {
	c := Count{Nodes: len(t.nodes)}
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		if v := t.nodes[name]; v.Realised {
			c.Realised++
		} else {
			c.Not = append(c.Not, Node{Name: name, Reason: v.Reason, Failing: v.Failing})
		}
	}
	return c
}
