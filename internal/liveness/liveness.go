// Package liveness tells within half a second that a host of the network no longer answers, by asking it all the time.
//
// What is asked is the host's own network stack, at an address that is reached the way the traffic goes: by a TCP connection to
// a port where nobody listens. That it is refused is the answer, which no program has to give, and which is not limited in
// its rate as ICMP errors are. A host is gone after three tries in a row without an answer, and back after many with one:
// what comes and goes stays gone.
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

// Times. Within Period and three times Patience a host that went is known to be gone: 450 ms.
const (
	// Period is how often a host is asked that answers.
	Period = 150 * time.Millisecond
	// Patience is how long an answer is waited for.
	Patience = 100 * time.Millisecond

	missesMax  = 3
	answersMin = 20 // three seconds
)

// Port is the TCP port that is asked at (discard, RFC 863): nobody offers that service.
const Port = 9

// errNoAnswer says that a host did not answer in time.
var errNoAnswer = errors.New("no answer")

// Watcher asks hosts. The zero value is ready.
type Watcher struct {
	// Changed is called when what Gone returns has changed, and where Proven is set, what Answered returns. It must not wait. Nil:
	// nobody is told.
	Changed func()
	// Proven says that only a host that has answered once can be gone: where a firewall may keep the question from hosts that
	// are well.
	Proven bool
	// Ask asks a host once, and returns an error if it does not answer within ctx. Nil: by TCP.
	Ask func(ctx context.Context, host netip.Addr) error

	mu    sync.Mutex
	hosts map[netip.Addr]*host
	wake  chan struct{}
}

// host is one that is asked.
type host struct {
	stop     context.CancelFunc // nil: nobody asks yet
	answered bool
	// silent counts the tries before the first answer.
	silent int
	verdict
}

// Watch has these hosts asked from now on, and no others. A host that is new counts as alive until it is known to be gone, and
// so does one that is watched no more: that Changed tells of as well.
func (w *Watcher) Watch(hosts []netip.Addr) {
	if w.watch(hosts) && w.Changed != nil {
		w.Changed()
	}
}

// watch is Watch, and reports whether it changes what Gone returns.
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

// begin makes what the zero value has not. The caller holds mu.
func (w *Watcher) begin() {
	if w.hosts == nil {
		w.hosts, w.wake = map[netip.Addr]*host{}, make(chan struct{}, 1)
	}
}

// Gone reports whether a host that is watched does not answer any more.
func (w *Watcher) Gone(addr netip.Addr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hosts[addr]
	return h != nil && h.gone
}

// Answered reports whether a host that is watched has ever answered, and whether that is known: one that is new is given the time in
// which another is known to be gone.
func (w *Watcher) Answered(addr netip.Addr) (answered, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hosts[addr]
	return h != nil && h.answered, h != nil && h.known()
}

func (h *host) known() bool { return h.answered || h.silent >= missesMax }

// heard takes an answer of a host, or that there was none, and reports whether that changes what is told of it. The caller holds mu.
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

// Run asks until ctx ends.
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

// follow asks one host until ctx ends. One that does not answer is asked again at once.
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

// verdict is what is made of answers.
type verdict struct {
	gone            bool
	misses, answers int
}

// note takes an answer, or that there was none, and reports whether that changes the verdict.
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

// byTCP asks a host for a connection. That it refuses is an answer; and so is anything that is this side's own trouble.
func byTCP(ctx context.Context, addr netip.Addr) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp4", netip.AddrPortFrom(addr, Port).String())
	if err == nil {
		_ = conn.Close() // somebody listens after all
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
