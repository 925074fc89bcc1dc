package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Options of a Loop. The zero value is usable.
type Options[K comparable, V any] struct {
	// Name names the engine in logs and errors. Default "engine".
	Name string
	// Log gets what is not returned to a caller: failed retries, drift corrected. Default: discarded.
	Log *slog.Logger
	// Encode returns the bytes of an item that enter the state's hash. Nil: no hash is kept.
	Encode func(K, V) []byte
	// Seal, if not nil, returns an item that carries the hash of all the others. It is committed with every change after which the engine is
	// in step. It needs Encode.
	Seal func(Hash) (K, V)
	// Observe, if not nil, is called for each commit, and for each read that failed. It must not block.
	Observe func(Event)
	// Keep, if not nil, reports whether an item that was read back, and that no fragment has named, stays for now: its owner has not handed
	// over its state yet. When the result of Keep may have changed, call KeepChanged. Keep must not block.
	Keep func(K, V) bool
	// Settled, if not nil, is called when Status may have changed: at the end of each pass. It must not block.
	Settled func()
}

// Loop keeps one engine in step with the fragments of all owners. All methods may be called concurrently; only Run uses the engine, one
// call at a time. All changes that arrive during a commit go into the next commit together.
type Loop[K comparable, V Value[V]] struct {
	opts   Options[K, V]
	driver driver[K, V]
	wake   wake

	// mu guards what follows, as one: a caller's fragments and its wait enter together. It is never held during a call of the engine.
	mu      sync.Mutex
	state   state[K, V]
	ahead   ahead[K, V]
	waiters waiters
	// started says that the first state is complete, stopped that Run has ended, resync that the next pass reads back first.
	started, stopped, resync bool

	inspectors inspectors[K, V]
}

// NewLoop returns a loop for the engine. Nothing is read before Run, and nothing changed before Start.
func NewLoop[K comparable, V Value[V]](engine Engine[K, V], opts Options[K, V]) *Loop[K, V] {
	if opts.Name == "" {
		opts.Name = "engine"
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Loop[K, V]{
		opts: opts, driver: driver[K, V]{engine: engine, name: opts.Name, observe: opts.Observe}, wake: newWake(),
		state: newState(&opts), inspectors: inspectors[K, V]{name: opts.Name},
	}
}

// Start hands over the complete first state and starts the loop: it reads what is programmed, unless ReadAhead has, and commits the
// difference. Before Start, nothing is removed and nothing is opened; fragments set earlier are kept and are part of the first state. Start
// waits until the given owners are in step, also for an engine that cannot be reached yet (ErrUnavailable). Failure reports the result for
// owners that were set before.
func (l *Loop[K, V]) Start(ctx context.Context, fragments map[Owner]map[K]V) error {
	return l.apply(ctx, fragments, &waiter{patient: true})
}

// Apply replaces the fragments of the given owners (an empty fragment: the owner has nothing any more) and waits until they are in effect.
// The fragments stay desired, and are retried, also when an error is returned: a caller that gives up withdraws them with another Apply.
// The maps must not be changed afterwards.
func (l *Loop[K, V]) Apply(ctx context.Context, fragments map[Owner]map[K]V) error {
	return l.apply(ctx, fragments, &waiter{})
}

// Set is Apply without waiting: Failure reports the result.
func (l *Loop[K, V]) Set(fragments map[Owner]map[K]V) {
	_ = l.enqueue(nil, fragments) // fails only on a stopped loop, whose state is not used any more
}

// Verify reads back everything that is programmed, commits the difference, and returns how many items differed.
func (l *Loop[K, V]) Verify(ctx context.Context) (int, error) {
	w := &waiter{verify: true}
	err := l.apply(ctx, nil, w)
	return w.drift, err
}

func (l *Loop[K, V]) apply(ctx context.Context, fragments map[Owner]map[K]V, w *waiter) error {
	return submit(l, fragments, w)(ctx)
}

// Submit hands over fragments as Loop.Apply does, and returns the wait for them: a caller that holds a lock to hand over in order waits
// without it.
func Submit[K comparable, V Value[V]](l *Loop[K, V], fragments map[Owner]map[K]V) (wait func(ctx context.Context) error) {
	return submit(l, fragments, &waiter{})
}

func submit[K comparable, V Value[V]](l *Loop[K, V], fragments map[Owner]map[K]V, w *waiter) (wait func(ctx context.Context) error) {
	w.owners, w.done = slices.Collect(maps.Keys(fragments)), make(chan error, 1)
	if err := l.enqueue(w, fragments); err != nil {
		return func(context.Context) error { return err }
	}
	return func(ctx context.Context) error { return w.await(ctx, l.opts.Name) }
}

// Resync makes the loop read back everything before its next commit: after a reconnection, or when the engine reports a foreign change. It
// does not wait.
func (l *Loop[K, V]) Resync() {
	l.mu.Lock()
	l.resync = true
	l.ahead.outdate()
	l.mu.Unlock()
	l.wake.signal()
}

// Desired returns a copy of the desired state with the owners of each item.
func (l *Loop[K, V]) Desired() (map[K]V, map[K][]Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	desired := l.state.desired
	owners := make(map[K][]Owner, len(desired.claims))
	for key := range desired.claims {
		owners[key] = desired.ownersOf(key)
	}
	return desired.union(), owners
}

// Owners returns, sorted, the owners that desire something, and former owners whose items may still be programmed.
func (l *Loop[K, V]) Owners() []Owner {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.owners()
}

// enqueue hands over fragments, and the caller that waits for them, nil if none does.
func (l *Loop[K, V]) enqueue(w *waiter, fragments map[Owner]map[K]V) error {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return fmt.Errorf("%s: %w", l.opts.Name, ErrStopped)
	}
	l.state.replace(fragments)
	if w != nil {
		// In one step with the fragments: a pass in between would treat an unfinished first state as complete and remove the rest, or do the read
		// that a verification waits for without them.
		l.started = l.started || w.patient
		l.resync = l.resync || w.patient || w.verify
		if w.verify {
			l.ahead.outdate()
		}
		l.waiters = append(l.waiters, w)
	}
	l.mu.Unlock()
	l.wake.signal()
	return nil
}

