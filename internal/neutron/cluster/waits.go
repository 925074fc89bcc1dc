package cluster

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// shortWait and longWait limit the interval at which a Service is checked while Octavia changes its load balancer.
	shortWait, longWait = 100 * time.Millisecond, 5 * time.Second
	// pendingLimit is how long one change of a load balancer may take without an event.
	pendingLimit = 2 * time.Minute
	// firstAgain and lastAgain limit the time before a failed load balancer is created again. It doubles with each failure.
	firstAgain, lastAgain = 2 * time.Second, 5 * time.Minute
)

// waits are the Services that wait for Octavia. The zero value is ready.
type waits struct {
	now func() time.Time // nil: time.Now

	mu  sync.Mutex
	all map[types.NamespacedName]*wait
}

// wait is the state of a Service whose load balancer is not in step.
type wait struct {
	// since is when the change in progress was requested; zero: unknown.
	since time.Time
	// failures counts the load balancers that Octavia failed to create for spec, and again is when the next may be created.
	failures int
	again    time.Time
	spec     corev1.ServiceSpec
}

// of returns the state of a Service, and the time. The caller holds mu.
func (w *waits) of(key types.NamespacedName) (*wait, time.Time) {
	if w.all == nil {
		w.all = map[types.NamespacedName]*wait{}
	}
	if w.all[key] == nil {
		w.all[key] = &wait{}
	}
	if w.now != nil {
		return w.all[key], w.now()
	}
	return w.all[key], time.Now()
}

// next returns when a Service has to be checked again, and how long its change has taken: the longer, the later. pending reports that it is
// the change of the last call.
func (w *waits) next(key types.NamespacedName, pending bool) (next, waited time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, now := w.of(key)
	if one.since.IsZero() || !pending {
		one.since = now
	}
	waited = now.Sub(one.since)
	return min(max(waited/2, shortWait), longWait), waited
}

// failed records that Octavia failed to create the load balancer of a Service, and returns the time before it may be created again.
func (w *waits) failed(key types.NamespacedName, spec *corev1.ServiceSpec) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, now := w.of(key)
	delay := lastAgain
	if shifted := firstAgain << one.failures; one.failures < 16 { // further ones are above the limit
		delay = min(shifted, lastAgain)
	}
	one.since, one.spec, one.again = time.Time{}, *spec.DeepCopy(), now.Add(delay)
	one.failures++
	return delay
}

// barred returns the time before the load balancer of a Service may be created again; zero or less: it may be. A changed Service starts anew.
func (w *waits) barred(key types.NamespacedName, spec *corev1.ServiceSpec) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, now := w.of(key)
	if one.failures > 0 && !equality.Semantic.DeepEqual(&one.spec, spec) {
		one.failures, one.again = 0, time.Time{}
	}
	return one.again.Sub(now)
}

// unknown records that OpenStack could not be asked: whether a change is in progress is not known any more.
func (w *waits) unknown(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.all[key]; one != nil {
		one.since = time.Time{}
	}
}

// end removes a Service that does not wait any more.
func (w *waits) end(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, key)
}
