package cluster

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// shortWait and longWait bound how long a Service is left alone while Octavia changes its load balancer.
	shortWait, longWait = 100 * time.Millisecond, 5 * time.Second
	// pendingLimit is how long one change of a load balancer may take without an event.
	pendingLimit = 2 * time.Minute
)

// waits are the Services that wait for Octavia, each with when its change was asked for. The zero value is ready.
type waits struct {
	now func() time.Time // nil: time.Now

	mu    sync.Mutex
	since map[types.NamespacedName]time.Time
}

// next returns when a Service is to be looked at again, and how long its change has taken: the longer, the later. pending says that it is
// the change of the last call.
func (w *waits) next(key types.NamespacedName, pending bool) (next, waited time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.now != nil {
		now = w.now()
	}
	begin, there := w.since[key]
	if !there || !pending {
		if w.since == nil {
			w.since = map[types.NamespacedName]time.Time{}
		}
		begin = now
		w.since[key] = begin
	}
	waited = now.Sub(begin)
	return min(max(waited/2, shortWait), longWait), waited
}

// end forgets a Service that waits for nothing.
func (w *waits) end(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, key)
}
