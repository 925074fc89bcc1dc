package ports

import (
	"context"
	"maps"
	"slices"
	"time"

	"weft.dev/weft/internal/neutron/host"
)

// bindings notes which ports the program that controls br-int has bound, and of which OVN has installed the flows.
type bindings struct{ ports *Ports }

// plugging is a port as it is plugged until it is unplugged the next time.
type plugging struct {
	port    *port
	unplugs int
}

// await is what the ports of br-int wait for, by their names there.
type await struct {
	// bind are ports that were plugged again. Of them, Neutron's report may be about their former plugging.
	bind map[string]plugging
	// install are ports that were plugged for the first time and are not known to be ACTIVE. OVN's mark on the node comes before Neutron's
	// report, for which the controller has to ask.
	install map[string]plugging
}

// unbound returns the ports that are not known to be bound or ACTIVE. cancel is called when there may be others.
func (b *bindings) unbound(cancel func()) await {
	ps := b.ports
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.replugged = cancel
	all := await{map[string]plugging{}, map[string]plugging{}}
	for _, p := range ps.all {
		name := host.IntegrationPort(p.uuid)
		switch {
		case !p.plugged || p.bound || p.used:
		case p.again:
			all.bind[name] = plugging{p, p.unplugs}
		case p.object != nil && !p.object.Spec.Active:
			all.install[name] = plugging{p, p.unplugs}
		}
	}
	return all
}

// follow notes which ports are bound until ctx ends. After an error it tries again: without it no port would be used a second time.
func (b *bindings) follow(ctx context.Context) {
	ps := b.ports
	delay := firstRetry
	for ctx.Err() == nil {
		waiting, cancel := context.WithCancel(ctx)
		all := b.unbound(cancel)
		bound, err := ps.opts.AwaitBound(waiting, slices.Collect(maps.Keys(all.bind)), slices.Collect(maps.Keys(all.install)))
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
			of, again := all.bind[name]
			if !again {
				of = all.install[name]
			}
			if of.port.plugged && !of.port.used && of.port.unplugs == of.unplugs {
				of.port.bound = true
			}
		}
		ps.wakeWaiting()
		ps.mu.Unlock()
	}
}
