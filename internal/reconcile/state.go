package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// state is what the owners desire, what the engine holds as far as is known, and how the two differ. It calls no engine and no caller waits
// on it: the loop passes in fragments, read-backs and the results of commits, and takes changes from it. Its user holds Loop.mu.
type state[K comparable, V Value[V]] struct {
	// keep and makeSeal are Options.Keep and Options.Seal.
	keep     func(K, V) bool
	makeSeal func(Hash) (K, V)

	desired *desired[K, V]
	// actual is what is programmed; nil before the first read.
	actual map[K]V
	// dirty holds the keys to compare in the next pass.
	dirty map[K]struct{}
	// leaving holds the owners that withdrew a key that may still be programmed for them.
	leaving map[K][]Owner
	// since is when the oldest waiting change was handed over; zero if none waits.
	since time.Time
	// failures are the owners whose fragments are not in effect, with the reasons.
	failures map[Owner]error
	// unreadable is why the last read failed; nil if it succeeded.
	unreadable error
}

func newState[K comparable, V Value[V]](opts *Options[K, V]) state[K, V] {
	return state[K, V]{
		keep: opts.Keep, makeSeal: opts.Seal, desired: newDesired(opts.Encode),
		dirty: map[K]struct{}{}, leaving: map[K][]Owner{}, failures: map[Owner]error{},
	}
}

// due is a change that is due.
type due[K comparable, V any] struct {
	change Change[K, V]
	// drift counts the differences that a read-back found, without those that were waiting for a commit.
	drift Drift
	// seal is the key of the sealing item in change.
	seal *K
	// since is when the oldest item of the change was handed over; zero if none was.
	since time.Time
}

// replace stores the fragments.
func (s *state[K, V]) replace(fragments map[Owner]map[K]V) {
	for owner, fragment := range fragments {
		s.desired.set(owner, fragment, func(key K) {
			s.dirty[key] = struct{}{}
			left := slices.DeleteFunc(s.leaving[key], func(o Owner) bool { return o == owner })
			if _, kept := fragment[key]; !kept {
				left = append(left, owner)
			}
			if len(left) == 0 { // no entry for each item of a new fragment: a map keeps the memory of its largest size
				delete(s.leaving, key)
				return
			}
			s.leaving[key] = left
		})
	}
	if len(s.dirty) > 0 && s.since.IsZero() {
		s.since = time.Now()
	}
}

// take computes the change that is due. actual, if not nil, was just read back and replaces the known state.
func (s *state[K, V]) take(actual map[K]V) due[K, V] {
	d := due[K, V]{change: Change[K, V]{Set: map[K]V{}, Delete: map[K]V{}}}
	first := s.actual == nil
	if actual != nil {
		s.actual, s.unreadable = actual, nil
		union := s.desired.union()
		d.change = Diff(union, actual)
		share(union, &d.change, actual)
		d.change = s.without(d.change)
		if !first { // the first read finds what a former process left: that is normal, not a foreign change
			d.drift = s.strays(d.change)
		}
	}
	for key := range s.dirty {
		s.diffKey(key, &d.change)
	}
	s.dirty = map[K]struct{}{}
	d.since, s.since = s.since, time.Time{}
	s.seal(&d)
	return d
}

// share replaces each value that was read by the desired one if both are equal, as after a commit: they are kept in memory once.
func share[K comparable, V any](desired map[K]V, difference *Change[K, V], actual map[K]V) {
	for key, want := range desired {
		if _, differs := difference.Set[key]; !differs {
			actual[key] = want
		}
	}
}

// without returns a change without the removal of kept items.
func (s *state[K, V]) without(all Change[K, V]) Change[K, V] {
	if s.keep != nil {
		maps.DeleteFunc(all.Delete, func(key K, have V) bool { return len(s.leaving[key]) == 0 && s.keep(key, have) })
	}
	return all
}

