package engines

import (
	"slices"
	"sync"

	"weft.dev/weft/internal/link/notify"
)

// watchers are notified when devices change.
type watchers struct {
	mu        sync.Mutex
	callbacks []*func(notify.Drift)
}

// add registers a callback, which is called for each change until stop is called.
func (w *watchers) add(callback func(notify.Drift)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.callbacks = append(w.callbacks, &callback)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.callbacks = slices.DeleteFunc(w.callbacks, func(f *func(notify.Drift)) bool { return f == &callback })
	}
}

func (w *watchers) notify(drift notify.Drift) {
	w.mu.Lock()
	all := slices.Clone(w.callbacks)
	w.mu.Unlock()
	for _, callback := range all {
		(*callback)(drift)
	}
}
