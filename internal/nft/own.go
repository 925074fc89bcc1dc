package nft

import (
	"context"
	"slices"
)

// ownKept is how many of the engine's own transactions are remembered to tell its changes from others'. Events come
// within milliseconds.
const ownKept = 64

// ownChange is a transaction of the engine's own. Its generation is the proof that it is: the kernel counts every
// transaction of the namespace. The netlink port is no proof, for it is the process's number in the process's own pid
// namespace, which a process in another pid namespace may have as well; but it tells at once who need not wait for the
// proof. (The pid that the kernel tells with a generation is the one in the first pid namespace: a containerised engine
// cannot know its own.)
type ownChange struct {
	port uint32
	// ended is closed when generation is known.
	ended chan struct{}
	// generation is 0 when there is none, or none that is for sure the engine's.
	generation uint32
}

// nextGeneration returns the number that the kernel gives the transaction after one.
func nextGeneration(generation uint32) uint32 {
	if generation++; generation == 0 {
		return 1 // the kernel leaves 0 out
	}
	return generation
}

// change runs nft with an input that changes something, as one transaction, and notes its generation for Monitor.
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
	// When more than one transaction came meanwhile, nobody knows which was whose, and all count as somebody else's. It
	// is the same when the generation cannot be read: what was written stands all the same.
	if after, err := e.generation(); err == nil && after == nextGeneration(before) {
		own.generation = after
	}
	return nil
}

// began notes a transaction whose process has just been started; mutex is held.
func (e *Engine) began(pid int) *ownChange {
	own := &ownChange{port: uint32(pid), ended: make(chan struct{})} //nolint:gosec // pids are positive
	e.own = append(e.own, own)
	if len(e.own) > ownKept {
		e.own = slices.Delete(e.own, 0, len(e.own)-ownKept)
	}
	return own
}

// mine reports whether the transaction that ended with a generation, sent from a netlink port, was the engine's own. It
// waits for the engine to know, which takes as long as nft takes to end.
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
