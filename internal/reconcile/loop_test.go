package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type text string

func (t text) Equal(other text) bool { return t == other }

// memory is an engine that keeps its state in a map. Values in bad cannot be committed.
type memory struct {
	mu      sync.Mutex
	state   map[string]text
	bad     map[text]bool
	partial bool
	down    bool
	commits []Change[string, text]
	reads   int
}

func (m *memory) Read(context.Context) (map[string]text, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if m.down {
		return nil, fmt.Errorf("reading: %w", ErrUnavailable)
	}
	return maps.Clone(m.state), nil
}

func (m *memory) Commit(_ context.Context, change Change[string, text]) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return fmt.Errorf("committing: %w", ErrUnavailable)
	}
	failed := map[string]error{}
	for key, value := range change.Set {
		if m.bad[value] {
			failed[key] = fmt.Errorf("%s: bad value %q", key, value)
		}
	}
	if len(failed) > 0 && !m.partial {
		for _, err := range failed {
			return err
		}
	}
	change.Set = maps.Clone(change.Set) // the engine must not change the caller's map
	for key := range failed {
		delete(change.Set, key)
	}
	m.state = change.Apply(m.state)
	m.commits = append(m.commits, change)
	if len(failed) > 0 {
		return &PartialError[string]{Failed: failed}
	}
	return nil
}

func (m *memory) tamper(f func(map[string]text)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.state)
}

func (m *memory) snapshot() (map[string]text, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := map[string]text{}
	maps.Copy(state, m.state)
	return state, len(m.commits)
}

func encode(key string, value text) []byte { return []byte(key + "=" + string(value)) }

func runLoop(t testing.TB, engine Engine[string, text], opts Options[string, text]) *Loop[string, text] {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	loop := NewLoop[string, text](engine, opts)
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return loop
}

func TestNothingIsTouchedBeforeStart(t *testing.T) {
	engine := &memory{state: map[string]text{"stray": "1"}}
	loop := runLoop(t, engine, Options[string, text]{})
	loop.Set(map[Owner]map[string]text{"pod/a": {"a": "1"}})
	if state, commits := engine.snapshot(); commits != 0 || state["stray"] != "1" {
		t.Fatalf("before Start: %d commits, state %v", commits, state)
	}
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/b": {"b": "2"}}); err != nil {
		t.Fatal(err)
	}
	state, _ := engine.snapshot()
	if diff := cmp.Diff(map[string]text{"a": "1", "b": "2"}, state); diff != "" {
		t.Errorf("after Start (-want +got):\n%s", diff)
	}
}

func TestRestartCommitsNothing(t *testing.T) {
	seal := func(h Hash) (string, text) { return "seal", text(h.String()) }
	opts := Options[string, text]{Encode: encode, Seal: seal}
	state := map[Owner]map[string]text{"pod/a": {"a": "1"}, "pod/b": {"b": "2"}}
	engine := &memory{}
	if err := runLoop(t, engine, opts).Start(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	_, before := engine.snapshot()
	if err := runLoop(t, engine, opts).Start(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	if _, after := engine.snapshot(); after != before {
		t.Errorf("the second life committed %v", engine.commits[before:])
	}
}

func TestOneBadObjectStopsNoOther(t *testing.T) {
	for _, partial := range []bool{false, true} {
		t.Run(fmt.Sprintf("partial=%v", partial), func(t *testing.T) {
			engine := &memory{bad: map[text]bool{"bad": true}, partial: partial}
			loop := runLoop(t, engine, Options[string, text]{})
			err := loop.Start(t.Context(), map[Owner]map[string]text{
				"pod/good": {"a": "1"}, "pod/bad": {"b": "bad"}, "pod/fine": {"c": "3"},
			})
			if err == nil {
				t.Fatal("no error for the bad object")
			}
			if loop.Failure("pod/bad") == nil || loop.Failure("pod/good") != nil || loop.Failure("pod/fine") != nil {
				t.Errorf("failures: %v", loop.Failures())
			}
			if err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/late": {"d": "4"}}); err != nil {
				t.Errorf("a good owner beside a bad one: %v", err)
			}
			if err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/bad": nil}); err != nil {
				t.Errorf("withdrawing: %v", err)
			}
			state, _ := engine.snapshot()
			if diff := cmp.Diff(map[string]text{"a": "1", "c": "3", "d": "4"}, state); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerifyPutsBackAndCounts(t *testing.T) {
	engine := &memory{}
	loop := runLoop(t, engine, Options[string, text]{})
	want := map[string]text{"a": "1", "b": "2", "c": "3"}
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"x": want}); err != nil {
		t.Fatal(err)
	}
	engine.tamper(func(state map[string]text) {
		delete(state, "a")
		state["b"] = "altered"
		state["stray"] = "9"
	})
	drift, err := loop.Verify(t.Context())
	if err != nil || drift != 3 {
		t.Errorf("Verify = %d, %v; want 3 items put back", drift, err)
	}
	state, _ := engine.snapshot()
	if diff := cmp.Diff(want, state); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if drift, err := loop.Verify(t.Context()); err != nil || drift != 0 {
		t.Errorf("second Verify = %d, %v", drift, err)
	}
}

func TestConflictGoesToTheFirstOwner(t *testing.T) {
	engine := &memory{}
	loop := runLoop(t, engine, Options[string, text]{})
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/b": {"addr": "b"}}); err != nil {
		t.Fatal(err)
	}
	if err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/a": {"addr": "a"}}); err != nil {
		t.Fatal(err)
	}
	var conflict *ConflictError
	err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/c": {"addr": "c"}})
	if !errors.As(err, &conflict) || conflict.Holder != "pod/a" {
		t.Fatalf("third owner of a key: %v; want a ConflictError that names pod/a", err)
	}
	if err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/a": nil}); err != nil {
		t.Fatal(err)
	}
	if state, _ := engine.snapshot(); state["addr"] != "b" {
		t.Errorf("after the holder left: %v, want the next in order", state)
	}
}

