package agent

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

// add registers told, which is called for each change until stop is called.
func (w *watchers) add(told func(link.Drift)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.callbacks = append(w.callbacks, &told)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.callbacks = slices.DeleteFunc(w.callbacks, func(f *func(link.Drift)) bool { return f == &told })
	}
}

func (w *watchers) notify(drift link.Drift) {
	w.mu.Lock()
	all := slices.Clone(w.callbacks)
	w.mu.Unlock()
	for _, told := range all {
		(*told)(drift)
	}
}
