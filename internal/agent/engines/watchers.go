package engines

import (
	"slices"
	"sync"

	"weft.dev/weft/internal/link"
)

// watchers are notified when devices change.
type watchers struct {
	mu        sync.Mutex
	callbacks []*func(link.Drift)
}

// add registers a callback, which is called for each change until stop is called.
func (w *watchers) add(callback func(link.Drift)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.callbacks = append(w.callbacks, &callback)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.callbacks = slices.DeleteFunc(w.callbacks, func(f *func(link.Drift)) bool { return f == &callback })
	}
}

func (w *watchers) notify(drift link.Drift) {
	w.mu.Lock()
	all := slices.Clone(w.callbacks)
	w.mu.Unlock()
	for _, callback := range all {
		(*callback)(drift)
	}
}
