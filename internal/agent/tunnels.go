package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/link"
)

// tunnels keeps the userspace datapath's knowledge of the tunnels' neighbours warm: without it the first packet to
// another node is lost. The kernel's datapath needs none of it.
type tunnels struct {
	log  *slog.Logger
	wake chan struct{}

	mu sync.Mutex
	// ends are the remote hosts' addresses; due are those whose neighbours are to be found.
	ends, due []netip.Addr
}

func newTunnels(log *slog.Logger) *tunnels { return &tunnels{log: log, wake: make(chan struct{}, 1)} }

// set says where the tunnels end now.
func (t *tunnels) set(remotes []clusternetwork.HostSubnet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ends []netip.Addr
	for _, remote := range remotes {
		ends = append(ends, remote.HostIP)
		if !slices.Contains(t.ends, remote.HostIP) {
			t.due = append(t.due, remote.HostIP)
		}
	}
	t.ends = ends
	t.signal()
}

// again has all neighbours found anew: the switch has started without any.
func (t *tunnels) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due = slices.Clone(t.ends)
	t.signal()
}

func (t *tunnels) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *tunnels) take() []netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := t.due
	t.due = nil
	return due
}

// Delays between tries to find neighbours that have no route yet: after a restart of the switch the node's own address may
// be on its way back.
const (
	firstResolveRetry = 250 * time.Millisecond
	lastResolveRetry  = 30 * time.Second
)

// run finds neighbours until ctx ends.
func (t *tunnels) run(ctx context.Context) error {
	delay := firstResolveRetry
	for {
		var retry <-chan time.Time
		due := t.take()
		if err := link.Resolve(due...); err != nil {
			// The switch asks by itself as well, at the price of a packet.
			t.log.Debug("resolving the neighbours of tunnels failed, trying again", "error", err)
			t.putBack(due)
			retry = time.After(delay)
		} else {
			delay = firstResolveRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case <-retry:
			delay = min(2*delay, lastResolveRetry)
		}
	}
}

// putBack makes addresses due again, as far as tunnels still end there.
func (t *tunnels) putBack(due []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, end := range due {
		if slices.Contains(t.ends, end) && !slices.Contains(t.due, end) {
			t.due = append(t.due, end)
		}
	}
}
