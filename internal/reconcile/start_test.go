package reconcile

import (
	"context"
	"errors"
	"testing"
)

// TestStartIsOneStep: the loop may be awake when Start is called, as what was set before wakes it. It never sees a
// started loop without the complete first state, whose other items it would remove.
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
