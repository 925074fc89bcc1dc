package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ErrNotStarted is returned by Inspect before Start: what is desired is not known yet.
var ErrNotStarted = errors.New("the desired state is not known yet")

// Status is how a loop stands.
type Status struct {
	// Started says that the first state was handed over.
	Started bool
	// Items counts what is desired.
	Items int
	// Waiting counts the items that are to be committed.
	Waiting int
	// Committed is when the last commit that changed something succeeded; zero: none has yet.
	Committed time.Time
	// Failures are the owners whose fragments are not in effect, and why; Unreadable stands for all of them.
	Failures map[Owner]error
}

// InStep reports whether everything desired is programmed, as far as is known without reading back.
func (s *Status) InStep() bool { return s.Started && s.Waiting == 0 && len(s.Failures) == 0 }

// Status returns how the loop stands. It asks the engine nothing.
func (l *Loop[K, V]) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	status := Status{
		Started: l.started, Items: len(l.desired.claims), Waiting: len(l.dirty), Committed: l.committed,
		Failures: maps.Clone(l.failures),
	}
	if l.unreadable != nil {
		status.Failures[Unreadable] = l.unreadable
	}
	return status
}

// Difference is one item that is programmed otherwise than it is desired.
type Difference[K comparable, V any] struct {
	// Key is the item's.
	Key K
	// Owners are who desires it, or did; empty: nobody known.
	Owners []Owner
	// Want is what is desired, if Wanted; Have is what was read, if Held.
	Want, Have   V
	Wanted, Held bool
	// Err is why it could not be committed, nil if that was not tried.
	Err error
}

// Inspection is what a verification without a commit found.
type Inspection[K comparable, V any] struct {
	// Desired and Programmed count the items.
	Desired, Programmed int
	// Differences are in no order.
	Differences []Difference[K, V]
}

// inspector is somebody who waits for an inspection.
type inspector[K comparable, V any] struct {
	done chan error
	// early asks for what is programmed and for nothing else, which is known before Start.
	early  bool
	found  Inspection[K, V]
	actual map[K]V
}

// Inspect reads back everything that is programmed and returns how it differs from what is desired. What waits for the next commit and
// has not failed is no difference. What differs is put back afterwards.
func (l *Loop[K, V]) Inspect(ctx context.Context) (Inspection[K, V], error) {
	i := &inspector[K, V]{done: make(chan error, 1)}
	if err := l.awaitInspection(ctx, i); err != nil {
		return Inspection[K, V]{}, err
	}
	return i.found, nil
}

// Read reads back everything that is programmed, also before Start: what a former life has left. Nothing changes.
func (l *Loop[K, V]) Read(ctx context.Context) (map[K]V, error) {
	i := &inspector[K, V]{done: make(chan error, 1), early: true}
	if err := l.awaitInspection(ctx, i); err != nil {
		return nil, err
	}
	return i.actual, nil
}

func (l *Loop[K, V]) awaitInspection(ctx context.Context, i *inspector[K, V]) error {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return fmt.Errorf("%s: %w", l.opts.Name, ErrStopped)
	}
	l.inspectors = append(l.inspectors, i)
	l.mu.Unlock()
	l.signal()
	select {
	case err := <-i.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting for the reading: %w", l.opts.Name, ctx.Err())
	}
}

// inspect serves those who wait for an inspection. It comes after a pass, so that what waited then is committed.
func (l *Loop[K, V]) inspect(ctx context.Context) {
	l.mu.Lock()
	waiting, started := l.inspectors, l.started
	l.inspectors = nil
	l.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	var actual map[K]V
	var found Inspection[K, V]
	var err error
	if started || slices.ContainsFunc(waiting, func(i *inspector[K, V]) bool { return i.early }) {
		actual, err = l.engine.Read(ctx)
	}
	if started && err == nil {
		found = l.compare(actual)
	}
	if len(found.Differences) > 0 {
		l.Resync() // the engine has read what others changed, and does not report that any more
	}
	for _, i := range waiting {
		told := err
		if !started && !i.early {
			told = ErrNotStarted
		}
		if told != nil {
			told = fmt.Errorf("%s: reading back: %w", l.opts.Name, told)
		}
		if i.found = found; i.early {
			i.actual = maps.Clone(actual)
		}
		i.done <- told
	}
}

// compare returns how what was read differs from what is desired, the seal included.
func (l *Loop[K, V]) compare(actual map[K]V) Inspection[K, V] {
	l.mu.Lock()
	defer l.mu.Unlock()
	union := l.desired.union()
	if l.opts.Seal != nil {
		key, value := l.opts.Seal(l.desired.hash)
		union[key] = value
	}
	found := Inspection[K, V]{Desired: len(union), Programmed: len(actual)}
	change := l.without(Diff(union, actual))
	for key, want := range change.Set {
		d := Difference[K, V]{Key: key, Want: want, Wanted: true}
		d.Have, d.Held = actual[key]
		found.Differences = l.told(found.Differences, d)
	}
	for key, have := range change.Delete {
		found.Differences = l.told(found.Differences, Difference[K, V]{Key: key, Have: have, Held: true})
	}
	return found
}

// told appends a difference with its owners and what is known of why, unless it only waits for the next commit.
func (l *Loop[K, V]) told(all []Difference[K, V], d Difference[K, V]) []Difference[K, V] {
	d.Owners = append(l.desired.ownersOf(d.Key), l.leaving[d.Key]...)
	for _, owner := range d.Owners {
		if d.Err = l.failures[owner]; d.Err != nil {
			break
		}
	}
	if _, dirty := l.dirty[d.Key]; dirty && d.Err == nil && len(d.Owners) > 0 {
		return all
	}
	return append(all, d)
}

// DryRun returns an engine that reads what engine reads, and whose commits do nothing and succeed. A loop on it goes
// through the same movement as on engine itself; Inspect then tells what it would have committed.
func DryRun[K comparable, V any](engine Engine[K, V]) Engine[K, V] { return dryRun[K, V]{engine} }

type dryRun[K comparable, V any] struct{ Engine[K, V] }

// Commit implements Engine.
func (dryRun[K, V]) Commit(context.Context, Change[K, V]) error { return nil }
