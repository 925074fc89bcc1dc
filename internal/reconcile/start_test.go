package reconcile

import (
	"context"
	"errors"
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
