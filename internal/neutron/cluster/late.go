package cluster

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"weft.dev/weft/internal/neutron/openstack"
)

// lateLimit is how long after the time for its answer OpenStack is expected to carry out a request, at the latest.
const lateLimit = 2 * time.Minute

// saidLate is why the deletion of an object waits.
const saidLate = "OpenStack did not answer a request about it in time, and may carry it out later: it is looked for again"

// lates are the objects with requests that OpenStack has not answered in time. What such a request creates is not found at once: a deletion
// is complete only once a later look has found nothing. The zero value is ready.
type lates struct {
	now func() time.Time // nil: time.Now

	mu  sync.Mutex
	all map[types.UID]*late
}

// late is an object with such requests, or with some under way.
type late struct {
	underWay int
	last     time.Time
}

func (l *lates) time() time.Time {
	if l.now != nil {
		return l.now()
	}
	return time.Now()
}

// begin notes that requests are sent that create something for an object. The caller has to call done after them, with the error of each.
func (l *lates) begin(uid types.UID) (done func(...error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[types.UID]*late{}
	}
	one := l.all[uid]
	if one == nil {
		one = &late{}
		l.all[uid] = one
	}
	one.underWay++
	return func(errs ...error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		one.underWay--
		if slices.ContainsFunc(errs, openstack.Late) {
			one.last = l.time()
		}
		if one.underWay == 0 && l.time().Sub(one.last) >= lateLimit {
			delete(l.all, uid)
		}
	}
}

// left returns the time until a look that finds nothing of an object shows that nothing is left; zero: any look does.
func (l *lates) left(uid types.UID) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.all[uid]
	if one == nil {
		return 0
	}
	if one.underWay > 0 {
		return removeAgain
	}
	left := one.last.Add(lateLimit).Sub(l.time())
	if left <= 0 {
		delete(l.all, uid)
	}
	return max(left, 0)
}

// waiting returns why a deletion waits, and after what time it is tried again; "" if it is complete. waits and err are the outcome of the try,
// late is what left returned before it.
func waiting(waits string, err error, late time.Duration) (why string, again time.Duration) {
	switch {
	case err != nil:
		return err.Error(), removeAgain
	case waits != "":
		return waits, removeAgain
	case late > 0:
		return saidLate, late
	default:
		return "", 0
	}
}
