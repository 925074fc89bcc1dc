package cluster

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// shortWait and longWait limit the interval at which a Service is checked while Octavia changes its load balancer.
	shortWait, longWait = 100 * time.Millisecond, 5 * time.Second
	// pendingLimit is how long one change of a load balancer may take without an event.
	pendingLimit = 2 * time.Minute
)

// waits are the Services that wait for Octavia, each with the time at which its change was requested. The zero value is ready.
type waits struct {
	now func() time.Time // nil: time.Now

	mu    sync.Mutex
	since map[types.NamespacedName]time.Time
}

// next returns when a Service has to be checked again, and how long its change has taken: the longer, the later. pending reports that it is
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

// end removes a Service that does not wait any more.
func (w *waits) end(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, key)
}
