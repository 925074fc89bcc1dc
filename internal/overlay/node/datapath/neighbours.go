// Package datapath is what the overlay uses of the switch's datapath and of the node's kernel besides the engines: tracked connections, the
// neighbours of tunnels, and the announcement of addresses.
package datapath

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/link/arp"
	"weft.dev/weft/internal/steps"
)

// Neighbours keep the neighbour entries of the tunnels' remote ends in the userspace datapath: without an entry, the first packet to another
// node is lost. The kernel datapath does not need this.
type Neighbours struct {
	log  *slog.Logger
	wake chan struct{}

	mu sync.Mutex
	// ends are the remote hosts' addresses; due are those that must be resolved.
	ends, due []netip.Addr
}

// NewNeighbours returns neighbours of no tunnel.
func NewNeighbours(log *slog.Logger) *Neighbours {
	return &Neighbours{log: log, wake: make(chan struct{}, 1)}
}

// Set sets the remote ends of the tunnels.
func (t *Neighbours) Set(remotes []clusternetwork.HostSubnet) {
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

// Again resolves all neighbours again, because the switch has restarted without any.
func (t *Neighbours) Again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due = slices.Clone(t.ends)
	t.signal()
}

func (t *Neighbours) signal() { steps.Wake(t.wake) }

func (t *Neighbours) take() []netip.Addr {
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

// Run resolves neighbours until ctx ends.
func (t *Neighbours) Run(ctx context.Context) error {
	delay := firstResolveRetry
	for {
		var retry <-chan time.Time
		due := t.take()
		if err := arp.Resolve(due...); err != nil {
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
func (t *Neighbours) putBack(due []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, end := range due {
		if slices.Contains(t.ends, end) && !slices.Contains(t.due, end) {
			t.due = append(t.due, end)
		}
	}
}
