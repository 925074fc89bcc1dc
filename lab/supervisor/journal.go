package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"weft.dev/weft/lab/report"
)

// journal keeps the events of a start for all readers, also after it is over.
type journal struct {
	mu       sync.Mutex
	events   []report.Event
	finished bool
	changed  chan struct{} // closed and replaced at every change
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

func (j *journal) add(e report.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
	j.wake()
}

func (j *journal) finish() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.finished = true
	j.wake()
}

func (j *journal) wake() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// step runs a part of the start and reports it.
func (j *journal) step(name string, f func() error) error {
	j.add(report.Event{Step: name, State: report.Begin})
	began := time.Now()
	if err := f(); err != nil {
		j.add(report.Event{Step: name, State: report.Fail, Took: time.Since(began), Text: err.Error()})
		return fmt.Errorf("%s: %w", name, err)
	}
	j.add(report.Event{Step: name, State: report.Done, Took: time.Since(began)})
	return nil
}

// follow passes every event to f, from the first on, until the start is over or the context ends.
func (j *journal) follow(ctx context.Context, f func(report.Event) error) error {
	for next := 0; ; {
		j.mu.Lock()
		fresh, finished, changed := j.events[next:], j.finished, j.changed
		j.mu.Unlock()
		for _, e := range fresh {
			if err := f(e); err != nil {
				return err
			}
		}
		next += len(fresh)
		if finished && len(fresh) == 0 {
			return nil
		}
		if len(fresh) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
