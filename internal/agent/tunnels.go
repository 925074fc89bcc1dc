package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/link"
)

// tunnels keeps the userspace datapath's knowledge of the tunnels' routes and neighbours: without the latter the first
// packet to another node is lost. The kernel's datapath needs none of it.
type tunnels struct {
	log    *slog.Logger
	wake   chan struct{}
	routes *tunnelRoutes

	mu sync.Mutex
	// ends are the remote hosts' addresses; due are those whose neighbours are to be found.
	ends, due []netip.Addr
}

// newTunnels returns the tunnels of the switch whose sockets are in a directory.
func newTunnels(runDir string, log *slog.Logger) *tunnels {
	return &tunnels{log: log, wake: make(chan struct{}, 1), routes: newTunnelRoutes(runDir, log)}
}

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
	same := slices.Equal(ends, t.ends)
	t.ends = ends
	if !same {
		t.signal()
	}
}

// again has all routes set and all neighbours found anew: the switch has started without any.
func (t *tunnels) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due = slices.Clone(t.ends)
	t.signal()
}

// verify has the routes compared with what the switch and the kernel have.
func (t *tunnels) verify() { t.signal() }

func (t *tunnels) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// take returns where the tunnels end, and those ends whose neighbours are to be found.
func (t *tunnels) take() (ends, due []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due = t.due
	t.due = nil
	return t.ends, due
}

// Delays between tries to set routes and find neighbours that have no route yet: after a restart of the switch the node's own address may
// be on its way back.
const (
	firstResolveRetry = 250 * time.Millisecond
	lastResolveRetry  = 30 * time.Second
)

// run sets routes and finds neighbours until ctx ends.
func (t *tunnels) run(ctx context.Context) error {
	if err := t.followRoutes(ctx); err != nil {
		return err
	}
	delay := firstResolveRetry
	for {
		var retry <-chan time.Time
		ends, due := t.take()
		err := t.routes.sync(ctx, ends)
		if resolveErr := link.Resolve(due...); resolveErr != nil {
			t.putBack(due)
			err = errors.Join(err, resolveErr)
		}
		if err != nil {
			// The switch follows the kernel's routes and asks for neighbours by itself as well, at the price of packets.
			t.log.Debug("routes and neighbours of tunnels, trying again", "error", err)
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

// followRoutes has the routes compared whenever the kernel's change, until ctx ends.
func (t *tunnels) followRoutes(ctx context.Context) error {
	updates, err := t.routeUpdates(ctx)
	if err != nil {
		return err
	}
	go func() {
		for err == nil && ctx.Err() == nil {
			for range updates { // it is closed when ctx ends, and when updates were lost
				t.signal()
			}
			updates, err = t.routeUpdates(ctx)
			t.signal()
		}
		if err != nil {
			t.log.Warn("changes of routes are seen at the next verification only", "error", err)
		}
	}()
	return nil
}

func (t *tunnels) routeUpdates(ctx context.Context) (<-chan netlink.RouteUpdate, error) {
	updates := make(chan netlink.RouteUpdate)
	err := netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{
		ErrorCallback: func(err error) { t.log.Debug("following the kernel's routes", "error", err) },
	})
	if err != nil {
		return nil, fmt.Errorf("following the kernel's routes: %w", err)
	}
	return updates, nil
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
