package resolver_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/resolver"
)

// clock is a clock that moves only when the test advances it.
type clock struct {
	mu      sync.Mutex
	now     time.Time
	waiting map[chan time.Time]time.Time
	// waited receives a value when a wait begins.
	waited chan struct{}
}

func newClock() *clock {
	return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), waiting: map[chan time.Time]time.Time{}, waited: make(chan struct{}, 1)}
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) At(t time.Time) (due <-chan time.Time, stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	if !t.After(c.now) {
		ch <- c.now
	} else {
		c.waiting[ch] = t
	}
	select {
	case c.waited <- struct{}{}:
	default:
	}
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, ch)
	}
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for ch, t := range c.waiting {
		if !t.After(c.now) {
			ch <- c.now
			delete(c.waiting, ch)
		}
	}
}

// sleepsUntil reports whether something waits for exactly that time.
func (c *clock) sleepsUntil(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.waiting {
		if at.Equal(t) {
			return true
		}
	}
	return false
}

// rig is a Names with a real name server and the test's clock.
type rig struct {
	*resolver.Names
	t        *testing.T
	server   *nameServer
	clock    *clock
	reported chan struct{}
	file     string
	stop     func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, server: serve(t), clock: newClock(), file: filepath.Join(t.TempDir(), "names.json")}
	r.begin()
	t.Cleanup(func() { r.stop() })
	return r
}

// begin starts a new instance. restart stops the previous one first.
func (r *rig) begin() {
	client := &resolver.Client{ResolvConf: resolvConf(r.t, "nameserver 127.0.0.1", "options attempts:1"), Port: r.server.port(r.t)}
	r.reported = make(chan struct{}, 1)
	reported := r.reported
	r.Names = resolver.NewNames(resolver.Options{Lookup: client.Lookup, Clock: r.clock, File: r.file, Changed: func() {
		select {
		case reported <- struct{}{}:
		default:
		}
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	names := r.Names
	go func() { ended <- names.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
}

func (r *rig) restart() {
	r.stop()
	r.begin()
}

func show(s resolver.State) string {
	text := "unknown"
	if s.Known {
		text = fmt.Sprint(s.Addrs)
	}
	if s.Err != nil {
		text += " failing"
	}
	return text
}

// await waits until a name has the wanted state.
func (r *rig) await(name, want string) {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		if show(r.State(name)) == want {
			return
		}
		select {
		case <-r.reported:
		case <-deadline:
			r.t.Fatalf("%s is %s, want %s", name, show(r.State(name)), want)
		}
	}
}

// sleeps waits until no query is under way and the next one is due after the given duration.
func (r *rig) sleeps(after time.Duration) {
	r.t.Helper()
	until := r.clock.Now().Add(after)
	deadline := time.After(20 * time.Second)
	for !r.clock.sleepsUntil(until) {
		select {
		case <-r.clock.waited:
		case <-deadline:
			r.t.Fatalf("the next question is not due after %s", after)
		}
	}
}

// A change is noticed when the TTL of the previous answer expires, not earlier and not later.
func TestExpiry(t *testing.T) {
	r := newRig(t)
	r.server.has(t, "www.example. 40 IN A 192.0.2.7", soa)
	r.Want([]string{"www.example."})
	r.await("www.example.", "[192.0.2.7]")
	r.sleeps(40 * time.Second)
	r.server.has(t, "www.example. 7 IN A 192.0.2.8", soa)
	r.clock.advance(39 * time.Second)
	r.sleeps(time.Second)
	if n := r.server.times("udp www.example. A"); n != 1 {
		t.Errorf("asked %d times while the answer was good", n)
	}
	r.clock.advance(time.Second)
	r.await("www.example.", "[192.0.2.8]")
	r.sleeps(7 * time.Second) // the new TTL
	r.server.has(t, soa)
	r.clock.advance(7 * time.Second)
	r.await("www.example.", "[]") // the name is removed
	r.sleeps(20 * time.Second)    // the SOA's minimum TTL
	r.server.has(t, "www.example. 60 IN CNAME a.example.", "a.example. 50 IN A 192.0.2.9", soa)
	r.clock.advance(20 * time.Second)
	r.await("www.example.", "[192.0.2.9]")
	r.sleeps(50 * time.Second)
	if got := r.Take(); !slices.Equal(got, []string{"www.example."}) || len(r.Take()) != 0 {
		t.Errorf("taken: %v", got)
	}
}

// The TTL is used within bounds.
func TestBounds(t *testing.T) {
	for name, c := range map[string]struct {
		records []string
		want    time.Duration
	}{
		"none":         {[]string{"www.example. 0 IN A 192.0.2.7"}, resolver.DefaultMinTTL},
		"short":        {[]string{"www.example. 1 IN A 192.0.2.7"}, resolver.DefaultMinTTL},
		"usual":        {[]string{"www.example. 300 IN A 192.0.2.7"}, 5 * time.Minute},
		"long":         {[]string{"www.example. 86400 IN A 192.0.2.7"}, resolver.DefaultMaxTTL},
		"no such name": {[]string{"example. 86400 IN SOA ns.example. root.example. 1 60 60 60 86400"}, resolver.DefaultMaxNegativeTTL},
		"no SOA":       {nil, resolver.DefaultMinTTL},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.server.has(t, c.records...)
			r.Want([]string{"www.example."})
			r.sleeps(c.want)
		})
	}
}

// A name that cannot be resolved is retried, first after a short delay, and keeps its last answer.
func TestFailures(t *testing.T) {
	r := newRig(t)
	fail := func() { r.server.has(t); r.server.says(serverFails) }
	fail()
	r.Want([]string{"www.example."})
	r.await("www.example.", "unknown failing")
	for _, delay := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		r.sleeps(delay * time.Second)
		r.clock.advance(delay * time.Second)
	}
	r.sleeps(30 * time.Second)
	r.server.has(t, "www.example. 40 IN A 192.0.2.7", soa)
	r.clock.advance(30 * time.Second)
	r.await("www.example.", "[192.0.2.7]")
	r.sleeps(40 * time.Second)
	fail()
	r.clock.advance(40 * time.Second)
	r.await("www.example.", "[192.0.2.7] failing")
	r.sleeps(time.Second)
	r.server.has(t, "www.example. 40 IN A 192.0.2.7", soa)
	r.clock.advance(time.Second)
	r.await("www.example.", "[192.0.2.7]")
}

