package resolver

import (
	"container/heap"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Defaults of Options.
const (
	// DefaultMinTTL bounds how often a name with a short TTL is queried.
	DefaultMinTTL = 5 * time.Second
	// DefaultMaxTTL is the longest time an answer is used.
	DefaultMaxTTL = 30 * time.Minute
	// DefaultMaxNegativeTTL is the longest time the answer is used that a name has no addresses.
	DefaultMaxNegativeTTL = 30 * time.Second
	// DefaultQuestions is how many names are queried concurrently.
	DefaultQuestions = 16
	// DefaultRest is the minimum time between two writes of the file.
	DefaultRest = 5 * time.Second
)

// unproven limits the concurrent queries for names whose last query had no answer, or that were never queried: one in this number. Each of
// them may take as long as a Lookup lasts. With this limit, the other names do not wait for them, however many they are.
const unproven = 4

// Delay before the retry of a name that cannot be resolved. It doubles from the first to the last value.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// maxDoublings prevents an overflow of the Duration.
	maxDoublings = 10
)

// Lookup resolves a name: Client.Lookup.
type Lookup func(ctx context.Context, name string) (Answer, error)

// Clock is the source of time.
type Clock interface {
	Now() time.Time
	// At returns a channel that receives a value at the given time, and a function that stops the waiting.
	At(t time.Time) (due <-chan time.Time, stop func())
}

// Options are the options of Names.
type Options struct {
	// Lookup resolves a name. Required.
	Lookup Lookup
	// Changed is called when the addresses of a name have changed, when a name can no longer be resolved, and when it can again. It must not
	// block. Required.
	Changed func()
	// File stores the addresses. Empty: they are not stored.
	File string
	// MinTTL, MaxTTL and MaxNegativeTTL bound how long an answer is used. Zero: the defaults.
	MinTTL, MaxTTL, MaxNegativeTTL time.Duration
	// Questions is how many names are queried concurrently. At most a quarter of them are names whose last query had no answer. Zero:
	// DefaultQuestions.
	Questions int
	// Rest is the minimum time between two writes of the file, except at the end; a tenth of it if a name has its first answer. Zero:
	// DefaultRest.
	Rest time.Duration
	// Clock is the source of time. Nil: the system's clock.
	Clock Clock
	// Log receives failures that no caller gets. Nil: discarded.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	for value, fallback := range map[*time.Duration]time.Duration{
		&o.MinTTL: DefaultMinTTL, &o.MaxTTL: DefaultMaxTTL, &o.MaxNegativeTTL: DefaultMaxNegativeTTL,
		&o.Rest: DefaultRest,
	} {
		if *value == 0 {
			*value = fallback
		}
	}
	if o.Questions == 0 {
		o.Questions = DefaultQuestions
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// systemClock is the system's clock.
type systemClock struct{}

// Now implements Clock.
func (systemClock) Now() time.Time { return time.Now() }

// At implements Clock.
func (systemClock) At(t time.Time) (due <-chan time.Time, stop func()) {
	timer := time.NewTimer(time.Until(t))
	return timer.C, func() { timer.Stop() }
}

// Names keeps names resolved. All methods may be called concurrently.
type Names struct {
	opts Options
	wake chan struct{}
	// answers carries the results of queries to Run.
	answers chan result

	mu     sync.Mutex
	wanted map[string]*name
	// answered has the names whose last query was answered, others has all others.
	answered, others line
	// restored is the content of the file, until the first call of Want.
	restored map[string][]netip.Addr
	// changed has the names whose State has changed since Take was last called.
	changed map[string]struct{}
	// unsaved says that the file is outdated, unheard that it lacks a name that was answered. saved is when it was last written.
	unsaved, unheard bool
	saved            time.Time
}

// name is a name that is kept resolved.
type name struct {
	text  string
	state State
	// due is when it is queried next. turn is its place among the names that are due at the same time.
	due  time.Time
	turn int
	// failures counts the failed queries since the last answer. answered says that the last query was answered.
	failures int
	answered bool
	// at is its index in its line's queue; -1: a query is under way.
	at int
}

// line is a group of names that share a limit of concurrent queries.
type line struct {
	// queue has the names without a query under way, ordered by when they are due.
	queue queue
	// asking is the number of queries under way, most its limit.
	asking, most int
}

// queue is a heap of names; the first one due is on top.
type queue []*name

// Len implements heap.Interface, as do the others.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q queue) Less(i, j int) bool {
	return q[i].due.Before(q[j].due) || q[i].due.Equal(q[j].due) && q[i].turn < q[j].turn
}

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	last := x.(*name) //nolint:forcetypeassert // nothing else is pushed
	last.at = len(*q)
	*q = append(*q, last)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	last.at = -1
	return last
}

