package liveness

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestVerdict(t *testing.T) {
	var v verdict
	notes := func(answered bool, times int) (changes int) {
		for range times {
			if v.note(answered) {
				changes++
			}
		}
		return changes
	}
	for _, step := range []struct {
		answered    bool
		times       int
		gone        bool
		wantChanges int
	}{
		{false, 2, false, 0},
		{true, 1, false, 0}, // an answer in between: the count starts again
		{false, 2, false, 0},
		{false, 1, true, 1},
		{true, answersMin - 1, true, 0},
		{false, 1, true, 0}, // a host that flaps stays gone
		{true, answersMin - 1, true, 0},
		{true, 1, false, 1},
		{false, 3, true, 1},
	} {
		if changes := notes(step.answered, step.times); v.gone != step.gone || changes != step.wantChanges {
			t.Fatalf("%+v: gone %v, %d changes", step, v.gone, changes)
		}
	}
}

// stage is a set of hosts that answer or do not.
type stage struct {
	mu    sync.Mutex
	dead  map[netip.Addr]bool
	asked map[netip.Addr]int
}

func (s *stage) ask(_ context.Context, host netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[host]++
	if s.dead[host] {
		return errors.New("dead")
	}
	return nil
}

func TestWatcher(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	s := &stage{dead: map[netip.Addr]bool{}, asked: map[netip.Addr]int{}}
	changed := make(chan struct{}, 10)
	w := &Watcher{Ask: s.ask, Changed: func() { changed <- struct{}{} }}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	w.Watch([]netip.Addr{a, b})
	go func() { ended <- w.Run(ctx) }()
	s.mu.Lock()
	s.dead[a] = true
	s.mu.Unlock()
	wait := func() {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(60 * time.Second):
			t.Fatal("not reported")
		}
	}
	wait()
	if !w.Gone(a) || w.Gone(b) {
		t.Errorf("a gone %v, b gone %v", w.Gone(a), w.Gone(b))
	}
	s.mu.Lock()
	s.dead[a] = false
	s.mu.Unlock()
	wait()
	if w.Gone(a) {
		t.Error("a is back, and counts as gone")
	}
	s.mu.Lock()
	s.dead[a] = true
	s.mu.Unlock()
	wait()
	w.Watch([]netip.Addr{b})
	wait() // otherwise users of the verdict would avoid the host until another change
	if w.Gone(a) {
		t.Error("a host that is not watched counts as unreachable")
	}
	w.Watch(nil)
	select {
	case <-changed:
		t.Error("a host that answers is reported when it is no longer watched")
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// With Proven, a host that has never answered is not gone.
func TestProven(t *testing.T) {
	never, once := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	s := &stage{dead: map[netip.Addr]bool{never: true}, asked: map[netip.Addr]int{}}
	changed := make(chan struct{}, 10)
	w := &Watcher{Proven: true, Ask: func(ctx context.Context, host netip.Addr) error {
		err := s.ask(ctx, host)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dead[once] = s.asked[once] > 0 && s.asked[never] > missesMax
		return err
	}, Changed: func() { changed <- struct{}{} }}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	w.Watch([]netip.Addr{never, once})
	if _, known := w.Answered(once); known {
		t.Error("a verdict on a host that was never probed")
	}
	go func() { ended <- w.Run(ctx) }()
	deadline := time.After(60 * time.Second)
	for known := false; !known || !w.Gone(once); { // a caller notified of all changes reads the final state
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("not reported")
		}
		_, known = w.Answered(never)
	}
	if answered, _ := w.Answered(never); answered {
		t.Error("a host that never answered counts as reachable")
	}
	if answered, known := w.Answered(once); !answered || !known {
		t.Errorf("a host that answered once: %v, known %v", answered, known)
	}
	if w.Gone(never) || !w.Gone(once) {
		t.Errorf("unreachable: a host that never answered: %v; a host that no longer answers: %v", w.Gone(never), w.Gone(once))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// This machine answers, even if it refuses. An unused address does not.
func TestByTCP(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := byTCP(ctx, netip.MustParseAddr("127.0.0.1")); err != nil {
		t.Errorf("this machine: %v", err)
	}
	past, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	if err := byTCP(past, netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("an unused address answers")
	}
}
