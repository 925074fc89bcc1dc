// Package liveness detects within half a second that a host of the network no longer answers, by permanent probes.
//
// A probe tests the host's own network stack, at an address that is reached by the same path as the traffic: it opens a TCP connection to a
// port without a listener. The refusal is the answer. It needs no program on the host, and its rate is not limited as that of ICMP errors
// is. A host is gone after three consecutive probes without an answer, and back after many with an answer: a host that flaps stays gone.
package liveness

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Intervals. The failure of a host is detected within Period and three times Patience: 450 ms.
const (
	// Period is the probe interval of a host that answers.
	Period = 150 * time.Millisecond
	// Patience is the timeout of a probe.
	Patience = 100 * time.Millisecond

	missesMax  = 3
	answersMin = 20 // three seconds
)

// Port is the TCP port of probes (discard, RFC 863), a service that is not in use.
const Port = 9

// errNoAnswer means that a host did not answer in time.
var errNoAnswer = errors.New("no answer")

// Watcher probes hosts. The zero value is ready for use.
type Watcher struct {
	// Changed is called when the result of Gone has changed for a host; if Proven is set, also when that of Answered has. It must not block.
	// Nil: not called.
	Changed func()
	// Proven says that only a host that has answered once can be gone. It is for networks where a firewall may block the probes to healthy
	// hosts.
	Proven bool
	// Ask probes a host once, and returns an error if the host does not answer within ctx. Nil: by TCP.
	Ask func(ctx context.Context, host netip.Addr) error

	mu    sync.Mutex
	hosts map[netip.Addr]*host
	wake  chan struct{}
}

// host is a host that is probed.
type host struct {
	stop     context.CancelFunc // nil: not probed yet
	answered bool
	// silent counts the probes before the first answer.
	silent int
	verdict
}

// Watch sets the hosts to probe. A new host counts as alive until it is known to be gone. A host that is no longer watched counts as alive
// too; if it was gone, Changed is called.
func (w *Watcher) Watch(hosts []netip.Addr) {
	if w.watch(hosts) && w.Changed != nil {
		w.Changed()
	}
}

// watch implements Watch, and reports whether the result of Gone has changed.
func (w *Watcher) watch(hosts []netip.Addr) (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begin()
	watched := make(map[netip.Addr]struct{}, len(hosts))
	for _, addr := range hosts {
		watched[addr] = struct{}{}
	}
	for addr, h := range w.hosts {
		if _, still := watched[addr]; !still {
			if h.stop != nil {
				h.stop()
			}
			delete(w.hosts, addr)
			changed = changed || h.gone
		}
	}
	for _, addr := range hosts {
		if w.hosts[addr] == nil {
			w.hosts[addr] = &host{}
		}
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return changed
}

// begin initialises the zero value. The caller holds mu.
func (w *Watcher) begin() {
	if w.hosts == nil {
		w.hosts, w.wake = map[netip.Addr]*host{}, make(chan struct{}, 1)
	}
}

// Gone reports whether a watched host no longer answers.
func (w *Watcher) Gone(addr netip.Addr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hosts[addr]
	return h != nil && h.gone
}

// Answered reports whether a watched host has ever answered, and whether that is known. For a new host it is known after as many probes as
// it takes to detect that a host is gone.
func (w *Watcher) Answered(addr netip.Addr) (answered, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hosts[addr]
	return h != nil && h.answered, h != nil && h.known()
}

func (h *host) known() bool { return h.answered || h.silent >= missesMax }

// heard records the result of a probe, and reports whether the state of the host has changed. The caller holds mu.
func (w *Watcher) heard(h *host, answers bool) bool {
	answered, known := h.answered, h.known()
	h.answered = answered || answers
	if !h.answered {
		h.silent = min(h.silent+1, missesMax)
	}
	if !w.Proven {
		return h.note(answers)
	}
	judged := h.answered && h.note(answers)
	return judged || h.answered != answered || h.known() != known
}

// Run probes until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	var group errgroup.Group
	w.mu.Lock()
	w.begin()
	wake := w.wake
	w.mu.Unlock()
	for {
		w.mu.Lock()
		for addr, h := range w.hosts {
			if h.stop == nil {
				var asking context.Context
				asking, h.stop = context.WithCancel(ctx)
				group.Go(func() error {
					w.follow(asking, addr, h)
					return nil
				})
			}
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-wake:
		}
	}
}

// follow probes one host until ctx ends. If there is no answer, the next probe follows at once.
func (w *Watcher) follow(ctx context.Context, addr netip.Addr, h *host) {
	ask := w.Ask
	if ask == nil {
		ask = byTCP
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		begun := time.Now()
		waiting, cancel := context.WithTimeout(ctx, Patience)
		err := ask(waiting, addr)
		cancel()
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		changed := w.heard(h, err == nil)
		rest := Period
		if err != nil && !h.gone {
			rest = Patience
		}
		w.mu.Unlock()
		if changed && w.Changed != nil {
			w.Changed()
		}
		timer.Reset(max(0, rest-time.Since(begun)))
	}
}

// verdict is the state derived from the answers.
type verdict struct {
	gone            bool
	misses, answers int
}

// note records whether a probe was answered, and reports whether that changes the verdict.
func (v *verdict) note(answered bool) bool {
	was := v.gone
	if answered {
		v.misses, v.answers = 0, v.answers+1
		v.gone = v.gone && v.answers < answersMin
	} else {
		v.answers, v.misses = 0, v.misses+1
		v.gone = v.gone || v.misses >= missesMax
	}
	return v.gone != was
}

// byTCP opens a connection to a host. A refusal is an answer, and so is any error caused by this side.
func byTCP(ctx context.Context, addr netip.Addr) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp4", netip.AddrPortFrom(addr, Port).String())
	if err == nil {
		_ = conn.Close() // a program listens on the port
		return nil
	}
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return errNoAnswer
	}
	return nil
}
