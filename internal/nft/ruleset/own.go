package ruleset

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"sync"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nftcli"
	"weft.dev/weft/internal/reconcile"
)

// ownKept is how many of the engine's own transactions are kept, to distinguish its changes from other programs'. Events come within
// milliseconds.
const ownKept = 64

// ownChange is a transaction of the engine. Its generation proves that: the kernel counts every transaction of the namespace. The netlink
// port proves nothing: nft's is the process's number in its own pid namespace, and a process in another pid namespace may have the same. But
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

// ownChanges are the engine's most recent transactions.
type ownChanges struct {
	mutex  sync.Mutex
	recent []*ownChange // the latest at the end
}

// start starts a process that makes a transaction, and records it. The lock is held until the process's number is recorded: the events of the
// transaction come after that.
func (o *ownChanges) start(command *exec.Cmd) (*ownChange, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if err := command.Start(); err != nil {
		return nil, err
	}
	return o.began(uint32(command.Process.Pid)), nil //nolint:gosec // pids are positive
}

// began records a transaction before its events come; mutex is held.
func (o *ownChanges) began(port uint32) *ownChange {
	own := &ownChange{port: port, ended: make(chan struct{})}
	o.recent = append(o.recent, own)
	if len(o.recent) > ownKept {
		o.recent = slices.Delete(o.recent, 0, len(o.recent)-ownKept)
	}
	return own
}

// change runs nft with an input that changes something, as one transaction.
func (e *Engine) change(ctx context.Context, input string) error {
	return e.own.transact(e.namespace, func(began **ownChange) error {
		start := func(command *exec.Cmd) (err error) {
			*began, err = e.own.start(command)
			return err
		}
		_, err := e.namespace.RunStarted(ctx, start, input, "-f", "-")
		return err
	})
}

// awaken clears the flag dormant of tables. It needs a transaction of its own: the kernel refuses base chains that are added in the same one
// (nf_tables_addchain in net/netfilter/nf_tables_api.c).
func awaken(ctx context.Context, e *Engine, change reconcile.Change[nft.Key, nft.Item]) error {
	for key, table := range ofKind[*nft.Table](change.Set) {
		if have, known := e.known[key].(*nft.Table); known && have.Dormant {
			if err := e.change(ctx, fmt.Sprintf("add table %s %s\n", table.Family, table.Name)); err != nil {
				return fmt.Errorf("%s: clearing its flag dormant: %w", key, err)
			}
			e.known[key] = table
		}
	}
	return nil
}

// transact makes a transaction, and records its generation for Monitor. run sets began as soon as the transaction's port is known.
func (o *ownChanges) transact(namespace nftcli.Namespace, run func(began **ownChange) error) error {
	before, err := namespace.Generation()
	if err != nil {
		return err
	}
	var own *ownChange
	err = run(&own)
	if own == nil {
		return err
	}
	defer close(own.ended)
	if err != nil {
		return err
	}
	// If there was more than one transaction meanwhile, their senders are unknown, and all count as another program's. The same holds if the
	// generation cannot be read: what was written is in effect in any case.
	if after, err := namespace.Generation(); err == nil && after == nextGeneration(before) {
		own.generation = after
	}
	return nil
}

// mine reports whether the transaction that ended with a generation, sent from a netlink port, was the engine's own. It waits until the
// engine knows its generation, which it does when nft ends.
func (o *ownChanges) mine(ctx context.Context, port, generation uint32) bool {
	o.mutex.Lock()
	recent := slices.Clone(o.recent)
	o.mutex.Unlock()
	for _, change := range recent {
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
