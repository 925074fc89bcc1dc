package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestR1StartRace
func TestR1StartRace(t *testing.T) {
	bad := 0
	for i := range 3000 {
		engine := &memory{state: map[string]text{"static": "1", "pod": "1"}}
		ctx, cancel := context.WithCancel(context.Background())
		loop := NewLoop[string, text](engine, Options[string, text]{})
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		loop.Set(map[Owner]map[string]text{"pod/a": {"pod": "1"}})
		if err := loop.Start(ctx, map[Owner]map[string]text{"cluster": {"static": "1"}}); err != nil {
			t.Fatal(err)
		}
		cancel()
		<-done
		if _, commits := engine.snapshot(); commits != 0 {
			bad++
			if bad == 1 {
				t.Errorf("run %d: a restart committed %v", i, engine.commits)
			}
		}
	}
	t.Logf("bad %d of 3000", bad)
}

func TestR1WithdrawFails(t *testing.T) {
	engine := &memory{}
	loop := runLoop(t, engine, Options[string, text]{})
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/a": {"a": "1"}}); err != nil {
		t.Fatal(err)
	}
	engine.mu.Lock()
	engine.down = true
	engine.mu.Unlock()
	for i := range 2 {
		err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/a": nil})
		if !errors.Is(err, ErrUnavailable) {
			state, _ := engine.snapshot()
			t.Errorf("try %d: withdrawing from an engine that is down: %v, and it holds %v", i, err, state)
		}
	}
}

func TestR1VerifyLost(t *testing.T) {
	engine := &memory{}
	loop := runLoop(t, engine, Options[string, text]{})
	if err := loop.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			loop.Set(map[Owner]map[string]text{"x": {"a": text(fmt.Sprint(i % 2))}})
		}
	}()
	for i := range 20000 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := loop.Verify(ctx)
		cancel()
		if err != nil {
			t.Errorf("verify %d: %v", i, err)
			break
		}
	}
	close(stop)
	<-idle
}
