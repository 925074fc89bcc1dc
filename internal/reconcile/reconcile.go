// Package reconcile is the one movement of Weft: fragments of desired state are merged, compared with what an
// engine holds, and the difference is committed in one atomic transaction.
//
// A fragment is what one owner (a pod, a node, a policy) contributes to an engine: a map from the engine's keys
// to its values. A change of one owner compares and commits that owner's keys only; a verification compares the
// union of all fragments with what the engine reads back.
package reconcile

import (
	"context"
	"maps"
)

// Owner names the object that a fragment comes from, kind first: "attachment/<container>/<interface>",
// "hostsubnet/<uid>", "cluster". It is what a status, a cookie or a comment leads back to.
type Owner string

// Value is one item of an engine's state.
type Value[V any] interface {
	// Equal reports whether programming one in place of the other would change nothing.
	Equal(other V) bool
}

// Change is the difference between what an engine holds and what it should hold.
type Change[K comparable, V any] struct {
	// Set holds the items to add, or to put in place of what stands under the same key.
	Set map[K]V
	// Delete holds the items to remove, with the value they were last known to have.
	Delete map[K]V
}

// Empty reports whether there is nothing to do.
func (c Change[K, V]) Empty() bool { return len(c.Set) == 0 && len(c.Delete) == 0 }

// Engine holds programmed state: a switch's flows, a database's rows, a namespace's links, a table's rules.
// Implementations know mechanism and no policy. Calls are never concurrent.
type Engine[K comparable, V any] interface {
	// Read returns everything that is programmed and within the engine's care, also what nobody desires:
	// that is how strays are found. Items that others own are not in it.
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

// Apply returns what state becomes by the change. It is what a Fake does with it.
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
