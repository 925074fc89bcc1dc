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
	// DefaultMinTTL keeps names whose answers are good for less from being asked for all the time.
	DefaultMinTTL = 5 * time.Second
	// DefaultMaxTTL is how long an answer counts at most.
	DefaultMaxTTL = 30 * time.Minute
	// DefaultMaxNegativeTTL is how long it counts at most that a name has no addresses.
	DefaultMaxNegativeTTL = 30 * time.Second
	// DefaultQuestions is how many names are asked for at once.
	DefaultQuestions = 16
	// DefaultRest is how long the file is not written again.
	DefaultRest = 5 * time.Second
)

// unproven says that one question in so many may be for a name whose last question had no answer, or that was never asked for: each
// of those may keep its place for as long as a Lookup lasts, and however many there are, the others are not behind them.
const unproven = 4

// How soon a name is asked for again that cannot be resolved: doubled from the first to the last.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// maxDoublings keeps the doubled delay within a Duration.
	maxDoublings = 10
)

// Lookup asks for a name: Client.Lookup.
type Lookup func(ctx context.Context, name string) (Answer, error)

// Clock is the time.
type Clock interface {
	Now() time.Time
	// At returns a channel that gets a value at a time, and what ends the waiting.
	At(t time.Time) (due <-chan time.Time, stop func())
}

// Options of Names.
type Options struct {
	// Lookup asks. Required.
	Lookup Lookup
	// Changed is told that names stand for other addresses, or cannot be resolved, or can again. It must not wait. Required.
	Changed func()
	// File keeps what names stand for. Empty: nothing is kept.
	File string
	// MinTTL, MaxTTL and MaxNegativeTTL bound how long an answer counts. Zero: the defaults.
	MinTTL, MaxTTL, MaxNegativeTTL time.Duration
	// Questions is how many names are asked for at once: at most a quarter of them names that were not answered last. Zero:
	// DefaultQuestions.
	Questions int
	// Rest is how long the file is not written again, but at the end; a tenth of it if a name has its first answer. Zero: DefaultRest.
	Rest time.Duration
	// Clock is the time. Nil: the system's.
	Clock Clock
	// Log gets what nobody waits for. Nil: discarded.
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

// systemClock is the system's time.
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
	// answers carries what was asked for to Run.
	answers chan result

	mu     sync.Mutex
	wanted map[string]*name
	// answered are the names whose last question was answered, others all others.
	answered, others line
	// restored is what the file said, until it is known what is wanted.
	restored map[string][]netip.Addr
	// changed are names of which State says other than before, and nobody has taken it.
	changed map[string]struct{}
	// unsaved says that the file is not as it should be, unheard that it has nothing of a name that was answered. saved is when it was
	// written.
	unsaved, unheard bool
	saved            time.Time
}

// name is a name that is wanted.
type name struct {
	text  string
	state State
	// due is when it is asked for again, and turn is whose turn it is of those that are due at once.
	due  time.Time
	turn int
	// failures counts since the last answer. answered says that the last question had one.
	failures int
	answered bool
	// at is where it is in its line's queue; -1: it is asked for now.
	at int
}

// line are names that share places.
type line struct {
	// queue are those that nobody asks for now, by when they are due.
	queue queue
	// asking is how many are asked for now, most how many may be.
	asking, most int
}

// queue is a heap of names, the first that is due on top.
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

// line returns the one that a name is in.
func (n *Names) line(of *name) *line {
	if of.answered {
		return &n.answered
	}
	return &n.others
}

// State is what is known of a name.
type State struct {
	// Addrs are its addresses of both families, in order. Known says that there was an answer.
	Addrs []netip.Addr
	Known bool
	// Err is why it could not be resolved when it was asked for last; nil: it could.
	Err error
}

// result is what became of a question.
type result struct {
	of *name
	// place is where the question was counted.
	place  *line
	answer Answer
	err    error
}

// NewNames returns Names that keeps nothing yet, and begins with what the file says.
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

