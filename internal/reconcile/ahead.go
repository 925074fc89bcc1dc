package reconcile

// ahead is what the loop reads before Start, while the first state is still being gathered. Its user holds Loop.mu.
type ahead[K comparable, V any] struct {
	// early is what was read; nil if nothing was, or if it is outdated.
	early map[K]V
	// due says that such a read is due.
	due bool
	// outdated counts the events that outdate a read.
	outdated int
}

// outdate discards what was read, and the result of such a read in progress.
func (a *ahead[K, V]) outdate() {
	a.early = nil
	a.outdated++
}

// begin reports whether a read is due, which is not due any more then. outdated is the count to pass to keep.
func (a *ahead[K, V]) begin() (due bool, outdated int) {
	due, a.due = a.due, false
	return due, a.outdated
}

// keep stores what was read, unless an event since begin outdates it.
func (a *ahead[K, V]) keep(actual map[K]V, outdated int) {
	if a.outdated == outdated {
		a.early = actual
	}
}

// take returns what was read, once.
func (a *ahead[K, V]) take() map[K]V {
	early := a.early
	a.early = nil
	return early
}

// ReadAhead is called when the engine's changes begin to be watched. Before Start, it reads what is programmed at once, while the first state
// is still being gathered; Start reads again only after a Resync or Outdate. After Start, it does the same as Resync.
func (l *Loop[K, V]) ReadAhead() {
	l.mu.Lock()
	l.resync, l.ahead.due = true, !l.started
	l.ahead.outdate()
	l.mu.Unlock()
	l.wake.signal()
}

// Outdate discards what was read before Start: another engine's commit may have changed it, or the engine's connection has ended. After
// Start it does nothing.
func (l *Loop[K, V]) Outdate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead.outdate()
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