func TestStartWaitsForAnEngineThatIsAway(t *testing.T) {
	engine := &memory{down: true}
	loop := runLoop(t, engine, Options[string, text]{})
	started := make(chan error, 1)
	go func() { started <- loop.Start(t.Context(), map[Owner]map[string]text{"x": {"a": "1"}}) }()
	for { // until the loop has failed to commit
		engine.mu.Lock()
		tried := engine.reads > 0
		engine.mu.Unlock()
		if tried {
			break
		}
		runtime.Gosched()
	}
	if err := loop.Apply(t.Context(), map[Owner]map[string]text{"y": {"b": "2"}}); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("Apply on an engine that is down: %v", err)
	}
	engine.mu.Lock()
	engine.down = false
	engine.mu.Unlock()
	loop.Resync()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	state, _ := engine.snapshot()
	if diff := cmp.Diff(map[string]text{"a": "1", "b": "2"}, state); diff != "" {
		t.Errorf("after it came back (-want +got):\n%s", diff)
	}
}

// TestHashDependsOnContentAlone: two loops that got the same fragments in different orders, with detours, agree.
func TestHashDependsOnContentAlone(t *testing.T) {
	a := newDesired[string, text](encode)
	b := newDesired[string, text](encode)
	ignore := func(string) {}
	a.set("x", map[string]text{"1": "one", "2": "two"}, ignore)
	a.set("y", map[string]text{"3": "three"}, ignore)
	b.set("y", map[string]text{"3": "drei", "4": "vier"}, ignore)
	b.set("x", map[string]text{"2": "two", "1": "one"}, ignore)
	b.set("y", map[string]text{"3": "three"}, ignore)
	if a.hash != b.hash || a.hash == (Hash{}) {
		t.Errorf("hashes %v and %v", a.hash, b.hash)
	}
}

// TestLoopAgreesWithANaiveModel: whatever owners do, and whatever fails or is changed by others in between, the engine ends with exactly
// the union of the fragments.
func TestLoopAgreesWithANaiveModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		engine := &memory{partial: rapid.Bool().Draw(rt, "partial"), bad: map[text]bool{"9": true}}
		ctx, cancel := context.WithCancel(context.Background())
		loop := NewLoop[string, text](engine, Options[string, text]{Encode: encode})
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				rt.Errorf("Run: %v", err)
			}
		}()
		_ = loop.Start(ctx, nil)
		model := map[Owner]map[string]text{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			owner := Owner(rapid.SampledFrom([]string{"o1", "o2", "o3"}).Draw(rt, "owner"))
			fragment := rapid.MapOf(
				rapid.SampledFrom([]string{"a", "b", "c", "d"}),
				rapid.Map(rapid.IntRange(0, 9), func(i int) text { return text(fmt.Sprint(i)) }),
			).Draw(rt, "fragment")
			if rapid.IntRange(0, 4).Draw(rt, "tamper") == 0 {
				engine.tamper(func(s map[string]text) { delete(s, "a") })
			}
			_ = loop.Apply(ctx, map[Owner]map[string]text{owner: fragment})
			model[owner] = fragment
		}
		for owner, fragment := range model { // remove the bad values, so that everything can settle
			for key, value := range fragment {
				if value == "9" {
					fragment = maps.Clone(fragment)
					delete(fragment, key)
				}
			}
			model[owner] = fragment
			_ = loop.Apply(ctx, map[Owner]map[string]text{owner: fragment})
		}
		if _, err := loop.Verify(ctx); err != nil {
			rt.Fatalf("Verify: %v", err)
		}
		want := map[string]text{}
		for _, owner := range []Owner{"o3", "o2", "o1"} {
			maps.Copy(want, model[owner])
		}
		state, _ := engine.snapshot()
		if diff := cmp.Diff(want, state); diff != "" {
			rt.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// A withdrawal that failed is reported: until the item is removed, each Apply and Failure return an error.
func TestFailedWithdrawalIsReported(t *testing.T) {
	engine := &memory{state: map[string]text{}}
	loop := runLoop(t, engine, Options[string, text]{})
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/a": {"a": "1"}, "pod/b": {"b": "2"}}); err != nil {
		t.Fatal(err)
	}
	down := func(is bool) {
		engine.mu.Lock()
		defer engine.mu.Unlock()
		engine.down = is
	}
	down(true)
	gone := map[Owner]map[string]text{"pod/a": nil}
	for range 3 {
		if err := loop.Apply(t.Context(), gone); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("withdrawing from an engine that is away: %v", err)
		}
	}
	if state, _ := engine.snapshot(); state["a"] != "1" {
		t.Fatalf("state %v", state)
	}
	if err := loop.Failure("pod/b"); err != nil {
		t.Errorf("of another owner: %v", err)
	}
	down(false)
	if err := loop.Apply(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if state, _ := engine.snapshot(); state["a"] != "" || loop.Failure("pod/a") != nil {
		t.Errorf("in the end: state %v, failure %v", state, loop.Failure("pod/a"))
	}
}
