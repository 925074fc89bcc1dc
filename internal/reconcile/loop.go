package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Delays between retries of a failed commit: doubled from firstRetry to lastRetry, then constant.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
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
	engine Engine[K, V]
	opts   Options[K, V]
	wake   chan struct{}

	// mu guards what follows. It is never held during a call of the engine.
	mu      sync.Mutex
	desired *desired[K, V]
	actual  map[K]V
	dirty   map[K]struct{}
	// leaving holds the owners that withdrew a key that may still be programmed for them.
	leaving  map[K][]Owner
	failures map[Owner]error
	waiters  []*waiter
	started  bool
	// since is when the oldest waiting change was handed over; zero if none waits.
	since time.Time
	// unreadable is why the last read failed; nil if it succeeded.
	unreadable error
	resync     bool
	// early is what was read before Start; nil if nothing was, or if it is outdated. ahead says that such a read is due. outdated counts the
	// events that outdate one.
	early    map[K]V
	ahead    bool
	outdated int
	stopped  bool
	// committed is when the engine was last changed.
	committed  time.Time
	inspectors []*inspector[K, V]
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
		engine: engine, opts: opts, wake: make(chan struct{}, 1),
		desired: newDesired(opts.Encode), dirty: map[K]struct{}{}, leaving: map[K][]Owner{}, failures: map[Owner]error{},
	}
}

// Start hands over the complete first state and starts the loop: it reads what is programmed, unless ReadAhead has, and commits the
// difference. Before Start, nothing is removed and nothing is opened; fragments set earlier are kept and are part of the first state. Start
// waits until the given owners are in step, also for an engine that cannot be reached yet (ErrUnavailable). Failure reports the result for
// owners that were set before.
func (l *Loop[K, V]) Start(ctx context.Context, fragments map[Owner]map[K]V) error {
	return l.apply(ctx, fragments, true)
}

// Apply replaces the fragments of the given owners (an empty fragment: the owner has nothing any more) and waits until they are in effect.
// The fragments stay desired, and are retried, also when an error is returned: a caller that gives up withdraws them with another Apply.
// The maps must not be changed afterwards.
func (l *Loop[K, V]) Apply(ctx context.Context, fragments map[Owner]map[K]V) error {
	return l.apply(ctx, fragments, false)
}

func (l *Loop[K, V]) apply(ctx context.Context, fragments map[Owner]map[K]V, patient bool) error {
	w := &waiter{patient: patient, done: make(chan error, 1)}
	for owner := range fragments {
		w.owners = append(w.owners, owner)
	}
	if err := l.enqueue(w, fragments); err != nil {
		return err
	}
	return l.await(ctx, w)
}

// Set is Apply without waiting: Failure reports the result.
func (l *Loop[K, V]) Set(fragments map[Owner]map[K]V) {
	_ = l.enqueue(nil, fragments) // fails only on a stopped loop, whose state is not used any more
}

// Verify reads back everything that is programmed, commits the difference, and returns how many items differed.
func (l *Loop[K, V]) Verify(ctx context.Context) (int, error) {
	w := &waiter{verify: true, done: make(chan error, 1)}
	if err := l.enqueue(w, nil); err != nil {
		return 0, err
	}
	err := l.await(ctx, w)
	return w.drift, err
}

// Resync makes the loop read back everything before its next commit: after a reconnection, or when the engine reports a foreign change. It
// does not wait.
func (l *Loop[K, V]) Resync() {
	l.mu.Lock()
	l.resync = true
	l.outdate()
	l.mu.Unlock()
	l.signal()
}

// Hash returns the hash of the desired state.
func (l *Loop[K, V]) Hash() Hash {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.desired.hash
}

// Desired returns a copy of the desired state with the owners of each item.
func (l *Loop[K, V]) Desired() (map[K]V, map[K][]Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	owners := make(map[K][]Owner, len(l.desired.claims))
	for key := range l.desired.claims {
		owners[key] = l.desired.ownersOf(key)
	}
	return l.desired.union(), owners
}

