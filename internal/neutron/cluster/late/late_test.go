package late

import (
	"context"
	"testing"
	"time"
)

// A deletion waits for requests that are under way.
func TestDeletionAmidRequests(t *testing.T) {
	var r Requests
	one, two := r.Begin("a"), r.Begin("a")
	one(nil)
	if left := r.Left("a"); left != Again {
		t.Errorf("with a request under way: %s", left)
	}
	two(nil)
	if left := r.Left("a"); left != 0 || len(r.all) > 0 {
		t.Errorf("after all were answered: %s, %v", left, r.all)
	}
}

// After a request without an answer, a deletion waits for as long as OpenStack may carry it out. Then the object is forgotten.
func TestDeletionAfterLateRequest(t *testing.T) {
	now := time.Now()
	r := Requests{Now: func() time.Time { return now }}
	r.Begin("a")(context.DeadlineExceeded)
	if left := r.Left("a"); left != Limit {
		t.Errorf("after a request that was not answered: %s", left)
	}
	if now = now.Add(Limit); r.Left("a") != 0 || len(r.all) > 0 {
		t.Errorf("after %s: %s, %v", Limit, r.Left("a"), r.all)
	}
}
