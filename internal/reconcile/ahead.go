package reconcile

import "context"

// ReadAhead is called when the engine's changes begin to be watched. Before Start, it reads what is programmed at once, while the first state
// is still being gathered; Start reads again only after a Resync or Outdate. After Start, it does the same as Resync.
func (l *Loop[K, V]) ReadAhead() {
	l.mu.Lock()
	l.resync, l.ahead = true, !l.started
	l.outdate()
	l.mu.Unlock()
	l.signal()
}

// Outdate discards what was read before Start: another engine's commit may have changed it, or the engine's connection has ended. After
// Start it does nothing.
func (l *Loop[K, V]) Outdate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outdate()
}

// outdate discards what was read before Start, and the result of such a read in progress. The caller holds mu.
func (l *Loop[K, V]) outdate() {
	l.early = nil
	l.outdated++
}

// KeepChanged causes another pass, which calls Keep again. Before Start, Keep has not been called.
func (l *Loop[K, V]) KeepChanged() {
	l.mu.Lock()
	started := l.started
	l.mu.Unlock()
	if started {
		l.Resync()
	}
}

// readAhead reads what is programmed before Start. outdated is the count at its beginning. If the read fails, Start reads again, and reports
// the failure.
func (l *Loop[K, V]) readAhead(ctx context.Context, outdated int) {
	actual, err := l.read(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.outdated == outdated {
		l.early = actual
	}
}