func (l *Loop[K, V]) enqueue(w *waiter, fragments map[Owner]map[K]V) error {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return fmt.Errorf("%s: %w", l.opts.Name, ErrStopped)
	}
	l.replace(fragments)
	if w != nil {
		// In one step with the fragments: a pass in between would treat an unfinished first state as complete and remove the rest, or do the read
		// that a verification waits for without them.
		l.started = l.started || w.patient
		l.resync = l.resync || w.patient || w.verify
		if w.verify {
			l.outdate()
		}
		l.waiters = append(l.waiters, w)
	}
	if len(l.dirty) > 0 && l.since.IsZero() {
		l.since = time.Now()
	}
	l.mu.Unlock()
	l.signal()
	return nil
}

// replace stores the fragments. The caller holds mu.
func (l *Loop[K, V]) replace(fragments map[Owner]map[K]V) {
	for owner, fragment := range fragments {
		l.desired.set(owner, fragment, func(key K) {
			l.dirty[key] = struct{}{}
			l.leaving[key] = slices.DeleteFunc(l.leaving[key], func(o Owner) bool { return o == owner })
			if _, kept := fragment[key]; !kept {
				l.leaving[key] = append(l.leaving[key], owner)
			}
		})
	}
}

func (l *Loop[K, V]) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// Run commits until ctx ends. What is programmed then stays programmed.
func (l *Loop[K, V]) Run(ctx context.Context) error {
	defer l.stop()
	delay := firstRetry
	for {
		retry := l.pass(ctx)
		if l.opts.Settled != nil {
			l.opts.Settled()
		}
		l.inspect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !retry {
			delay = firstRetry
		}
		expired := l.sleep(ctx, retry, delay)
		if ctx.Err() != nil {
			return nil
		}
		if expired {
			delay = min(2*delay, lastRetry)
		}
	}
}

// sleep waits for work, or, if a retry is due, at most for the delay: it returns true when the delay is over.
func (l *Loop[K, V]) sleep(ctx context.Context, retry bool, delay time.Duration) (expired bool) {
	var timeout <-chan time.Time
	if retry {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ctx.Done():
	case <-l.wake:
	case <-timeout:
		expired = true
	}
	return expired
}

func (l *Loop[K, V]) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for _, w := range l.waiters {
		w.done <- fmt.Errorf("%s: %w", l.opts.Name, ErrStopped)
	}
	l.waiters = nil
	for _, i := range l.inspectors {
		i.done <- fmt.Errorf("%s: %w", l.opts.Name, ErrStopped)
	}
	l.inspectors = nil
}

// round is one pass of the loop.
type round[K comparable, V any] struct {
	waiters []*waiter
	change  Change[K, V]
	// drift counts the differences that a read-back found, without those that were waiting for a commit.
	drift Drift
	// seal is the key of the sealing item in change.
	seal *K
	// since is when the oldest item of the change was handed over; zero if none was.
	since   time.Time
	receipt Receipt
}

// pass commits everything that waits. It returns true if something has to be retried.
func (l *Loop[K, V]) pass(ctx context.Context) (retry bool) {
	l.mu.Lock()
	if !l.started {
		due, outdated := l.ahead, l.outdated
		l.ahead = false
		l.mu.Unlock()
		if due {
			l.readAhead(ctx, outdated)
		}
		return false
	}
	// Cleared first: a Resync that arrives during the read requests another read.
	resync, actual := l.resync, l.early
	l.resync, l.early = false, nil
	l.mu.Unlock()
	if resync && actual == nil {
		var err error
		if actual, err = l.read(ctx); err != nil {
			return l.readFailed(ctx, err)
		}
	}
	r := l.take(actual)
	failed := map[K]error{}
	if !r.change.Empty() {
		r.receipt = Receipt{Begin: time.Now(), Set: len(r.change.Set), Deleted: len(r.change.Delete), Requests: len(r.waiters)}
		failed = l.commit(ctx, r)
		r.receipt.End = time.Now()
	}
	return l.finish(r, failed)
}

// read returns what is programmed. The map is not nil unless the read fails.
func (l *Loop[K, V]) read(ctx context.Context) (map[K]V, error) {
	actual, err := l.engine.Read(ctx)
	if err == nil && actual == nil {
		actual = map[K]V{}
	}
	return actual, err
}

