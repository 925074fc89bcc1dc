package ruleset

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/nft"
)

// A slow reader loses detail but no change: at the end a change is reported.
func TestOverflowIsReported(t *testing.T) {
	m := &monitor{out: make(chan nft.Drift, 3)}
	for range 100 {
		m.send(nft.Drift{Family: nft.FamilyInet, Table: "a"})
	}
	all := false
	for len(m.out) > 0 {
		drift := <-m.out
		all = all || drift.All
	}
	if !all {
		t.Error("the loss was not reported")
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{28, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 6, 0, 1, 0, 'a', 0, 0, 0})
	f.Fuzz(func(_ *testing.T, datagram []byte) {
		m := &monitor{engine: &Engine{tables: map[tableKey]bool{}}, out: make(chan nft.Drift, driftBuffer), touched: map[tableKey]*nft.Drift{}}
		m.events(context.Background(), datagram)
	})
}

// Only a transaction whose generation the engine has read itself is its own: neither one with the same port, from a process of another pid
// namespace, nor one that came in between.
func TestMine(t *testing.T) {
	e := &Engine{}
	note := func(pid int, generation uint32) {
		own := e.own.began(uint32(pid))
		own.generation = generation
		close(own.ended)
	}
	note(7, 100)
	note(8, 0) // a failed one, or one with another transaction in between
	note(7, 102)
	for _, test := range []struct {
		name             string
		port, generation uint32
		want             bool
	}{
		{"own", 7, 100, true},
		{"own, by a process with a number used before", 7, 102, true},
		{"the number of an own process", 7, 101, false},
		{"the generation of an own transaction", 9, 100, false},
		{"an own process without a transaction of its own", 8, 101, false},
		{"no generation", 8, 0, false},
	} {
		if got := e.own.mine(t.Context(), test.port, test.generation); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// An event comes before the engine has read the generation: mine waits for it, but not longer than the watch runs.
func TestMineWaits(t *testing.T) {
	e := &Engine{}
	own := e.own.began(7)
	if e.own.mine(t.Context(), 9, 100) { // does not wait: another program's port
		t.Error("another's port is the engine's")
	}
	answer := make(chan bool)
	go func() { answer <- e.own.mine(t.Context(), 7, 100) }()
	select {
	case <-answer:
		t.Fatal("the answer came before it was known")
	case <-time.After(20 * time.Millisecond):
	}
	own.generation = 100
	close(own.ended)
	if !<-answer {
		t.Error("an own transaction counts as foreign")
	}
	e.own.began(8)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e.own.mine(ctx, 8, 101) {
		t.Error("an unknown transaction counts as the engine's")
	}
}

func TestNextGeneration(t *testing.T) {
	for before, want := range map[uint32]uint32{1: 2, 1<<32 - 1: 1} {
		if got := nextGeneration(before); got != want {
			t.Errorf("after %d comes %d", before, got)
		}
	}
}

// scripted is a socket that returns these errors, one for each read.
type scripted struct{ errs []error }

func (s *scripted) Read([]byte) (int, error) {
	err := s.errs[0]
	s.errs = s.errs[1:]
	return 0, err
}

func (s *scripted) Close() error { return nil }

// Dropped events are reported as All, and the watch continues; a socket that fails ends it, and the reason is reported.
func TestSocketFails(t *testing.T) {
	dropped := &os.PathError{Op: "read", Path: "events", Err: unix.ENOBUFS}
	s := &scripted{errs: []error{dropped, dropped, unix.EBADF}}
	w := &monitor{out: make(chan nft.Drift, driftBuffer), socket: s}
	w.run(t.Context())
	var reported []nft.Drift
	for drift := range w.out {
		reported = append(reported, drift)
	}
	if len(reported) != 3 || !reported[0].All || reported[0].Err != nil || !reported[1].All || reported[1].Err != nil || !errors.Is(reported[2].Err, unix.EBADF) {
		t.Errorf("reported: %+v", reported)
	}
}

// The end of its context is not a failure.
func TestWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &ending{cancel}
	w := &monitor{out: make(chan nft.Drift, driftBuffer), socket: s}
	w.run(ctx)
	if drift, more := <-w.out; more {
		t.Errorf("reported: %+v", drift)
	}
}

// ending is a socket that is closed because its context has ended.
type ending struct{ cancel context.CancelFunc }

func (s *ending) Read([]byte) (int, error) {
	s.cancel()
	return 0, os.ErrClosed
}

func (s *ending) Close() error { return nil }
