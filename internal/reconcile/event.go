package reconcile

import (
	"context"
	"time"
)

// Event is the argument of Options.Observe: a commit, or a read that failed.
type Event struct {
	// Engine is Options.Name.
	Engine string
	// Read is set for a read that failed; then only Engine and Err have a value.
	Read bool
	// Set and Deleted count the items of the change.
	Set, Deleted int
	// Drift counts the foreign changes that this commit reverts.
	Drift Drift
	// Took is the duration of the engine's Commit.
	Took time.Duration
	// Waited is the time from when the oldest item of the change was handed over until the commit ended. It is zero for a change that no
	// caller requested.
	Waited time.Duration
	// Err is the commit's error. A *PartialError says that everything but the items it names is in effect.
	Err error
}

// Drift counts the items that a read-back found different from the programmed ones, by kind of difference.
type Drift struct {
	// Missing items do not exist any more, Altered ones have another value, Stray ones have no owner.
	Missing, Altered, Stray int
}

// Items counts them all.
func (d Drift) Items() int { return d.Missing + d.Altered + d.Stray }

// Receipt describes the commit that an Apply waited for. Several requests may share one commit.
type Receipt struct {
	// Begin and End are the start and end of the commit. Both are zero if there was nothing to do.
	Begin, End time.Time
	// Set and Deleted count the items of the whole change, Requests the callers that waited for it.
	Set, Deleted, Requests int
}

// receiptKey is the context key of WithReceipt.
type receiptKey struct{}

// WithReceipt returns a context for Apply, Start and Verify: they call take, on the caller's goroutine, with the receipt of the commit that
// they waited for.
func WithReceipt(ctx context.Context, take func(Receipt)) context.Context {
	return context.WithValue(ctx, receiptKey{}, take)
}

func deliver(ctx context.Context, receipt Receipt) {
	if take, ok := ctx.Value(receiptKey{}).(func(Receipt)); ok && !receipt.Begin.IsZero() {
		take(receipt)
	}
}

// Programmed counts the items that the engine holds, by class, as of the last read and commit.
func (l *Loop[K, V]) Programmed(class func(K) string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[string]int{}
	for key := range l.state.actual {
		counts[class(key)]++
	}
	return counts
}
