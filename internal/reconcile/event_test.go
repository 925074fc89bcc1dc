package reconcile

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// log keeps the events of a loop.
type log struct {
	mu     sync.Mutex
	events []Event
}

func (l *log) observe(event Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
}

func (l *log) take() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	events := l.events
	l.events = nil
	return events
}

// A loop reports what it did: how many items, for which requests, and which foreign changes it found.
func TestLoopReportsEvents(t *testing.T) {
	engine, reported := &memory{}, &log{}
	loop := runLoop(t, engine, Options[string, text]{Name: "e", Observe: reported.observe})
	var receipts []Receipt
	ctx := WithReceipt(t.Context(), func(r Receipt) { receipts = append(receipts, r) })
	if err := loop.Start(ctx, map[Owner]map[string]text{"a": {"a/1": "x", "a/2": "x", "b/1": "x"}}); err != nil {
		t.Fatal(err)
	}
	events := reported.take()
	if len(events) != 1 || events[0].Set != 3 || events[0].Engine != "e" || events[0].Err != nil || events[0].Waited < events[0].Took {
		t.Errorf("of the start: %+v", events)
	}
	if len(receipts) != 1 || receipts[0].Set != 3 || receipts[0].Requests != 1 || receipts[0].End.Before(receipts[0].Begin) {
		t.Errorf("receipts: %+v", receipts)
	}
	if err := loop.Apply(ctx, map[Owner]map[string]text{"a": {"a/1": "x", "a/2": "x", "b/1": "x"}}); err != nil || len(receipts) != 1 {
		t.Errorf("of nothing: %v, %+v", err, receipts)
	}
	if diff := cmp.Diff(map[string]int{"a": 2, "b": 1}, loop.Programmed(func(key string) string { return key[:1] })); diff != "" {
		t.Errorf("programmed (-want +got):\n%s", diff)
	}

	engine.mu.Lock()
	engine.state = map[string]text{"a/2": "other", "b/1": "x", "c/1": "foreign"}
	engine.mu.Unlock()
	if n, err := loop.Verify(t.Context()); n != 3 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	events = reported.take()
	if len(events) != 1 || events[0].Drift != (Drift{Missing: 1, Altered: 1, Stray: 1}) || events[0].Waited != 0 {
		t.Errorf("of what others did: %+v", events)
	}

	engine.mu.Lock()
	engine.down = true
	engine.mu.Unlock()
	if _, err := loop.Verify(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if events = reported.take(); len(events) == 0 || !events[0].Read || !errors.Is(events[0].Err, ErrUnavailable) {
		t.Errorf("of an engine that cannot be read: %+v", events)
	}
}

// A commit that fails is reported with its error, and the waiting time of what is retried counts from its arrival.
func TestLoopReportsFailures(t *testing.T) {
	engine, reported := &stubborn{keeps: "a"}, &log{}
	loop := NewLoop(engine, Options[string, text]{Observe: reported.observe})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	if err := loop.Start(ctx, map[Owner]map[string]text{"pod/a": {"a": "1"}}); err != nil {
		t.Fatal(err)
	}
	reported.take()
	if err := loop.Apply(ctx, map[Owner]map[string]text{"pod/a": nil}); err == nil {
		t.Fatal("no error")
	}
	if events := reported.take(); len(events) == 0 || events[0].Err == nil || events[0].Deleted != 1 {
		t.Errorf("%+v", events)
	}
}
