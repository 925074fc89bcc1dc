// Package plan decides what a cluster's controller writes: objects in, desired writes out. It calls no API server,
// reads no clock, and keeps nothing between calls but an allocator's place.
//
// A plan is made from everything there is, never from an event. What is allocated is derived from the objects that
// exist, so a plan made again, by another controller, or after a crash between two writes, takes up where the objects
// stand; a plan of a cluster that is as it should be is empty.
//
// A plan never gives out in one go what it takes back: what a deletion frees is used by the next plan, when the
// deletion is known to have happened.
package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"weft.dev/weft/internal/cluster/plan"
)

type (
	// Writes are changes to objects of one kind.
	Writes[T any] = plan.Writes[T]
	// Object names an object.
	Object = plan.Object
	// Problem is what an administrator has to correct.
	Problem = plan.Problem
)

// Kinds of objects that problems are about.
const (
	// KindClusterNetwork and the others are named as in the API.
	KindClusterNetwork = "ClusterNetwork"
	KindHostSubnet     = "HostSubnet"
	KindNetNamespace   = "NetNamespace"
	KindNamespace      = "Namespace"
	KindNode           = "Node"
)

// Namespace is what a plan needs of a Namespace.
type Namespace struct {
	// Name and UID are the Namespace's.
	Name string
	UID  types.UID
	// Created is when it was made.
	Created time.Time
}

// Node is what a plan needs of a Node.
type Node struct {
	// Name and UID are the Node's.
	Name string
	UID  types.UID
	// Address is its first InternalIP, as the Node has it; empty where it has none.
	Address string
	// Created is when it was made.
	Created time.Time
}

// about names a cluster-scoped object.
func about(kind, name string, uid types.UID) Object { return Object{Kind: kind, Name: name, UID: uid} }
