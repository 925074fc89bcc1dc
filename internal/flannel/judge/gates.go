package judge

import (
	"context"
	"fmt"
	"sync"

	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// gates maintains the guard of the bridge, and removes the base chains of the pods' table, by the compiler's pods: both are needed while a pod is
// isolated, or not known. The guard drops what the base chains have not marked: it comes after them, and goes before them.
type gates struct {
	wake        chan struct{}
	pods, guard *table
	// guarded are the items of the guard.
	guarded nftables.Items
	// compiled calls a function with the compiler, once there is one.
	compiled func(func(*nftables.Compiler))
	// sweep flushes the connections of the node's ranges that belong to no attached pod.
	sweep func() error

	// mu guards what follows. sweeps counts calls of sweep. last is the number of the one since which the base chains have been in effect, 0 if
	// there is none: since then, packets to addresses without a pod are dropped, and make no entry of conntrack. losses counts calls of lost.
	mu                   sync.Mutex
	sweeps, last, losses uint64
}

// changed notes that pods have changed. It does not block.
func (g *gates) changed() { steps.Wake(g.wake) }

// wanted reports whether base chains are handed over.
func (g *gates) wanted() (wanted bool) {
	g.compiled(func(c *nftables.Compiler) { wanted = c.Gated() })
	return wanted
}

// lastSweep returns the number of the sweep since which the base chains have been in effect, 0 if there is none.
func (g *gates) lastSweep() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// lost notes that the base chains are not in effect, or were not for a while, because another program has changed the table.
func (g *gates) lost() {
	g.mu.Lock()
	g.losses++
	g.last = 0
	g.mu.Unlock()
	g.changed()
}

// step adds the guard, or removes the guard and then the base chains.
func (g *gates) step(ctx context.Context) error {
	if !g.wanted() {
		return nil
	}
	if err := g.pods.settled(ctx, nftables.OwnerStatic, nftables.OwnerGates); err != nil {
		return fmt.Errorf("table %s: %w", podsTable, err)
	}
	var items nftables.Items
	g.compiled(func(c *nftables.Compiler) {
		if c.Held() {
			items = g.guarded
		}
	})
	g.guard.loop.Set(map[reconcile.Owner]nftables.Items{nftables.OwnerGates: items})
	if err := g.guard.settled(ctx, nftables.OwnerGates); err != nil {
		return fmt.Errorf("table %s: %w", guardTable, err)
	}
	if items != nil {
		return g.sweepOnce()
	}
	g.compiled(func(c *nftables.Compiler) {
		if c.Ungate(); c.Gated() {
			g.changed() // a pod needs them again
			return
		}
		g.mu.Lock()
		g.last = 0
		g.mu.Unlock()
	})
	return nil
}

// sweepOnce calls sweep once after base chains have come into effect.
func (g *gates) sweepOnce() error {
	g.mu.Lock()
	swept, losses := g.last != 0, g.losses
	g.mu.Unlock()
	if swept {
		return nil
	}
	if err := g.sweep(); err != nil {
		return fmt.Errorf("end connections of addresses without a pod: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.losses != losses { // packets may have made entries meanwhile
		g.changed()
		return nil
	}
	g.sweeps++
	g.last = g.sweeps
	return nil
}
