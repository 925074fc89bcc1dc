package node

import (
	"sync"
	"time"

	"weft.dev/weft/internal/steps"
)

// Changes are changes that were observed and are not programmed yet. Only the time of the first one is kept.
type Changes struct {
	wake chan struct{}

	mu sync.Mutex
	// since is when the first of the changes was observed that no step has taken yet.
	since time.Time
}

func newChanges() *Changes { return &Changes{wake: make(chan struct{}, 1)} }

// Wake receives once there are changes.
func (c *Changes) Wake() <-chan struct{} { return c.wake }

func (c *Changes) signal() {
	c.PutBack(time.Now())
	steps.Wake(c.wake)
}

// PutBack records that a change observed at this time is not programmed yet.
func (c *Changes) PutBack(seen time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() || seen.Before(c.since) {
		c.since = seen
	}
}

// Take returns when the first change was observed that is not programmed yet; now, if there is none.
func (c *Changes) Take() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.since
	c.since = time.Time{}
	if since.IsZero() {
		return time.Now()
	}
	return since
}