// line returns the line of a name.
func (n *Names) line(of *name) *line {
	if of.answered {
		return &n.answered
	}
	return &n.others
}

// State is what is known about a name.
type State struct {
	// Addrs are its addresses of both families, sorted. Known says that there was an answer.
	Addrs []netip.Addr
	Known bool
	// Err is why the last query failed; nil: it succeeded.
	Err error
}

// result is the result of a query.
type result struct {
	of *name
	// place is the line in which the query was counted.
	place  *line
	answer Answer
	err    error
}

// NewNames returns Names without any wanted name. It loads the file.
func NewNames(opts Options) *Names {
	n := &Names{
		opts: opts.withDefaults(), wake: make(chan struct{}, 1), answers: make(chan result),
		wanted: map[string]*name{}, changed: map[string]struct{}{},
	}
	n.answered.most, n.others.most = n.opts.Questions, max(1, n.opts.Questions/unproven)
	var err error
	if n.restored, err = load(n.opts.File); err != nil {
		n.opts.Log.Warn("DNS cache file unreadable: resolving all names again", "file", n.opts.File, "error", err)
	}
	return n
}

// Want sets the names that are kept resolved from now on: those in the list, and no others. New names are queried in the order of the list.
func (n *Names) Want(list []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	keep := make(map[string]struct{}, len(list))
	for turn, text := range list {
		keep[text] = struct{}{}
		if of := n.wanted[text]; of != nil {
			of.turn = turn
			continue
		}
		fresh := &name{text: text, turn: turn}
		if addrs, known := n.restored[text]; known {
			fresh.state = State{Addrs: addrs, Known: true}
			n.changed[text] = struct{}{}
		}
		n.wanted[text] = fresh
		heap.Push(&n.others.queue, fresh)
	}
	for text, of := range n.wanted {
		if _, kept := keep[text]; !kept {
			if of.at >= 0 {
				heap.Remove(&n.line(of).queue, of.at)
			}
			delete(n.wanted, text)
			n.changed[text] = struct{}{}
			n.unsaved = true
		}
	}
	heap.Init(&n.answered.queue) // order by the new turns
	heap.Init(&n.others.queue)
	n.unsaved = n.unsaved || len(n.restored) > 0
	n.restored = nil
	n.wakeUp()
}

// State returns what is known about a name.
func (n *Names) State(text string) State {
	n.mu.Lock()
	defer n.mu.Unlock()
	if of := n.wanted[text]; of != nil {
		return of.state
	}
	return State{}
}

// Take returns the names whose State has changed since the last Take, sorted.
func (n *Names) Take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := slices.Sorted(maps.Keys(n.changed))
	clear(n.changed)
	return list
}

