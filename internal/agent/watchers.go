package agent

import (
	"slices"
	"sync"

	"weft.dev/weft/internal/link"
)

// watchers are notified when devices change.
type watchers struct {
	mu   sync.Mutex
	told []*func(link.Drift)
}

// add registers told, which is called for each change until stop is called.
func (w *watchers) add(told func(link.Drift)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, &told)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = slices.DeleteFunc(w.told, func(f *func(link.Drift)) bool { return f == &told })
	}
}

func (w *watchers) tell(drift link.Drift) {
	w.mu.Lock()
	all := slices.Clone(w.told)
	w.mu.Unlock()
	for _, told := range all {
		(*told)(drift)
	}
}
