// Package pace judges which ports OpenStack will not make ACTIVE any more.
package pace

import (
	"sync"
	"time"
)

// Limits of how long a plugged port may take to become ACTIVE before another is created in its place: usually, and if OpenStack is behind with
// many. Usual are seconds.
const (
	StuckAfter  = 2 * time.Minute
	StuckBehind = 5 * StuckAfter
)

// Pace is how OpenStack makes plugged ports ACTIVE. It does so about in the order in which they are plugged, and is minutes behind after a burst of
// them on a slow machine: further ports would delay it more. The zero value is ready.
type Pace struct {
	mu sync.Mutex
	// latest is the last time at which a port was plugged that has become ACTIVE, and progress is when the last one became so, or when OpenStack did
	// not answer.
	latest, progress time.Time
}

// Saw records since when ports were plugged that are now ACTIVE.
func (p *Pace) Saw(active []time.Time, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, since := range active {
		p.progress = now
		if since.After(p.latest) {
			p.latest = since
		}
	}
}

// Away records that OpenStack does not answer: what it does is not known.
func (p *Pace) Away(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress = now
}

// Stuck reports whether a port that was plugged at a time, and is not ACTIVE, is to be replaced. OpenStack is behind while other ports become
// ACTIVE, and none that was plugged well after this one.
func (p *Pace) Stuck(since, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch waited := now.Sub(since); {
	case waited < StuckAfter:
		return false
	case waited >= StuckBehind:
		return true
	}
	return now.Sub(p.progress) >= StuckAfter || p.latest.Sub(since) >= StuckAfter/2
}