// Want says which names are kept resolved from now on: those, and no others. New ones are asked for in the order of the list.
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
	heap.Init(&n.answered.queue) // by the new turns
	heap.Init(&n.others.queue)
	n.unsaved = n.unsaved || len(n.restored) > 0
	n.restored = nil
	n.wakeUp()
}

// State returns what is known of a name.
func (n *Names) State(text string) State {
	n.mu.Lock()
	defer n.mu.Unlock()
	if of := n.wanted[text]; of != nil {
		return of.state
	}
	return State{}
}

// Take returns the names of which State says other than when it was taken last, in order.
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

// Run asks until ctx ends.
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
		tell := false
		select {
		case <-ctx.Done():
			stopDue()
			stopSave()
			return nil
		case <-n.wake:
		case <-due:
		case <-save:
		case r := <-n.answers:
			tell = n.settle(r)
		}
		stopDue()
		stopSave()
		if at := n.saveAt(); !at.IsZero() && !at.After(n.opts.Clock.Now()) {
			n.save() // before anybody acts on it
		}
		if tell {
			n.opts.Changed()
		}
	}
}

// at returns what is told at a time; zero: never.
func (n *Names) at(t time.Time) (due <-chan time.Time, stop func()) {
	if t.IsZero() {
		return nil, func() {}
	}
	return n.opts.Clock.At(t)
}

// begin asks for what is due, as far as there is room, and returns when there will be more; zero: not before an answer comes.
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

// settle takes note of what became of a question, and of those that have come meanwhile, and reports whether anybody is to be told.
func (n *Names) settle(r result) (tell bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.opts.Clock.Now()
	for {
		r.place.asking--
		tell = n.take(r, now) || tell
		select {
		case r = <-n.answers:
		default:
			return tell
		}
	}
}

// take takes note of an answer, or of there being none, and reports whether State says other than before. The caller holds mu.
func (n *Names) take(r result, now time.Time) bool {
	of := r.of
	if n.wanted[of.text] != of { // nobody wants to know any more
		return false
	}
	tell := (r.err == nil) != (of.state.Err == nil)
	if r.err != nil {
		of.state.Err = r.err
		of.due = now.Add(min(firstRetry<<min(of.failures, maxDoublings), lastRetry))
		of.failures++
	} else {
		if !of.state.Known || !slices.Equal(ipv4(of.state.Addrs), ipv4(r.answer.Addrs)) {
			tell, n.unsaved, n.unheard = true, true, n.unheard || !of.state.Known
		}
		of.state = State{Addrs: r.answer.Addrs, Known: true}
		of.due, of.failures = now.Add(n.lasts(r.answer)), 0
	}
	of.answered = r.err == nil
	heap.Push(&n.line(of).queue, of)
	if tell {
		n.changed[of.text] = struct{}{}
	}
	return tell
}

// ipv4 returns the addresses that a change of is told: those of IPv6 may be missing in an answer, and are used by nobody yet.
// They come last.
func ipv4(addrs []netip.Addr) []netip.Addr {
	for i, addr := range addrs {
		if !addr.Is4() {
			return addrs[:i]
		}
	}
	return addrs
}

// lasts returns how long an answer counts.
func (n *Names) lasts(a Answer) time.Duration {
	most := n.opts.MaxTTL
	if len(a.Addrs) == 0 {
		most = n.opts.MaxNegativeTTL
	}
	return max(n.opts.MinTTL, min(a.TTL, most))
}

// saveAt returns when the file is to be written; zero: it is as it should be.
func (n *Names) saveAt() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !n.unsaved || n.opts.File == "":
		return time.Time{}
	case n.saved.IsZero():
		return n.opts.Clock.Now()
	}
	if n.unheard { // after a crash its namespace would be closed
		return n.saved.Add(n.opts.Rest / 10)
	}
	return n.saved.Add(n.opts.Rest)
}

// save writes the file, if it is not as it should be.
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
