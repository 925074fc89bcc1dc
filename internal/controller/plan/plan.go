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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Writes are changes to objects of one kind, each in the order it was decided.
type Writes[T any] struct {
	// Delete holds objects to delete, as they were read.
	Delete []T
	// Update holds objects as they should become, with the resource version they were read at.
	Update []T
	// Create holds objects that do not exist.
	Create []T
}

// Empty reports whether there is nothing to write.
func (w Writes[T]) Empty() bool { return len(w.Delete)+len(w.Update)+len(w.Create) == 0 }

// Kinds of objects that problems are about.
const (
	// KindClusterNetwork and the others are named as in the API.
	KindClusterNetwork = "ClusterNetwork"
	KindHostSubnet     = "HostSubnet"
	KindNetNamespace   = "NetNamespace"
	KindNamespace      = "Namespace"
	KindNode           = "Node"
)

// Object names a cluster-scoped object.
type Object struct {
	// Kind is one of the kinds above.
	Kind string
	// Name is the object's name.
	Name string
	// UID is the object's UID.
	UID types.UID
}

// Problem is something that a person has to put right. It is told on the object that it is about.
type Problem struct {
	// Object is what the problem is about.
	Object
	// Reason is one of the reasons of package v1.
	Reason string
	// Message says what is wrong and what to do.
	Message string
}

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

// byAge returns items in the order in which their objects were made, so that equal clusters give equal plans.
func byAge[T any](items []T, key func(T) (time.Time, string)) []T {
	return slices.SortedFunc(slices.Values(items), func(a, b T) int {
		aCreated, aName := key(a)
		bCreated, bName := key(b)
		return cmp.Or(aCreated.Compare(bCreated), cmp.Compare(aName, bName))
	})
}

// Summary joins the messages of problems into one of bounded length: the first ten, and how many more there are.
func Summary(problems []Problem) string {
	const most = 10
	lines := make([]string, 0, most+1)
	for i, p := range problems {
		if i == most {
			lines = append(lines, fmt.Sprintf("and %d more", len(problems)-most))
			break
		}
		lines = append(lines, p.Message)
	}
	return strings.Join(lines, "; ")
}
