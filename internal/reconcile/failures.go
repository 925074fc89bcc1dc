package reconcile

import (
	"maps"
	"slices"
)

// Unreadable is the key in Failures that represents all owners while the engine cannot be read.
const Unreadable Owner = "everything"

// Failure returns why the owner's fragment is not in effect, nil if it is. While the engine cannot be read, that is also the reason for
// what waits to be committed.
func (l *Loop[K, V]) Failure(owner Owner) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.failure(owner)
}

// Failures returns all owners whose fragments are not in effect, with the reasons.
func (l *Loop[K, V]) Failures() map[Owner]error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.allFailures()
}

func (s *state[K, V]) failure(owner Owner) error {
	if err := s.failures[owner]; err != nil || s.unreadable == nil {
		return err
	}
	for key := range s.desired.fragments[owner] {
		if _, waits := s.dirty[key]; waits {
			return s.unreadable
		}
	}
	for _, owners := range s.leaving { // what it withdrew may still be programmed
		if slices.Contains(owners, owner) {
			return s.unreadable
		}
	}
	return nil
}

// allFailures returns a copy of the failures, with Unreadable among them.
func (s *state[K, V]) allFailures() map[Owner]error {
	failures := maps.Clone(s.failures)
	if s.unreadable != nil {
		failures[Unreadable] = s.unreadable
	}
	return failures
}

// refreshFailures replaces the failures of all owners whose state is known after a change.
func (s *state[K, V]) refreshFailures(broken map[Owner]error) {
	for owner := range s.failures {
		if _, still := broken[owner]; !still && s.inStep(owner) {
			delete(s.failures, owner)
		}
	}
	maps.Copy(s.failures, broken)
}

// inStep reports whether every item of the owner is programmed as desired.
func (s *state[K, V]) inStep(owner Owner) bool {
	for key, want := range s.desired.fragments[owner] {
		if have, ok := s.actual[key]; !ok || !want.Equal(have) {
			return false
		}
	}
	for _, owners := range s.leaving {
		if slices.Contains(owners, owner) {
			return false
		}
	}
	return true
}