// strays counts the differences that no pending change explains.
func (s *state[K, V]) strays(all Change[K, V]) Drift {
	var drift Drift
	foreign := func(key K) bool {
		_, waiting := s.dirty[key]
		return !waiting && !s.isSeal(key)
	}
	for key := range all.Set {
		_, held := s.actual[key]
		switch {
		case !foreign(key):
		case held:
			drift.Altered++
		default:
			drift.Missing++
		}
	}
	for key := range all.Delete {
		if foreign(key) {
			drift.Stray++
		}
	}
	return drift
}

func (s *state[K, V]) diffKey(key K, change *Change[K, V]) {
	want, wanted := s.desired.get(key)
	have, held := s.actual[key]
	switch {
	case wanted && (!held || !want.Equal(have)):
		change.Set[key] = want
	case !wanted && held:
		change.Delete[key] = have
	default:
		delete(s.leaving, key)
	}
}

// split divides a change by owner: an item that is set belongs to its owner, an item that is deleted to its former owner. Items without an
// owner are a part of their own. The seal is in no part.
func (s *state[K, V]) split(d *due[K, V]) []Change[K, V] {
	byOwner := map[Owner]Change[K, V]{}
	part := func(owners []Owner) Change[K, V] {
		var owner Owner
		if len(owners) > 0 {
			owner = owners[0]
		}
		if _, ok := byOwner[owner]; !ok {
			byOwner[owner] = Change[K, V]{Set: map[K]V{}, Delete: map[K]V{}}
		}
		return byOwner[owner]
	}
	for key, value := range d.change.Set {
		if d.seal == nil || key != *d.seal {
			part(s.desired.ownersOf(key)).Set[key] = value
		}
	}
	for key, value := range d.change.Delete {
		part(s.leaving[key]).Delete[key] = value
	}
	parts := make([]Change[K, V], 0, len(byOwner))
	for _, owner := range slices.Sorted(maps.Keys(byOwner)) {
		parts = append(parts, byOwner[owner])
	}
	return parts
}

// settle updates the known state and the failures with what was committed and what failed. It returns the failures of this change by owner.
func (s *state[K, V]) settle(d *due[K, V], failed map[K]error) (broken map[Owner]error) {
	broken = map[Owner]error{}
	fail := func(key K, err error) {
		s.dirty[key] = struct{}{}
		for _, owner := range append(s.desired.ownersOf(key), s.leaving[key]...) {
			broken[owner] = err
		}
	}
	for key, value := range d.change.Set {
		if err, bad := failed[key]; bad {
			fail(key, err)
			continue
		}
		s.actual[key] = value
		s.left(key)
	}
	for key := range d.change.Delete {
		if err, bad := failed[key]; bad {
			fail(key, err)
			continue
		}
		delete(s.actual, key)
		s.left(key)
	}
	if len(failed) > 0 && !d.since.IsZero() && (s.since.IsZero() || d.since.Before(s.since)) {
		s.since = d.since // it still waits
	}
	s.refreshFailures(broken)
	return broken
}

// left deletes the former owners of a key, unless one withdrew it after the change was computed.
func (s *state[K, V]) left(key K) {
	if _, again := s.dirty[key]; !again {
		delete(s.leaving, key)
	}
}

// verdict returns why the fragments of the owners are not in effect: the failure of one of them in the last change, or the conflict about
// one of its keys. name is the engine's.
func (s *state[K, V]) verdict(name string, owners []Owner, broken map[Owner]error) error {
	for _, owner := range owners {
		if err := broken[owner]; err != nil {
			return fmt.Errorf("%s: %s: %w", name, owner, err)
		}
		if err := s.desired.conflict(owner); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// owners returns, sorted, the owners that desire something, and former owners whose items may still be programmed.
func (s *state[K, V]) owners() []Owner {
	owners := make(map[Owner]struct{}, len(s.desired.fragments))
	for owner := range s.desired.fragments {
		owners[owner] = struct{}{}
	}
	for _, left := range s.leaving {
		for _, owner := range left {
			owners[owner] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(owners))
}
