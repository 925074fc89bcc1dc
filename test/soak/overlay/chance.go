package overlay

import (
	"math/rand/v2"
	"sync"
	"time"
)

// chance makes the random choices of a run. The same seed makes the same choices.
type chance struct {
	mu     sync.Mutex
	random *rand.Rand
}

// within returns a random time less than the limit.
func (c *chance) within(limit time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.random.Int64N(int64(limit)))
}

// some returns up to n different numbers below the limit.
func (c *chance) some(limit, n int) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.Perm(limit)[:min(n, limit)]
}
