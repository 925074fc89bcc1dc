package reconcile

import (
	"maps"
	"slices"
)

// Failure returns why the owner's fragment is not in effect, nil if it is. While the engine cannot be read, that is also the reason for
// what waits to be committed.
func (l *Loop[K, V]) Failure(owner Owner) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.failures[owner]; err != nil || l.unreadable == nil {
		return err
	}
	for key := range l.desired.fragments[owner] {
		if _, waits := l.dirty[key]; waits {
			return l.unreadable
		}
	}
	return nil
}

// Unreadable is the key in Failures that represents all owners while the engine cannot be read.
const Unreadable Owner = "everything"

// Failures returns all owners whose fragments are not in effect, with the reasons.
func (l *Loop[K, V]) Failures() map[Owner]error {
	l.mu.Lock()
	defer l.mu.Unlock()
	failures := maps.Clone(l.failures)
	if l.unreadable != nil {
		failures[Unreadable] = l.unreadable
	}
	return failures
}

// refreshFailures replaces the failures of all owners whose state is known after this round.
func (l *Loop[K, V]) refreshFailures(broken map[Owner]error) {
	for owner := range l.failures {
		if _, still := broken[owner]; !still && l.inStep(owner) {
			delete(l.failures, owner)
		}
	}
	maps.Copy(l.failures, broken)
}

// inStep reports whether every item of the owner is programmed as desired.
func (l *Loop[K, V]) inStep(owner Owner) bool {
	for key, want := range l.desired.fragments[owner] {
		if have, ok := l.actual[key]; !ok || !want.Equal(have) {
			return false
		}
	}
	for _, owners := range l.leaving {
		if slices.Contains(owners, owner) {
			return false
		}
	}
	return true
}
