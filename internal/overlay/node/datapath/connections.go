package datapath

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/ofproto"
)

// Connections are the connections that the switch tracks.
type Connections struct {
	// RunDir is the directory of the switch's sockets.
	RunDir string
	// Flows are the flows of the bridge whose connections are tracked.
	Flows *bridge.Engine
}

var errNoSwitch = errors.New("ovs-vswitchd does not answer on its control socket")

// revalidation is twice the longest time until the switch's datapath uses new flows (other_config:max-revalidator of
// ovs-vswitchd.conf.db(5), 500 ms).
const revalidation = time.Second

func wait(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the switch: %w", context.Cause(ctx))
	}
}

// flushTimeout bounds the wait for the datapath.
const flushTimeout = 10 * time.Second

// FlushOutdated implements balancer.Connections. Until the datapath uses the new flows, a packet would create the same conntrack entry
// again. A round of the datapath that is in progress may already have passed the flow in question, so there is a second round. The first
// one removes most entries.
func (c *Connections) FlushOutdated(ctx context.Context, what []openflow.CTFlush) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	for range 2 {
		if err := c.Settle(ctx); err != nil {
			return err
		}
		if err := c.Flush(ctx, what); err != nil {
			return err
		}
	}
	return nil
}

// Flush implements balancer.Connections.
func (c *Connections) Flush(ctx context.Context, what []openflow.CTFlush) error {
	for _, flush := range what {
		if err := c.Flows.FlushCT(ctx, flush); err != nil {
			return err
		}
	}
	return nil
}

// Settle waits until the datapath uses the flows that are committed. A switch that was killed leaves its socket behind, with its process ID
// in the name.
func (c *Connections) Settle(ctx context.Context) error {
	paths, _ := filepath.Glob(filepath.Join(c.RunDir, "ovs-vswitchd.*.ctl")) // the error is for a bad pattern
	err := errNoSwitch
	for _, path := range paths {
		_, failed := ofproto.Command(ctx, path, "revalidator/wait")
		switch {
		case failed == nil:
			return nil
		case errors.Is(failed, ofproto.ErrCommand): // "can't wait on multiple udpifs": bridges of both datapath types
			return wait(ctx, revalidation)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// Purge implements overlay.Datapath. Where its flows overlap, the userspace datapath of Open vSwitch 3.1.0 may apply new actions to another
// of its flows than the intended one (it finds them by a packet, not by their name), and regard the change as done. Traffic that is no
// longer allowed would then pass as long as packets arrive. Purged flows are created again from the switch's current state.
func (c *Connections) Purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	paths, _ := filepath.Glob(filepath.Join(c.RunDir, "ovs-vswitchd.*.ctl")) // the error is for a bad pattern
	err := errNoSwitch
	for _, path := range paths { // a switch that was killed leaves its socket behind
		if _, failed := ofproto.Command(ctx, path, "revalidator/purge"); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		return nil
	}
	return err
}

// NoFlush leaves the switch's conntrack entries in place.
type NoFlush struct{}

// FlushOutdated implements balancer.Connections.
func (NoFlush) FlushOutdated(context.Context, []openflow.CTFlush) error { return nil }

// Flush implements balancer.Connections.
func (NoFlush) Flush(context.Context, []openflow.CTFlush) error { return nil }
