package reconcile

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"
)

// driver calls the engine, and reports each call to Options.Observe. Only Run calls it; committed may be read concurrently.
type driver[K comparable, V any] struct {
	engine  Engine[K, V]
	name    string
	observe func(Event)
	// committed is when the engine was last changed; nil if it never was.
	committed atomic.Pointer[time.Time]
}

// read returns what is programmed. The map is not nil unless the read fails.
func (d *driver[K, V]) read(ctx context.Context) (map[K]V, error) {
	actual, err := d.engine.Read(ctx)
	if err == nil && actual == nil {
		actual = map[K]V{}
	}
	return actual, err
}

// commit commits the change and returns the keys that failed. A failure that names no keys is narrowed down by committing each owner's part
// alone, so that one bad object never blocks the others. split returns these parts; it is called when the state of the engine is uncertain.
func (d *driver[K, V]) commit(ctx context.Context, c *due[K, V], split func() []Change[K, V]) map[K]error {
	err := d.commitOnce(ctx, c.change, c)
	if err == nil {
		return nil
	}
	if partial, ok := errors.AsType[*PartialError[K]](err); ok {
		return partial.Failed // the other keys are known to be in effect
	}
	parts := split()
	if len(parts) <= 1 || errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
		return failAll(c.change, err)
	}
	failed := map[K]error{}
	for _, part := range parts {
		if err := d.commitOnce(ctx, part, &due[K, V]{since: c.since}); err != nil {
			maps.Copy(failed, failAll(part, err))
		}
	}
	if c.seal != nil {
		failed[*c.seal] = err // sealed once everything is in step
	}
	return failed
}

// commitOnce commits a change, which is all of c or a part of it, and reports it.
func (d *driver[K, V]) commitOnce(ctx context.Context, change Change[K, V], c *due[K, V]) error {
	begin := time.Now()
	err := d.engine.Commit(ctx, change)
	end := time.Now()
	event := Event{Set: len(change.Set), Deleted: len(change.Delete), Drift: c.drift, Took: end.Sub(begin), Err: err}
	if !c.since.IsZero() {
		event.Waited = end.Sub(c.since)
	}
	if err == nil {
		d.committed.Store(&end)
	}
	d.report(event)
	return err
}

// report calls Options.Observe.
func (d *driver[K, V]) report(event Event) {
	if d.observe != nil {
		event.Engine = d.name
		d.observe(event)
	}
}

// lastCommit returns when the engine was last changed; zero if it never was.
func (d *driver[K, V]) lastCommit() time.Time {
	if at := d.committed.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

func failAll[K comparable, V any](change Change[K, V], err error) map[K]error {
	failed := make(map[K]error, len(change.Set)+len(change.Delete))
	for _, side := range []map[K]V{change.Set, change.Delete} {
		for key := range side {
			failed[key] = err
		}
	}
	return failed
}
