// Package realised computes on how many nodes an object of the API server is in effect, and why not on the others, from the agents' reports
// (HostSubnet's status.realised).
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

// Kind is a kind of object for which nodes report whether objects are in effect.
type Kind string

// The kinds.
const (
	NetworkPolicy       Kind = "NetworkPolicy"
	EgressNetworkPolicy Kind = "EgressNetworkPolicy"
	// NetNamespace means the egress IPs and the multicast setting of a NetNamespace.
	NetNamespace Kind = "NetNamespace"
	// VNID means the VNID of a NetNamespace, in clusters where VNIDs isolate.
	VNID Kind = "VNID"
)

// Version returns a resourceVersion as a number. Versions of one kind are ordered as the changes (Kubernetes' "Resource versions must be
// comparable", KEP 5504).
func Version(text string) (uint64, error) {
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %q is no number: %w", text, err)
	}
	return version, nil
}

// Verdict says whether an object is in effect on a node.
type Verdict struct {
	// Realised says that it is in effect.
	Realised bool
	// Failing says that the node has the object, and cannot apply it, or not as written. If false, it may be enough to wait.
	Failing bool
	// Reason is why it is not in effect.
	Reason string
}

// Subject is an object in a version.
type Subject struct {
	Kind Kind
	// Name is the object's name, after its namespace if it has one: shop/web.
	Name    string
	Version uint64
}

// Judge returns whether the object, in this version or a later one, is in effect on a node. If an agent has stopped, or a node is not
// ready, what was in effect stays in effect.
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

// JudgeAll returns a function that reports whether all subjects are in effect on a node, with the reason of the first that is not.
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

// behind returns why a node has not applied a change yet.
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

// Node is a node where an object is not in effect.
type Node struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	// Next is what to do.
	Next string `json:"next,omitempty"`
	// Failing says that waiting does not help.
	Failing bool `json:"failing,omitempty"`
}

// Count has the number of nodes, and those where an object is in effect.
type Count struct {
	// Nodes is the number of the cluster's nodes, Realised that of the nodes where the object is in effect.
	Nodes    int `json:"nodes"`
	Realised int `json:"realised"`
	// Not are the other nodes, sorted by name.
	Not []Node `json:"notRealised,omitempty"`
}

// All reports whether the object is in effect on all nodes.
func (c *Count) All() bool { return len(c.Not) == 0 }

// Summary returns the count as a sentence, with the first nodes where the object is not in effect.
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

// Names returns the names of the first nodes where the object is not in effect.
func (c *Count) Names() string {
	const most = 5
	var names []string
	for i := range c.Not {
		names = append(names, c.Not[i].Name)
	}
	return clusternetwork.FirstNames(names, most)
}

// Tally evaluates the cluster's nodes, one by one.
type Tally struct {
	judge func(*networkv1.HostSubnet) Verdict
	nodes map[string]Verdict
}

// NewTally returns a Tally without nodes.
func NewTally(judge func(*networkv1.HostSubnet) Verdict) *Tally {
	return &Tally{judge: judge, nodes: map[string]Verdict{}}
}

// Take adds or updates a node. Hosts without a Node have no agent, and do not count.
func (t *Tally) Take(hs *networkv1.HostSubnet) {
	if hs.Annotations[networkv1.AnnotationNodeUID] == "" {
		delete(t.nodes, hs.Name)
		return
	}
	t.nodes[hs.Name] = t.judge(hs)
}

// Drop removes a deleted node.
func (t *Tally) Drop(name string) { delete(t.nodes, name) }

// Count returns the current count.
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
