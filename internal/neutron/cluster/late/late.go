// Package late records which objects have requests that OpenStack has not answered: a deletion waits for what these may still create.
package late

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"weft.dev/weft/internal/neutron/openstack"
)

// Limit is how long after the time for its answer OpenStack is expected to carry out a request, at the latest.
const Limit = 2 * time.Minute

// Again is how often a deletion checks whether it can continue.
const Again = 2 * time.Second

// said is why the deletion of an object waits.
const said = "OpenStack did not answer a request about it in time, and may carry it out later: it is looked for again"

// Requests are the objects with requests that OpenStack has not answered in time. What such a request creates is not found at once: a deletion
// is complete only once a later look has found nothing. The zero value is ready.
type Requests struct {
	Now func() time.Time // nil: time.Now

	mu  sync.Mutex
	all map[types.UID]*object
}

// object is an object with such requests, or with some under way.
type object struct {
	underWay int
	last     time.Time
}

func (r *Requests) time() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Begin notes that requests are sent that create something for an object. The caller has to call done after them, with the error of each.
func (r *Requests) Begin(uid types.UID) (done func(...error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[types.UID]*object{}
	}
	one := r.all[uid]
	if one == nil {
		one = &object{}
		r.all[uid] = one
	}
	one.underWay++
	return func(errs ...error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		one.underWay--
		if slices.ContainsFunc(errs, openstack.Late) {
			one.last = r.time()
		}
		if one.underWay == 0 && r.time().Sub(one.last) >= Limit {
			delete(r.all, uid)
		}
	}
}

// Left returns the time until a look that finds nothing of an object shows that nothing is left; zero: any look does.
func (r *Requests) Left(uid types.UID) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.all[uid]
	if one == nil {
		return 0
	}
	if one.underWay > 0 {
		return Again
	}
	left := one.last.Add(Limit).Sub(r.time())
	if left <= 0 {
		delete(r.all, uid)
	}
	return max(left, 0)
}

// Waiting returns why a deletion waits, and after what time it is tried again; "" if it is complete. waits and err are the outcome of the try,
// late is what Left returned before it.
func Waiting(waits string, err error, late time.Duration) (why string, again time.Duration) {
	switch {
	case err != nil:
		return err.Error(), Again
	case waits != "":
		return waits, Again
	case late > 0:
		return said, late
	default:
		return "", 0
	}
}