// After a restart, the last addresses are known, and all names are queried again at once.
func TestRestart(t *testing.T) {
	r := newRig(t)
	r.server.has(t, "www.example. 40 IN A 192.0.2.7", "two.example. 40 IN A 192.0.2.9", soa)
	r.Want([]string{"www.example.", "two.example.", "none.example."})
	for name, want := range map[string]string{"www.example.": "[192.0.2.7]", "two.example.": "[192.0.2.9]", "none.example.": "[]"} {
		r.await(name, want)
	}
	r.server.says(serverFails)
	r.restart()
	r.Want([]string{"www.example.", "none.example."})
	r.await("www.example.", "[192.0.2.7] failing")
	r.await("none.example.", "[] failing")
	if got := r.Take(); !slices.Equal(got, []string{"none.example.", "www.example."}) {
		t.Errorf("reported: %v", got)
	}
	if s := r.State("two.example."); s.Known {
		t.Errorf("a name without a subscriber is %s", show(s))
	}
	r.server.has(t, "www.example. 40 IN A 192.0.2.8", soa)
	r.clock.advance(time.Second)
	r.await("www.example.", "[192.0.2.8]")
	r.restart()
	r.Want([]string{"www.example.", "two.example."})
	r.await("www.example.", "[192.0.2.8]")
	r.stop()
	if err := os.WriteFile(r.file, []byte(`{"version":1,"names":{"www`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.begin()
	if s := r.State("www.example."); s.Known {
		t.Errorf("out of a broken file: %s", show(s))
	}
	r.Want([]string{"www.example."})
	r.await("www.example.", "[192.0.2.8]")
}

// A name that is no longer wanted is not queried, and the answer of a query under way is dropped.
func TestUnwanted(t *testing.T) {
	r := newRig(t)
	r.server.has(t, "www.example. 40 IN A 192.0.2.7", "two.example. 50 IN A 192.0.2.9", soa)
	r.Want([]string{"www.example.", "two.example."})
	r.await("www.example.", "[192.0.2.7]")
	r.await("two.example.", "[192.0.2.9]")
	r.Want([]string{"two.example."})
	r.sleeps(50 * time.Second) // for the other name only
	r.clock.advance(40 * time.Second)
	r.sleeps(10 * time.Second)
	if n := r.server.times("udp www.example. A"); n != 1 {
		t.Errorf("%d queries for a name without a subscriber", n)
	}
}

// Of many names, only as many are queried concurrently as allowed, and each one gets its turn. A query that hangs blocks only its own
// place.
func TestManyNames(t *testing.T) {
	const all, most = 500, 8
	var mu sync.Mutex
	at, highest := 0, 0
	var names []string
	for i := range all {
		names = append(names, fmt.Sprintf("n%d.example.", i))
	}
	done := make(chan struct{}, all)
	n := resolver.NewNames(resolver.Options{
		Clock: newClock(), Questions: most, Changed: func() {},
		Lookup: func(ctx context.Context, name string) (resolver.Answer, error) {
			mu.Lock()
			at++
			highest = max(highest, at)
			mu.Unlock()
			if name == "n7.example." {
				<-ctx.Done()
				return resolver.Answer{}, ctx.Err()
			}
			mu.Lock()
			at--
			mu.Unlock()
			done <- struct{}{}
			return resolver.Answer{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, TTL: time.Minute}, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	n.Want(names)
	for i := range all - 1 {
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("only %d of %d names were asked for", i, all)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if highest > most {
		t.Errorf("%d names at once, at most %d may be", highest, most)
	}
}

// Names whose queries hang do not delay names that are answered.
func TestNamesThatHang(t *testing.T) {
	list := []string{"good.example."}
	for i := range 500 {
		list = append(list, fmt.Sprintf("dead%d.example.", i))
	}
	clock := newClock()
	good, dead := make(chan struct{}), make(chan struct{}, len(list))
	n := resolver.NewNames(resolver.Options{
		Clock: clock, Changed: func() {},
		Lookup: func(ctx context.Context, name string) (resolver.Answer, error) {
			if name == "good.example." {
				good <- struct{}{}
				return resolver.Answer{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, TTL: time.Second}, nil
			}
			dead <- struct{}{}
			<-ctx.Done()
			return resolver.Answer{}, ctx.Err()
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	n.Want(list)
	within := func(what string, ch <-chan struct{}) {
		t.Helper()
		select {
		case <-ch:
		case <-time.After(20 * time.Second):
			t.Fatal(what)
		}
	}
	within("the good name is not asked for", good)
	for range resolver.DefaultQuestions / 4 {
		within("the others are not asked for", dead)
	}
	for range 10 {
		(&rig{t: t, clock: clock}).sleeps(resolver.DefaultMinTTL)
		clock.advance(resolver.DefaultMinTTL)
		within("the good name waits for those that hang", good)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(dead) > 0 {
		t.Errorf("%d names more hang", len(dead))
	}
}

// New names are queried in the order of the last call of Want.
func TestTurns(t *testing.T) {
	var asked []string
	reported := make(chan struct{}, 3)
	n := resolver.NewNames(resolver.Options{
		Clock: newClock(), Questions: 1, Changed: func() { reported <- struct{}{} },
		Lookup: func(_ context.Context, name string) (resolver.Answer, error) {
			asked = append(asked, name)
			return resolver.Answer{TTL: time.Hour}, nil
		},
	})
	n.Want([]string{"a1.example.", "a2.example.", "a3.example."})
	n.Want([]string{"a1.example.", "b1.example.", "a2.example."})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	for !n.State("a2.example.").Known {
		<-reported
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := strings.Join(asked, " "); got != "a1.example. b1.example. a2.example." {
		t.Errorf("asked for %s", got)
	}
}

// The file is written at once, then not again for the rest time however much changes, and at the end. For a name's first answer the time is
// shorter.
func TestFileRests(t *testing.T) {
	r := newRig(t)
	has := func(addr string) bool {
		raw, err := os.ReadFile(r.file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Contains(string(raw), addr)
	}
	await := func(what, addr string) {
		t.Helper()
		for deadline := time.After(20 * time.Second); !has(addr); {
			select {
			case <-r.clock.waited: // it waits again after the file is written
			case <-deadline:
				t.Fatalf("%s is not kept", what)
			}
		}
	}
	r.server.has(t, "www.example. 40 IN A 192.0.2.7", "two.example. 42 IN A 192.0.2.9", soa)
	r.Want([]string{"www.example."})
	r.await("www.example.", "[192.0.2.7]")
	await("the first answer", "192.0.2.7")
	r.Want([]string{"www.example.", "two.example."})
	r.await("two.example.", "[192.0.2.9]")
	const short = resolver.DefaultRest / 10
	r.sleeps(short)
	if has("192.0.2.9") {
		t.Error("the file is written for each answer")
	}
	r.clock.advance(short)
	await("the second", "192.0.2.9")
	r.server.has(t, "www.example. 40 IN A 192.0.2.17", "two.example. 42 IN A 192.0.2.19", soa)
	r.clock.advance(40*time.Second - short)
	r.await("www.example.", "[192.0.2.17]")
	await("a change long after the last", "192.0.2.17")
	r.clock.advance(2 * time.Second)
	r.await("two.example.", "[192.0.2.19]")
	r.sleeps(resolver.DefaultRest - 2*time.Second)
	if has("192.0.2.19") {
		t.Error("the file is written for each change")
	}
	r.stop()
	if !has("192.0.2.19") {
		t.Error("the end does not write the file")
	}
}

// A failure to write the file is logged, and stops nothing.
func TestNoRoom(t *testing.T) {
	n := resolver.NewNames(resolver.Options{
		Clock: newClock(), Changed: func() {}, File: filepath.Join(t.TempDir(), "not", "there"),
		Lookup: func(context.Context, string) (resolver.Answer, error) { return resolver.Answer{}, errors.New("none") },
	})
	ctx, cancel := context.WithCancel(t.Context())
	n.Want([]string{"www.example."})
	n.Want(nil)
	cancel()
	if err := n.Run(ctx); err != nil {
		t.Error(err)
	}
	if got := strings.Join(n.Take(), " "); got != "www.example." {
		t.Errorf("reported: %q", got)
	}
}
