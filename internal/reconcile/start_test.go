package reconcile

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"sync"
	"testing"
)

// TestStartIsOneStep: the loop may already run when Start is called, because an earlier Set wakes it. It never sees a started loop without
// the complete first state, whose other items it would remove.
func TestStartIsOneStep(t *testing.T) {
	for range 5000 {
		engine := &memory{state: map[string]text{"static": "1", "pod": "1"}}
		ctx, cancel := context.WithCancel(t.Context())
		loop := NewLoop(engine, Options[string, text]{})
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		loop.Set(map[Owner]map[string]text{"pod/a": {"pod": "1"}})
		err := loop.Start(ctx, map[Owner]map[string]text{"cluster": {"static": "1"}})
		cancel()
		if err = errors.Join(err, <-done); err != nil {
			t.Fatal(err)
		}
		if _, commits := engine.snapshot(); commits != 0 {
			t.Fatalf("a restart committed %v", engine.commits)
		}
	}
}

// halfAway is an engine that at first cannot reach a part of what it is given, and rejects another part.
type halfAway struct {
	*memory
	failed map[string]error
}

func (h *halfAway) Commit(ctx context.Context, change Change[string, text]) error {
	if h.failed == nil {
		return h.memory.Commit(ctx, change)
	}
	err := &PartialError[string]{Failed: h.failed}
	h.failed = nil
	return err
}

// Whether Start waits depends on its own owners only, not on another owner's failure.
func TestStartWaitsForItsOwn(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct{ own, other, want error }{
		"own away":    {ErrUnavailable, refused, nil},
		"own refused": {refused, ErrUnavailable, refused},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 { // the order of the two failures is random
				engine := &halfAway{memory: &memory{}, failed: map[string]error{"a": c.own, "b": c.other}}
				ctx, cancel := context.WithCancel(t.Context())
				loop := NewLoop(engine, Options[string, text]{})
				loop.Set(map[Owner]map[string]text{"other": {"b": "1"}})
				done := make(chan error, 1)
				go func() { done <- loop.Run(ctx) }()
				err := loop.Start(ctx, map[Owner]map[string]text{"own": {"a": "1"}})
				cancel()
				if ended := <-done; !errors.Is(err, c.want) || ended != nil {
					t.Fatalf("Start: %v, Run: %v", err, ended)
				}
			}
		})
	}
}

// A reading ahead of Start spares Start its own, unless something changed meanwhile.
func TestStartUsesWhatWasReadAhead(t *testing.T) {
	tamper := func(m *memory) { m.tamper(func(s map[string]text) { s["b"] = "1" }) }
	for name, c := range map[string]struct {
		meanwhile func(*memory, *Loop[string, text])
		reads     int
	}{
		"nothing":                  {func(*memory, *Loop[string, text]) {}, 1},
		"what is kept has changed": {func(_ *memory, l *Loop[string, text]) { l.KeepChanged() }, 1},
		"a change":                 {func(m *memory, l *Loop[string, text]) { tamper(m); l.Resync() }, 2},
		"another engine's commit":  {func(m *memory, l *Loop[string, text]) { tamper(m); l.Outdate() }, 2},
		"a verification": {func(m *memory, l *Loop[string, text]) {
			tamper(m)
			go func() { _, _ = l.Verify(context.WithoutCancel(t.Context())) }()
			for !isAwaited(l) {
				runtime.Gosched()
			}
		}, 2},
		"a new connection": {func(m *memory, l *Loop[string, text]) {
			tamper(m)
			l.ReadAhead()
			for m.readings() < 2 || !hasEarly(l) {
				runtime.Gosched()
			}
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			engine := &memory{state: map[string]text{"a": "1"}}
			loop := runLoop(t, engine, Options[string, text]{})
			loop.ReadAhead()
			for !hasEarly(loop) {
				runtime.Gosched()
			}
			c.meanwhile(engine, loop)
			if _, commits := engine.snapshot(); commits != 0 {
				t.Fatalf("before Start, %d changes were committed", commits)
			}
			if err := loop.Start(t.Context(), map[Owner]map[string]text{"cluster": {"a": "1", "c": "1"}}); err != nil {
				t.Fatal(err)
			}
			state, _ := engine.snapshot()
			if want := map[string]text{"a": "1", "c": "1"}; !maps.Equal(state, want) {
				t.Errorf("after Start: %v, want %v", state, want)
			}
			if reads := engine.readings(); reads != c.reads {
				t.Errorf("read %d times, want %d", reads, c.reads)
			}
		})
	}
}

// gated is memory whose first reading ends when goOn is closed.
type gated struct {
	*memory
	first         sync.Once
	reading, goOn chan struct{}
}

// Read implements Engine.
func (g *gated) Read(ctx context.Context) (map[string]text, error) {
	state, err := g.memory.Read(ctx)
	g.first.Do(func() {
		close(g.reading)
		<-g.goOn
	})
	return state, err
}

// A change while the reading ahead is under way makes it worthless.
func TestChangeDuringReadingAhead(t *testing.T) {
	engine := &gated{memory: &memory{state: map[string]text{"a": "1"}}, reading: make(chan struct{}), goOn: make(chan struct{})}
	loop := runLoop(t, engine, Options[string, text]{})
	loop.ReadAhead()
	<-engine.reading
	engine.tamper(func(s map[string]text) { s["b"] = "1" })
	loop.Resync()
	close(engine.goOn)
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"cluster": {"a": "1"}}); err != nil {
		t.Fatal(err)
	}
	if state, _ := engine.snapshot(); !maps.Equal(state, map[string]text{"a": "1"}) {
		t.Errorf("after Start: %v", state)
	}
}

// A reading ahead of Start that fails is repeated by Start.
func TestReadingAheadFails(t *testing.T) {
	engine := &memory{state: map[string]text{"stray": "1"}, down: true}
	loop := runLoop(t, engine, Options[string, text]{})
	loop.ReadAhead()
	for engine.readings() == 0 {
		runtime.Gosched()
	}
	engine.mu.Lock()
	engine.down = false
	engine.mu.Unlock()
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"cluster": {"a": "1"}}); err != nil {
		t.Fatal(err)
	}
	if state, _ := engine.snapshot(); !maps.Equal(state, map[string]text{"a": "1"}) {
		t.Errorf("after Start: %v", state)
	}
}

// hasEarly reports whether the loop has read ahead.
func hasEarly[K comparable, V Value[V]](l *Loop[K, V]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ahead.early != nil
}

// isAwaited reports whether a caller waits for the loop.
func isAwaited[K comparable, V Value[V]](l *Loop[K, V]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiters) > 0
}

func (m *memory) readings() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads
}
