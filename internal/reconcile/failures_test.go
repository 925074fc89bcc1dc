package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stubborn is an engine that rejects every change that deletes one of its keys.
type stubborn struct {
	memory
	keeps string
}

func (s *stubborn) Commit(ctx context.Context, change Change[string, text]) error {
	if _, found := change.Delete[s.keeps]; found {
		return fmt.Errorf("%s cannot be deleted", s.keeps)
	}
	return s.memory.Commit(ctx, change)
}

// An item that cannot be removed does not keep another from being removed.
func TestOneBadRemovalStopsNoOther(t *testing.T) {
	engine := &stubborn{keeps: "a"}
	loop := NewLoop(engine, Options[string, text]{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	err := loop.Start(ctx, map[Owner]map[string]text{"pod/a": {"a": "1"}, "pod/b": {"b": "2"}, "pod/c": {"c": "3"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.Apply(ctx, map[Owner]map[string]text{"pod/a": nil, "pod/b": nil}); err == nil {
		t.Error("no error for what cannot be removed")
	}
	if err := loop.Apply(ctx, map[Owner]map[string]text{"pod/c": nil}); err != nil {
		t.Errorf("removing another: %v", err)
	}
	state, _ := engine.snapshot()
	if diff := cmp.Diff(map[string]text{"a": "1"}, state); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if loop.Failure("pod/a") == nil || loop.Failure("pod/b") != nil {
		t.Errorf("failures: %v", loop.Failures())
	}
}

// While the engine cannot be read, that is reported, and what waits for it is not reported as in effect.
func TestUnreadableEngineIsAFailure(t *testing.T) {
	engine := &memory{}
	loop := runLoop(t, engine, Options[string, text]{})
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/a": {"a": "1"}, "pod/c": {"c": "3"}}); err != nil {
		t.Fatal(err)
	}
	down := func(is bool) {
		engine.mu.Lock()
		defer engine.mu.Unlock()
		engine.down = is
	}
	down(true)
	if _, err := loop.Verify(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("Verify: %v", err)
	}
	loop.Set(map[Owner]map[string]text{"pod/b": {"b": "2"}, "pod/c": nil})
	if err := loop.Failure("pod/c"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("failure of the owner whose item waits for its removal: %v", err)
	}
	if err := loop.Failure("pod/b"); !errors.Is(err, ErrUnavailable) || loop.Failure("pod/a") != nil {
		t.Errorf("failure of the waiting owner: %v; of the committed owner: %v", err, loop.Failure("pod/a"))
	}
	if err := loop.Failures()[Unreadable]; !errors.Is(err, ErrUnavailable) {
		t.Errorf("failures: %v", loop.Failures())
	}
	down(false)
	if _, err := loop.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(loop.Failure("pod/b"), loop.Failure("pod/c")); err != nil || len(loop.Failures()) != 0 {
		t.Errorf("afterwards: %v, %v", err, loop.Failures())
	}
}
