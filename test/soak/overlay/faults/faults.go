// Package faults has the faults of a cluster with an overlay network: those of runtimes, programs, API server, objects, disk and clock, and
// changes by hand. Each is a value that says what it does, and what must hold meanwhile.
package faults

import (
	"context"
	"slices"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/soak/losses"
)

// Fault is a fault, on the first node if it concerns a node. Weft must recover from every fault by itself.
type Fault struct {
	Name string
	// Spares are the pairs of pods that must not lose a packet.
	Spares losses.Scope
	// Opens says that the fault itself opens the network: packets received until it is undone are not a hole of Weft's.
	Opens bool
	// Kills are the programs that the fault ends; others must not end.
	Kills []string
	// Do causes the fault, and ends it if such a fault ends by itself: a disk that has space again, an API server that is back. It returns
	// what it observed, and an error if Weft did not behave as promised during the fault.
	Do func(ctx context.Context, s *Scene, n lab.Node) (note string, err error)
}

// All returns all faults, in their order.
func All() []Fault {
	return slices.Concat(requestFaults(), agentFaults(), byHand(), switchFaults(), apiFaults(), clusterFaults(), diskFaults())
}

// Scene is what a fault needs of the lab in which it happens.
type Scene struct {
	Cluster *lab.Cluster
	Cast    Cast
	// Within returns a random time less than the limit.
	Within func(limit time.Duration) time.Duration
}

// Cast are the permanent pods of the lab.
type Cast interface {
	// Pod returns a pod by its name.
	Pod(name string) *lab.Pod
	// Reach waits until all required paths between the pods, the nodes and the outside work.
	Reach(ctx context.Context) error
	// Reached checks that a pod of the other node reaches a pod.
	Reached(ctx context.Context, p *lab.Pod) error
	// Fresh adds a pod on a node, checks that it is reached, and deletes it.
	Fresh(ctx context.Context, node, name string) error
}