func (l *Loop[K, V]) readFailed(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	l.opts.Log.Warn("reading back failed, trying again", "engine", l.opts.Name, "error", err)
	l.observe(Event{Read: true, Err: err})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resync = true
	l.unreadable = fmt.Errorf("%s: reading back: %w", l.opts.Name, err)
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		if w.patient && errors.Is(err, ErrUnavailable) {
			return false
		}
		w.done <- l.unreadable
		return true
	})
	return true
}

// take computes the change that is due. actual, if not nil, was just read back and replaces the known state.
func (l *Loop[K, V]) take(actual map[K]V) round[K, V] {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := round[K, V]{change: Change[K, V]{Set: map[K]V{}, Delete: map[K]V{}}}
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		if w.verify && (actual == nil || l.resync) {
			return false // it arrived after the read: the next pass serves it
		}
		r.waiters = append(r.waiters, w)
		return true
	})
	first := l.actual == nil
	if actual != nil {
		l.actual, l.unreadable = actual, nil
		all := l.without(Diff(l.desired.union(), actual))
		r.drift = l.strays(all)
		r.change = all
		if first {
			r.drift = Drift{} // the first read finds what a former process left: that is normal, not a foreign change
		}
	}
	for key := range l.dirty {
		l.diffKey(key, &r.change)
	}
	l.dirty = map[K]struct{}{}
	r.since, l.since = l.since, time.Time{}
	l.seal(&r)
	return r
}

// without returns a change without the removal of kept items. The caller holds mu.
func (l *Loop[K, V]) without(all Change[K, V]) Change[K, V] {
	if l.opts.Keep != nil {
		maps.DeleteFunc(all.Delete, func(key K, have V) bool { return len(l.leaving[key]) == 0 && l.opts.Keep(key, have) })
	}
	return all
}

// strays counts the differences that no pending change explains.
func (l *Loop[K, V]) strays(all Change[K, V]) Drift {
	var drift Drift
	foreign := func(key K) bool {
		_, waiting := l.dirty[key]
		return !waiting && !l.isSeal(key)
	}
	for key := range all.Set {
		_, held := l.actual[key]
		switch {
		case !foreign(key):
		case held:
			drift.Altered++
		default:
			drift.Missing++
		}
	}
	for key := range all.Delete {
		if foreign(key) {
			drift.Stray++
		}
	}
	return drift
}

func (l *Loop[K, V]) diffKey(key K, change *Change[K, V]) {
	want, wanted := l.desired.get(key)
	have, held := l.actual[key]
	switch {
	case wanted && (!held || !want.Equal(have)):
		change.Set[key] = want
	case !wanted && held:
		change.Delete[key] = have
	default:
		delete(l.leaving, key)
	}
}

// commit commits the round's change and returns the keys that failed. A failure that names no keys is narrowed down by committing each
// owner's part alone, so that one bad object never blocks the others.
func (l *Loop[K, V]) commit(ctx context.Context, r round[K, V]) map[K]error {
	err := l.commitOnce(ctx, r.change, r)
	if err == nil {
		return nil
	}
	if partial, ok := errors.AsType[*PartialError[K]](err); ok {
		return partial.Failed // the other keys are known to be in effect
	}
	// The engine may have made the change and lost only the answer: read its state again.
	l.mu.Lock()
	l.resync = true
	l.mu.Unlock()
	parts := l.split(r)
	if len(parts) <= 1 || errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
		return failAll(r.change, err)
	}
	failed := map[K]error{}
	for _, part := range parts {
		if err := l.commitOnce(ctx, part, round[K, V]{since: r.since}); err != nil {
			maps.Copy(failed, failAll(part, err))
		}
	}
	if r.seal != nil {
		failed[*r.seal] = err // sealed once everything is in step
	}
	return failed
}

// commitOnce commits a change of the round and calls Observe.
func (l *Loop[K, V]) commitOnce(ctx context.Context, change Change[K, V], r round[K, V]) error {
	begin := time.Now()
	err := l.engine.Commit(ctx, change)
	end := time.Now()
	event := Event{Set: len(change.Set), Deleted: len(change.Delete), Drift: r.drift, Took: end.Sub(begin), Err: err}
	if !r.since.IsZero() {
		event.Waited = end.Sub(r.since)
	}
	if err == nil {
		l.mu.Lock()
		l.committed = end
		l.mu.Unlock()
	}
	l.observe(event)
	return err
}

