package ports

import (
	"context"
	"maps"
	"slices"
	"time"

	"weft.dev/weft/internal/neutron/host"
)

// bindings notes which ports the program that controls br-int has bound.
type bindings struct{ ports *Ports }

// plugging is a port as it is plugged until it is unplugged the next time.
type plugging struct {
	port    *port
	unplugs int
}

// unbound returns the ports that were plugged again and are not known to be bound, by their names on br-int. cancel is called when there may
// be others.
func (b *bindings) unbound(cancel func()) map[string]plugging {
	ps := b.ports
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.replugged = cancel
	names := map[string]plugging{}
	for _, p := range ps.all {
		if p.plugged && p.again && !p.bound && !p.used {
			names[host.IntegrationPort(p.uuid)] = plugging{p, p.unplugs}
		}
	}
	return names
}

// follow notes which ports are bound until ctx ends. After an error it tries again: without it no port would be used a second time.
func (b *bindings) follow(ctx context.Context) {
	ps := b.ports
	delay := firstRetry
	for ctx.Err() == nil {
		waiting, cancel := context.WithCancel(ctx)
		names := b.unbound(cancel)
		bound, err := ps.opts.AwaitBound(waiting, slices.Collect(maps.Keys(names)))
		failed := err != nil && waiting.Err() == nil
		cancel()
		if failed {
			ps.opts.Log.WarnContext(ctx, "bindings of ports not read from Open vSwitch's database; reading them again", "error", err, "delay", delay)
			select {
			case <-ctx.Done():
			case <-time.After(delay):
			}
			delay = min(2*delay, lastRetry)
			continue
		}
		delay = firstRetry
		ps.mu.Lock()
		for _, name := range bound {
			// What was read of a port that was unplugged meanwhile is about its former rows.
			if of := names[name]; of.port.plugged && !of.port.used && of.port.unplugs == of.unplugs {
				of.port.bound = true
			}
		}
		ps.wakeWaiting()
		ps.mu.Unlock()
	}
}
