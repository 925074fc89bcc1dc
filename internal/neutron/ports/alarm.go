package ports

import (
	"context"
	"time"
)

// gather is how long a pass waits after a pod came or went: changes of patch ports are made together, because ovn-controller computes
// everything again for each, and none is made in the middle of a burst of pods.
const gather = time.Second

// alarm requests passes.
type alarm struct {
	// wake requests a pass now, and later one that gathers what follows.
	wake, later chan struct{}
}

func newAlarm() alarm { return alarm{wake: make(chan struct{}, 1), later: make(chan struct{}, 1)} }

// WakeUp requests a pass now. It does not wait.
func (a *alarm) WakeUp() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// wakeLater requests a pass at the latest after the time gather.
func (a *alarm) wakeLater() {
	select {
	case a.later <- struct{}{}:
	default:
	}
}

// due waits until a pass is due, and reports false if ctx has ended.
func (a *alarm) due(ctx context.Context, retry <-chan time.Time) bool {
	var gathered <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-a.later:
			if gathered == nil {
				gathered = time.After(gather)
			}
		case <-a.wake:
			return true
		case <-gathered:
			return true
		case <-retry:
			return true
		}
	}
}