func (l *Loop[K, V]) observe(event Event) {
	if l.opts.Observe != nil {
		event.Engine = l.opts.Name
		l.opts.Observe(event)
	}
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

// split divides a round's change by owner: an item that is set belongs to its owner, an item that is deleted to its former owner. Items
// without an owner are a part of their own.
func (l *Loop[K, V]) split(r round[K, V]) []Change[K, V] {
	l.mu.Lock()
	defer l.mu.Unlock()
	byOwner := map[Owner]Change[K, V]{}
	part := func(owners []Owner) Change[K, V] {
		var owner Owner
		if len(owners) > 0 {
			owner = owners[0]
		}
		if _, ok := byOwner[owner]; !ok {
			byOwner[owner] = Change[K, V]{Set: map[K]V{}, Delete: map[K]V{}}
		}
		return byOwner[owner]
	}
	for key, value := range r.change.Set {
		if r.seal == nil || key != *r.seal {
			part(l.desired.ownersOf(key)).Set[key] = value
		}
	}
	for key, value := range r.change.Delete {
		part(l.leaving[key]).Delete[key] = value
	}
	parts := make([]Change[K, V], 0, len(byOwner))
	for _, owner := range slices.Sorted(maps.Keys(byOwner)) {
		parts = append(parts, byOwner[owner])
	}
	return parts
}

// finish records what the round did and notifies the waiters. It returns true if another pass is due.
func (l *Loop[K, V]) finish(r round[K, V], failed map[K]error) (retry bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	broken := map[Owner]error{}
	l.settle(r, failed, broken)
	l.refreshFailures(broken)
	var first error
	for _, err := range failed {
		first = err
		break
	}
	for _, w := range r.waiters {
		verdict := l.verdict(w, broken, first)
		if w.patient && errors.Is(verdict, ErrUnavailable) {
			l.waiters = append(l.waiters, w)
			continue
		}
		w.drift, w.receipt = r.drift.Items(), r.receipt
		w.done <- verdict
	}
	if first != nil {
		if !r.since.IsZero() && (l.since.IsZero() || r.since.Before(l.since)) {
			l.since = r.since // it still waits
		}
		l.opts.Log.Warn("commit failed, trying again", "engine", l.opts.Name, "items", len(failed), "error", first)
	} else if r.drift.Items() > 0 {
		l.opts.Log.Warn("restored what another program changed", "engine", l.opts.Name, "items", r.drift.Items())
	}
	return len(failed) > 0 || l.resync // after an uncertain commit, read again even if all its parts succeeded
}

// settle updates the known state with what was committed, and collects the owners of what was not.
func (l *Loop[K, V]) settle(r round[K, V], failed map[K]error, broken map[Owner]error) {
	fail := func(key K, err error) {
		l.dirty[key] = struct{}{}
		for _, owner := range append(l.desired.ownersOf(key), l.leaving[key]...) {
			broken[owner] = err
		}
	}
	for key, value := range r.change.Set {
		if err, bad := failed[key]; bad {
			fail(key, err)
			continue
		}
		l.actual[key] = value
		l.left(key)
	}
	for key := range r.change.Delete {
		if err, bad := failed[key]; bad {
			fail(key, err)
			continue
		}
		delete(l.actual, key)
		l.left(key)
	}
}

// left deletes the former owners of a key, unless one withdrew it after the change was computed.
func (l *Loop[K, V]) left(key K) {
	if _, again := l.dirty[key]; !again {
		delete(l.leaving, key)
	}
}

// verdict is a waiter's result: the failure of one of its owners, or the conflict about one of its keys.
func (l *Loop[K, V]) verdict(w *waiter, broken map[Owner]error, first error) error {
	if w.verify {
		return first
	}
	for _, owner := range w.owners {
		if err := broken[owner]; err != nil {
			return fmt.Errorf("%s: %s: %w", l.opts.Name, owner, err)
		}
		if err := l.desired.conflict(owner); err != nil {
			return fmt.Errorf("%s: %w", l.opts.Name, err)
		}
	}
	return nil
}