// Run commits until ctx ends. What is programmed then stays programmed.
func (l *Loop[K, V]) Run(ctx context.Context) error {
	defer l.stop()
	for {
		retry := l.pass(ctx)
		if l.opts.Settled != nil {
			l.opts.Settled()
		}
		l.inspect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		l.wake.sleep(ctx, retry)
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (l *Loop[K, V]) stop() {
	l.mu.Lock()
	l.stopped = true
	for _, w := range l.waiters.take(true) {
		w.done <- fmt.Errorf("%s: %w", l.opts.Name, ErrStopped)
	}
	l.mu.Unlock()
	l.inspectors.stop()
}

// pass commits everything that waits. It returns true if something has to be retried.
func (l *Loop[K, V]) pass(ctx context.Context) (retry bool) {
	l.mu.Lock()
	if !l.started {
		due, outdated := l.ahead.begin()
		l.mu.Unlock()
		if due {
			l.readAhead(ctx, outdated)
		}
		return false
	}
	// Cleared first: a Resync that arrives during the read requests another read.
	resync, actual := l.resync, l.ahead.take()
	l.resync = false
	l.mu.Unlock()
	if resync && actual == nil {
		var err error
		if actual, err = l.driver.read(ctx); err != nil {
			return l.readFailed(ctx, err)
		}
	}
	l.mu.Lock()
	served := l.waiters.take(actual != nil && !l.resync) // a verification that arrived after the read: the next pass serves it
	change := l.state.take(actual)
	l.mu.Unlock()
	r := round[K, V]{due: &change, waiters: served, failed: map[K]error{}}
	if !change.change.Empty() {
		r.receipt = Receipt{Begin: time.Now(), Set: len(change.change.Set), Deleted: len(change.change.Delete), Requests: len(served)}
		r.failed = l.driver.commit(ctx, &change, func() []Change[K, V] {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.resync = true // the engine may have made the change and lost only the answer: the next pass reads its state
			return l.state.split(&change)
		})
		r.receipt.End = time.Now()
	}
	return l.finish(&r)
}

// readAhead reads what is programmed before Start. outdated is the count at its beginning. If the read fails, Start reads again, and reports
// the failure.
func (l *Loop[K, V]) readAhead(ctx context.Context, outdated int) {
	actual, err := l.driver.read(ctx)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead.keep(actual, outdated)
}

func (l *Loop[K, V]) readFailed(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	l.opts.Log.Warn("reading back failed, trying again", "engine", l.opts.Name, "error", err)
	l.driver.report(Event{Read: true, Err: err})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resync = true
	l.state.unreadable = fmt.Errorf("%s: reading back: %w", l.opts.Name, err)
	l.waiters.fail(l.state.unreadable)
	return true
}

// round is one pass of the loop.
type round[K comparable, V any] struct {
	*due[K, V]
	// waiters are the callers that it serves.
	waiters []*waiter
	receipt Receipt
	// failed are the keys that failed, with the reasons.
	failed map[K]error
}

// finish records what the round did and notifies the waiters. It returns true if another pass is due.
func (l *Loop[K, V]) finish(r *round[K, V]) (retry bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	broken := l.state.settle(r.due, r.failed)
	var first error
	for _, err := range r.failed {
		first = err
		break
	}
	for _, w := range r.waiters {
		verdict := first
		if !w.verify {
			verdict = l.state.verdict(l.opts.Name, w.owners, broken)
		}
		if w.staysFor(verdict) {
			l.waiters = append(l.waiters, w)
			continue
		}
		w.drift, w.receipt = r.drift.Items(), r.receipt
		w.done <- verdict
	}
	if first != nil {
		l.opts.Log.Warn("commit failed, trying again", "engine", l.opts.Name, "items", len(r.failed), "error", first)
	} else if r.drift.Items() > 0 {
		l.opts.Log.Warn("restored what another program changed", "engine", l.opts.Name, "items", r.drift.Items())
	}
	return len(r.failed) > 0 || l.resync // after an uncertain commit, read again even if all its parts succeeded
}
