package reconcile

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
)

// TestKeep: items that a former process left stay if their owner has not handed over its state yet; other leftovers are removed. What was
// handed over and withdrawn is removed too. Once nothing is kept, every item that no fragment names is removed.
func TestKeep(t *testing.T) {
	engine := &memory{state: map[string]text{"red/a": "1", "red/old": "1", "blue/a": "1", "blue/old": "1"}}
	var complete atomic.Bool
	loop := NewLoop(engine, Options[string, text]{Keep: func(key string, _ text) bool {
		return strings.HasPrefix(key, "blue/") && !complete.Load()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	want := func(when string, keys ...string) {
		t.Helper()
		state, _ := engine.snapshot()
		for _, key := range keys {
			if _, has := state[key]; !has {
				t.Errorf("%s: %s is gone", when, key)
			}
		}
		if len(state) != len(keys) {
			t.Errorf("%s: %v, want %v", when, state, keys)
		}
	}
	if err := loop.Start(ctx, map[Owner]map[string]text{"red": {"red/a": "1"}}); err != nil {
		t.Fatal(err)
	}
	want("one has handed over", "red/a", "blue/a", "blue/old")
	found, err := loop.Inspect(ctx)
	if err != nil || len(found.Differences) != 0 {
		t.Errorf("what is kept differs: %v, %v", found.Differences, err)
	}
	if err := loop.Apply(ctx, map[Owner]map[string]text{"blue": {"blue/a": "1", "blue/b": "1"}}); err != nil {
		t.Fatal(err)
	}
	if err := loop.Apply(ctx, map[Owner]map[string]text{"blue": {"blue/a": "1"}}); err != nil {
		t.Fatal(err)
	}
	want("one item was withdrawn", "red/a", "blue/a", "blue/old")
	complete.Store(true)
	if _, err := loop.Verify(ctx); err != nil {
		t.Fatal(err)
	}
	want("both have handed over", "red/a", "blue/a")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
