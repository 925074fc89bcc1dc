// Package plan decides what the controller writes: objects in, desired writes out. It calls no API server, reads no clock, and keeps
// nothing between calls except an allocator's position.
//
// A plan is made from all objects, never from an event. Allocations are derived from the existing objects. So a plan that is made again, by
// another controller or after a crash between two writes, continues from the objects' state, and the plan of a cluster in the desired state
// is empty.
//
// A plan never assigns what it frees itself: what a deletion frees is used by the next plan, when the deletion is confirmed.
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
	// Problem is something that an administrator has to correct.
	Problem = plan.Problem
)

// Kinds of objects that have problems.
const (
	// KindClusterNetwork and the others are the kinds in the API.
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
	// Created is its creation time.
	Created time.Time
}

// Node is what a plan needs of a Node.
type Node struct {
	// Name and UID are the Node's.
	Name string
	UID  types.UID
	// Address is its first IPv4 InternalIP as written in the Node, else its first InternalIP; empty if it has none.
	Address string
	// Created is its creation time.
	Created time.Time
}

// about returns a cluster-scoped object's name.
func about(kind, name string, uid types.UID) Object { return Object{Kind: kind, Name: name, UID: uid} }
