package bridge

import (
	"context"
	"fmt"
	"sync"
)

// maxDrift is the maximum number of flows that an event names; beyond it, reading everything again is cheaper.
const maxDrift = 1000

// feed merges events until the next call of next. Posting never blocks.
type feed struct {
	mu      *sync.Mutex
	waiting *Event
	wake    chan struct{}
}

func newFeed() feed {
	return feed{mu: &sync.Mutex{}, waiting: &Event{}, wake: make(chan struct{}, 1)}
}

func (f feed) post(event Event) {
	if !event.says() {
		return
	}
	f.mu.Lock()
	w := f.waiting
	w.Connected = w.Connected || event.Connected
	w.Unclear = w.Unclear || event.Unclear
	if event.Lost != nil {
		w.Lost = event.Lost
	}
	w.Drift = append(w.Drift, event.Drift...)
	if len(w.Drift) > maxDrift {
		w.Drift, w.Unclear = w.Drift[:maxDrift], true
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (e Event) says() bool {
	return e.Connected || e.Unclear || e.Lost != nil || len(e.Drift) > 0
}

func (f feed) next(ctx context.Context) (Event, error) {
	for {
		f.mu.Lock()
		event := *f.waiting
		*f.waiting = Event{}
		f.mu.Unlock()
		if event.says() {
			return event, nil
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("wait for events of the switch: %w", context.Cause(ctx))
		}
	}
}
