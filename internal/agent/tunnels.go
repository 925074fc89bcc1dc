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

// tunnels keeps the neighbour entries of the tunnels' remote ends in the userspace datapath: without an entry, the first packet to another
// node is lost. The kernel datapath does not need this.
type tunnels struct {
	log  *slog.Logger
	wake chan struct{}

	mu sync.Mutex
	// ends are the remote hosts' addresses; due are those that must be resolved.
	ends, due []netip.Addr
}

func newTunnels(log *slog.Logger) *tunnels { return &tunnels{log: log, wake: make(chan struct{}, 1)} }

// set sets the remote ends of the tunnels.
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

// again resolves all neighbours again, because the switch has restarted without any.
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

// Delays between attempts to resolve neighbours that have no route yet. After a restart of the switch, the node's own address may not be
// restored yet.
const (
	firstResolveRetry = 250 * time.Millisecond
	lastResolveRetry  = 30 * time.Second
)

// run resolves neighbours until ctx ends.
func (t *tunnels) run(ctx context.Context) error {
	delay := firstResolveRetry
	for {
		var retry <-chan time.Time
		due := t.take()
		if err := link.Resolve(due...); err != nil {
			// The switch also resolves by itself, but then loses a packet.
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

// putBack makes addresses due again if they are still the ends of tunnels.
func (t *tunnels) putBack(due []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, end := range due {
		if slices.Contains(t.ends, end) && !slices.Contains(t.due, end) {
			t.due = append(t.due, end)
		}
	}
}
