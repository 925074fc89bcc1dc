package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// ErrNotStarted is returned by Inspect before Start: the desired state is not known yet.
var ErrNotStarted = errors.New("the desired state is not known yet")

// Status is the state of a loop.
type Status struct {
	// Started reports whether the first state was handed over.
	Started bool
	// Items counts the desired items.
	Items int
	// Waiting counts the items that wait for a commit.
	Waiting int
	// Committed is when the last commit that changed something succeeded; zero if there was none.
	Committed time.Time
	// Hash is the hash of the desired state; zero if Options.Encode is nil.
	Hash Hash
	// Failures are the owners whose fragments are not in effect, with the reasons; the key Unreadable represents all of them.
	Failures map[Owner]error
}

// InStep reports whether everything desired is programmed, by what is known without reading back.
func (s *Status) InStep() bool { return s.Started && s.Waiting == 0 && len(s.Failures) == 0 }

// Status returns the state of the loop. It does not call the engine.
func (l *Loop[K, V]) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Status{
		Started: l.started, Items: len(l.state.desired.claims), Waiting: len(l.state.dirty), Committed: l.driver.lastCommit(),
		Hash: l.state.desired.hash, Failures: l.state.allFailures(),
	}
}

// Difference is one item whose programmed state differs from the desired one.
type Difference[K comparable, V any] struct {
	Key K
	// Owners desire the item, or did; empty if no owner is known.
	Owners []Owner
	// Want is the desired value, if Wanted; Have is the value read, if Held.
	Want, Have   V
	Wanted, Held bool
	// Err is why it could not be committed, nil if that was not tried.
	Err error
}

// Inspection is the result of a verification without a commit.
type Inspection[K comparable, V any] struct {
	// Desired and Programmed count the items.
	Desired, Programmed int
	// Differences are in no order.
	Differences []Difference[K, V]
}

// inspector is a caller that waits for an inspection.
type inspector[K comparable, V any] struct {
	done chan error
	// early requests only what is programmed, which can be read before Start.
	early  bool
	found  Inspection[K, V]
	actual map[K]V
}

// inspectors are the callers that wait for an inspection.
type inspectors[K comparable, V any] struct {
	// name is the engine's.
	name string

	// mu guards what follows. It is not held while Loop.mu is acquired.
	mu      sync.Mutex
	waiting []*inspector[K, V]
	stopped bool
}

// await queues the caller, signals the loop, and waits.
func (q *inspectors[K, V]) await(ctx context.Context, i *inspector[K, V], signal func()) error {
	if err := q.add(i); err != nil {
		return err
	}
	signal()
	select {
	case err := <-i.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting for the reading: %w", q.name, ctx.Err())
	}
}

func (q *inspectors[K, V]) add(i *inspector[K, V]) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return fmt.Errorf("%s: %w", q.name, ErrStopped)
	}
	q.waiting = append(q.waiting, i)
	return nil
}

// take returns the waiting callers, who wait for nothing else then.
func (q *inspectors[K, V]) take() []*inspector[K, V] {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := q.waiting
	q.waiting = nil
	return waiting
}

// stop ends the wait of all callers, present and future.
func (q *inspectors[K, V]) stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	for _, i := range q.take() {
		i.done <- fmt.Errorf("%s: %w", q.name, ErrStopped)
	}
}

// Inspect reads back everything that is programmed and returns how it differs from what is desired. An item that waits for the next commit
// and has not failed is not reported as a difference. The loop corrects the differences afterwards.
func (l *Loop[K, V]) Inspect(ctx context.Context) (Inspection[K, V], error) {
	i := &inspector[K, V]{done: make(chan error, 1)}
	if err := l.inspectors.await(ctx, i, l.wake.signal); err != nil {
		return Inspection[K, V]{}, err
	}
	return i.found, nil
}

// Read reads back everything that is programmed, also before Start: what a former process has left. It changes nothing.
func (l *Loop[K, V]) Read(ctx context.Context) (map[K]V, error) {
	i := &inspector[K, V]{done: make(chan error, 1), early: true}
	if err := l.inspectors.await(ctx, i, l.wake.signal); err != nil {
		return nil, err
	}
	return i.actual, nil
}

// inspect serves the waiting inspections. It runs after a pass, so that what waited before is committed.
func (l *Loop[K, V]) inspect(ctx context.Context) {
	waiting := l.inspectors.take()
	if len(waiting) == 0 {
		return
	}
	l.mu.Lock()
	started := l.started
	l.mu.Unlock()
	var actual map[K]V
	var found Inspection[K, V]
	var err error
	if started || slices.ContainsFunc(waiting, func(i *inspector[K, V]) bool { return i.early }) {
		actual, err = l.driver.engine.Read(ctx)
	}
	if started && err == nil {
		l.mu.Lock()
		found = l.state.compare(actual)
		l.mu.Unlock()
	}
	if len(found.Differences) > 0 {
		l.Resync() // the engine has read the foreign changes, and does not report them again
	}
	for _, i := range waiting {
		failure := err
		if !started && !i.early {
			failure = ErrNotStarted
		}
		if failure != nil {
			failure = fmt.Errorf("%s: reading back: %w", l.opts.Name, failure)
		}
		if i.found = found; i.early {
			i.actual = maps.Clone(actual)
		}
		i.done <- failure
	}
}

// compare returns how what was read differs from what is desired, including the seal.
func (s *state[K, V]) compare(actual map[K]V) Inspection[K, V] {
	union := s.desired.union()
	if s.makeSeal != nil {
		key, value := s.makeSeal(s.desired.hash)
		union[key] = value
	}
	found := Inspection[K, V]{Desired: len(union), Programmed: len(actual)}
	change := s.without(Diff(union, actual))
	for key, want := range change.Set {
		d := Difference[K, V]{Key: key, Want: want, Wanted: true}
		d.Have, d.Held = actual[key]
		found.Differences = s.difference(found.Differences, d)
	}
	for key, have := range change.Delete {
		found.Differences = s.difference(found.Differences, Difference[K, V]{Key: key, Have: have, Held: true})
	}
	return found
}

// difference appends a difference with its owners and, if known, the reason, unless it only waits for the next commit.
func (s *state[K, V]) difference(all []Difference[K, V], d Difference[K, V]) []Difference[K, V] {
	d.Owners = append(s.desired.ownersOf(d.Key), s.leaving[d.Key]...)
	for _, owner := range d.Owners {
		if d.Err = s.failures[owner]; d.Err != nil {
			break
		}
	}
	if _, dirty := s.dirty[d.Key]; dirty && d.Err == nil && len(d.Owners) > 0 {
		return all
	}
	return append(all, d)
}

// DryRun returns an engine that reads what engine reads, and whose commits do nothing and succeed. A loop on it runs as on engine itself;
// Inspect then returns what it would have committed.
func DryRun[K comparable, V any](engine Engine[K, V]) Engine[K, V] { return dryRun[K, V]{engine} }

type dryRun[K comparable, V any] struct{ Engine[K, V] }

// Commit implements Engine.
func (dryRun[K, V]) Commit(context.Context, Change[K, V]) error { return nil }