func (n *Names) wakeUp() {
	select {
	case n.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// Run queries names until ctx ends.
func (n *Names) Run(ctx context.Context) error {
	defer n.save()
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		next := n.begin(func(of *name, place *line) {
			asking.Go(func() { n.ask(ctx, of, place) })
		})
		due, stopDue := n.at(next)
		save, stopSave := n.at(n.saveAt())
		notify := false
		select {
		case <-ctx.Done():
			stopDue()
			stopSave()
			return nil
		case <-n.wake:
		case <-due:
		case <-save:
		case r := <-n.answers:
			notify = n.settle(r)
		}
		stopDue()
		stopSave()
		if at := n.saveAt(); !at.IsZero() && !at.After(n.opts.Clock.Now()) {
			n.save() // before Changed can have an effect
		}
		if notify {
			n.opts.Changed()
		}
	}
}

// at returns a channel that receives a value at the given time; zero: never.
func (n *Names) at(t time.Time) (due <-chan time.Time, stop func()) {
	if t.IsZero() {
		return nil, func() {}
	}
	return n.opts.Clock.At(t)
}

// begin starts queries for the names that are due, within the limits. It returns when the next name is due; zero: not before an answer
// comes.
func (n *Names) begin(ask func(*name, *line)) (next time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.opts.Clock.Now()
	for _, l := range []*line{&n.answered, &n.others} {
		for len(l.queue) > 0 && l.asking < l.most && n.answered.asking+n.others.asking < n.opts.Questions {
			first := l.queue[0]
			if first.due.After(now) {
				if next.IsZero() || first.due.Before(next) {
					next = first.due
				}
				break
			}
			heap.Pop(&l.queue)
			l.asking++
			ask(first, l)
		}
	}
	return next
}

func (n *Names) ask(ctx context.Context, of *name, place *line) {
	answer, err := n.opts.Lookup(ctx, of.text)
	select {
	case n.answers <- result{of, place, answer, err}:
	case <-ctx.Done():
	}
}

// settle records the result of a query, and of those that ended meanwhile, and reports whether Changed has to be called.
func (n *Names) settle(r result) (notify bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.opts.Clock.Now()
	for {
		r.place.asking--
		notify = n.take(r, now) || notify
		select {
		case r = <-n.answers:
		default:
			return notify
		}
	}
}

// take records the result of a query, and reports whether State has changed. The caller holds mu.
func (n *Names) take(r result, now time.Time) bool {
	of := r.of
	if n.wanted[of.text] != of { // not wanted any more
		return false
	}
	notify := (r.err == nil) != (of.state.Err == nil)
	if r.err != nil {
		of.state.Err = r.err
		of.due = now.Add(min(firstRetry<<min(of.failures, maxDoublings), lastRetry))
		of.failures++
	} else {
		if !of.state.Known || !slices.Equal(ipv4(of.state.Addrs), ipv4(r.answer.Addrs)) {
			notify, n.unsaved, n.unheard = true, true, n.unheard || !of.state.Known
		}
		of.state = State{Addrs: r.answer.Addrs, Known: true}
		of.due, of.failures = now.Add(n.lasts(r.answer)), 0
	}
	of.answered = r.err == nil
	heap.Push(&n.line(of).queue, of)
	if notify {
		n.changed[of.text] = struct{}{}
	}
	return notify
}

// ipv4 returns the addresses whose changes are reported. IPv6 addresses may be missing in an answer, and nothing uses them yet. They are
// sorted last.
func ipv4(addrs []netip.Addr) []netip.Addr {
	for i, addr := range addrs {
		if !addr.Is4() {
			return addrs[:i]
		}
	}
	return addrs
}

// lasts returns how long an answer is used.
func (n *Names) lasts(a Answer) time.Duration {
	most := n.opts.MaxTTL
	if len(a.Addrs) == 0 {
		most = n.opts.MaxNegativeTTL
	}
	return max(n.opts.MinTTL, min(a.TTL, most))
}

// saveAt returns when the file is to be written; zero: it is up to date.
func (n *Names) saveAt() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !n.unsaved || n.opts.File == "":
		return time.Time{}
	case n.saved.IsZero():
		return n.opts.Clock.Now()
	}
	if n.unheard { // without the first answer in the file, a crash would close the namespace
		return n.saved.Add(n.opts.Rest / 10)
	}
	return n.saved.Add(n.opts.Rest)
}

// save writes the file if it is outdated.
func (n *Names) save() {
	n.mu.Lock()
	if !n.unsaved || n.opts.File == "" {
		n.mu.Unlock()
		return
	}
	n.unsaved, n.unheard, n.saved = false, false, n.opts.Clock.Now()
	known := make(map[string][]netip.Addr, len(n.wanted))
	for text, of := range n.wanted {
		if of.state.Known {
			known[text] = of.state.Addrs
		}
	}
	n.mu.Unlock()
	if err := store(n.opts.File, known); err != nil {
		n.opts.Log.Warn("DNS cache file not written: names are resolved again after a restart", "file", n.opts.File, "error", err)
	}
}
