package steps_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"weft.dev/weft/internal/steps"
)

// states is a caller whose changes are numbers: wanted is the last one that was stored, made are those that runs began with.
type states struct {
	runs   steps.Runs
	wanted int
	made   []int
	hang   chan struct{}
	err    error
}

func (s *states) update(ctx context.Context, state int) error {
	s.wanted = state
	return s.runs.Do(ctx, func(ctx context.Context) error {
		s.made = append(s.made, s.wanted)
		select {
		case <-s.hang:
			return s.err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// start calls update in the background, and returns once it waits.
func (s *states) start(ctx context.Context, state int) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.update(ctx, state) }()
	synctest.Wait()
	return done
}

// Changes that are stored during a run are made together by the next one, for which all their callers wait.
func TestLaterChangesSupersedeEarlierOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &states{hang: make(chan struct{})}
		first, second, third := s.start(t.Context(), 1), s.start(t.Context(), 2), s.start(t.Context(), 3)
		if len(first)+len(second)+len(third) > 0 {
			t.Error("a change is in effect before its run has ended")
		}
		s.hang <- struct{}{}
		if err := <-first; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(second)+len(third) > 0 {
			t.Error("a change is in effect after the run of an earlier one")
		}
		s.err = errors.New("refused")
		s.hang <- struct{}{}
		for _, done := range []<-chan error{second, third} {
			if err := <-done; !errors.Is(err, s.err) {
				t.Errorf("the run was refused, and the answer is %v", err)
			}
		}
		if len(s.made) != 2 || s.made[1] != 3 {
			t.Errorf("runs began with %v, want 1 and 3", s.made)
		}
	})
}

// A run ends when its caller gives up. The callers that waited for it make another one.
func TestRunOfACallerThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &states{hang: make(chan struct{})}
		first := s.start(t.Context(), 1)
		impatient, giveUp := context.WithCancel(t.Context())
		second, third := s.start(impatient, 2), s.start(t.Context(), 3)
		s.hang <- struct{}{}
		if err := <-first; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		giveUp()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		s.hang <- struct{}{}
		if err := <-third; err != nil {
			t.Error(err)
		}
		if last := s.made[len(s.made)-1]; last != 3 {
			t.Errorf("the last run began with %d", last)
		}
	})
}
