package reconcile

import (
	"maps"
	"slices"
)

// Owners returns, sorted, the owners that desire something, and former owners whose items may still be programmed.
func (l *Loop[K, V]) Owners() []Owner {
	l.mu.Lock()
	defer l.mu.Unlock()
	owners := make(map[Owner]struct{}, len(l.desired.fragments))
	for owner := range l.desired.fragments {
		owners[owner] = struct{}{}
	}
	for _, left := range l.leaving {
		for _, owner := range left {
			owners[owner] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(owners))
}
