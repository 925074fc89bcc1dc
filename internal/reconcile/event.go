package reconcile

import (
	"context"
	"time"
)

// Event is what Options.Observe is told: a commit, or a reading that failed.
type Event struct {
	// Engine is Options.Name.
	Engine string
	// Read tells a reading that failed from a commit; then only Err has a value beside it.
	Read bool
	// Set and Deleted count the items of the change.
	Set, Deleted int
	// Drift counts what the change puts back.
	Drift Drift
	// Took is the time of the engine's Commit.
	Took time.Duration
	// Waited is the time from when the oldest of the change was handed over until the commit ended; zero for a change that
	// nobody asked for.
	Waited time.Duration
	// Err is what it ended with. A *PartialError says that everything but the items it names is in effect.
	Err error
}

// Drift counts the items that a read-back found other than they were left, by what had become of them.
type Drift struct {
	// Missing are gone, Altered are there with another value, Stray are nobody's.
	Missing, Altered, Stray int
}

// Items counts them all.
func (d Drift) Items() int { return d.Missing + d.Altered + d.Stray }

// Receipt is about the commit that an Apply waited for: several requests may share one.
type Receipt struct {
	// Begin and End are when the engine was busy with it. Both are zero when nothing had to be done.
	Begin, End time.Time
	// Set and Deleted count the items of the whole change, Requests those who waited for it.
	Set, Deleted, Requests int
}

// receiptKey is the key of who wants receipts in a context.
type receiptKey struct{}

// WithReceipt returns a context for Apply, Start and Verify: they call take, on the caller's goroutine, with what there is
// to know of the commit that they waited for.
func WithReceipt(ctx context.Context, take func(Receipt)) context.Context {
	return context.WithValue(ctx, receiptKey{}, take)
}

func tell(ctx context.Context, receipt Receipt) {
	if take, ok := ctx.Value(receiptKey{}).(func(Receipt)); ok && !receipt.Begin.IsZero() {
		take(receipt)
	}
}

// Programmed counts what the engine holds, as far as is known, by class.
func (l *Loop[K, V]) Programmed(class func(K) string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[string]int{}
	for key := range l.actual {
		counts[class(key)]++
	}
	return counts
}
