package notify

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
)

// A slow reader loses detail but no change: at the end All is reported.
func TestOverflowIsReported(t *testing.T) {
	w := &watcher{out: make(chan Drift, 3)}
	for range 100 {
		w.send(Drift{Device: "tun0", Kind: link.KindDevice})
	}
	all := false
	for len(w.out) > 0 {
		drift := <-w.out
		all = all || drift.All
	}
	if !all {
		t.Error("the loss was not reported")
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{32, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	// A bridge's event about port 1: IFLA_PROTINFO with IFLA_BRPORT_MODE.
	f.Add([]byte{44, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 12, 128, 5, 0, 4, 0, 1, 0, 0, 0})
	// A device's event with an empty IFLA_PARENT_DEV_NAME.
	f.Add([]byte{44, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 56, 0, 8, 0, 3, 0, 'e', 0, 0, 0})
	f.Fuzz(func(_ *testing.T, datagram []byte) {
		ports := map[string]*watchedPort{"port": {port: link.BridgePort{Device: "port", Bridge: "br"}, settled: true}}
		w := &watcher{
			care: &Care{devices: map[link.Key]bool{}, ports: ports}, names: map[int]string{1: "port"}, out: make(chan Drift, driftBuffer),
		}
		w.events(datagram)
	})
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
	w := &watcher{out: make(chan Drift, driftBuffer), socket: s}
	w.run(t.Context())
	var reported []Drift
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
	w := &watcher{out: make(chan Drift, driftBuffer), socket: s}
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
