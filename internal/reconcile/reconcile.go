// Package reconcile is the loop that every engine of Weft runs in: it merges fragments of desired state, compares them with what an engine
// holds, and commits the difference in one atomic transaction.
//
// A fragment is what one owner (a pod, a node, a policy) contributes to an engine: a map from the engine's keys to its values. A change of
// one owner compares and commits that owner's keys only; a verification compares the union of all fragments with what the engine reads
// back.
package reconcile

import (
	"context"
	"maps"
)

// Owner names the object that a fragment comes from, kind first: "attachment/<container>/<interface>", "hostsubnet/<uid>", "cluster". A
// status, a cookie or a comment refers to it.
type Owner string

// Value is one item of an engine's state.
type Value[V any] interface {
	// Equal reports whether replacing one by the other would change nothing.
	Equal(other V) bool
}

// Change is the difference between what an engine holds and what it should hold.
type Change[K comparable, V any] struct {
	// Set holds the items to add, or to replace under the same key.
	Set map[K]V
	// Delete holds the items to remove, with their last known values.
	Delete map[K]V
}

// Empty reports whether there is nothing to do.
func (c Change[K, V]) Empty() bool { return len(c.Set) == 0 && len(c.Delete) == 0 }

// Engine holds programmed state: a switch's flows, a database's rows, a namespace's links, a table's rules. An implementation contains
// mechanism and no policy. Its methods are never called concurrently.
type Engine[K comparable, V any] interface {
	// Read returns everything that is programmed and managed by the engine, also items that no owner desires: so strays are found. It does not
	// return items of other programs.
	Read(ctx context.Context) (map[K]V, error)
	// Commit makes the change, all of it or nothing. It returns once the change is in effect.
	Commit(ctx context.Context, change Change[K, V]) error
}

// Diff returns the change that turns actual into desired.
func Diff[K comparable, V Value[V]](desired, actual map[K]V) Change[K, V] {
	change := Change[K, V]{Set: map[K]V{}, Delete: map[K]V{}}
	for key, want := range desired {
		if have, ok := actual[key]; !ok || !want.Equal(have) {
			change.Set[key] = want
		}
	}
	for key, have := range actual {
		if _, ok := desired[key]; !ok {
			change.Delete[key] = have
		}
	}
	return change
}

// Apply returns the state after the change. Fakes use it.
func (c Change[K, V]) Apply(state map[K]V) map[K]V {
	next := maps.Clone(state)
	if next == nil {
		next = map[K]V{}
	}
	for key := range c.Delete {
		delete(next, key)
	}
	maps.Copy(next, c.Set)
	return next
}
