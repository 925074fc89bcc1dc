package nft

import (
	"context"
	"slices"
)

// ownKept is how many of the engine's own transactions are kept, to distinguish its changes from other programs'. Events come within
// milliseconds.
const ownKept = 64

// ownChange is a transaction of the engine. Its generation proves that: the kernel counts every transaction of the namespace. The netlink
// port proves nothing: it is the process's number in its own pid namespace, and a process in another pid namespace may have the same. But
// another port shows at once that the transaction is not the engine's, without waiting for the generation. (The pid that the kernel reports
// with a generation is the one in the first pid namespace: a containerised engine does not know its own.)
type ownChange struct {
	port uint32
	// ended is closed once generation is set.
	ended chan struct{}
	// generation is 0 if there is none, or none that is certainly the engine's.
	generation uint32
}

// nextGeneration returns the generation after the next transaction.
func nextGeneration(generation uint32) uint32 {
	if generation++; generation == 0 {
		return 1 // the kernel skips 0
	}
	return generation
}

// change runs nft with an input that changes something, as one transaction, and records its generation for Monitor.
func (e *Engine) change(ctx context.Context, input string) error {
	before, err := e.generation()
	if err != nil {
		return err
	}
	var own *ownChange
	_, err = e.runNoted(ctx, func(pid int) { own = e.began(pid) }, input, "-f", "-")
	if own == nil {
		return err
	}
	defer close(own.ended)
	if err != nil {
		return err
	}
	// If there was more than one transaction meanwhile, their senders are unknown, and all count as another program's. The same holds if the
	// generation cannot be read: what was written is in effect in any case.
	if after, err := e.generation(); err == nil && after == nextGeneration(before) {
		own.generation = after
	}
	return nil
}

// began records a transaction whose process has just been started; mutex is held.
func (e *Engine) began(pid int) *ownChange {
	own := &ownChange{port: uint32(pid), ended: make(chan struct{})} //nolint:gosec // pids are positive
	e.own = append(e.own, own)
	if len(e.own) > ownKept {
		e.own = slices.Delete(e.own, 0, len(e.own)-ownKept)
	}
	return own
}

// mine reports whether the transaction that ended with a generation, sent from a netlink port, was the engine's own. It waits until the
// engine knows its generation, which it does when nft ends.
func (e *Engine) mine(ctx context.Context, port, generation uint32) bool {
	e.mutex.Lock()
	own := slices.Clone(e.own)
	e.mutex.Unlock()
	for _, change := range own {
		if change.port != port || generation == 0 {
			continue
		}
		select {
		case <-change.ended:
			if change.generation == generation {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
	return false
}
