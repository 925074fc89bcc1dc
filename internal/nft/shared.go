package nft

import (
	"context"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// shareFor is how long a listing is shared. The generation counts every transaction, but no chain that the kernel removes with its device,
// and no element that times out.
const shareFor = 2 * time.Second

// listings are the answers of nft that several readers share: at its start an agent asks for the same listings several times, and each is a
// process. An answer is shared while the generation of nftables is the one that it was asked for in, for shareFor at most.
type listings struct {
	mu         sync.Mutex
	generation uint32
	answers    map[string]*answer
}

// answer is one listing, under way or done.
type answer struct {
	asked time.Time
	// done is closed when the others are set.
	done chan struct{}
	text []byte
	err  error
}

// find returns the answer to a question of a generation, and reports whether the caller is to make it.
func (l *listings) find(generation uint32, question string, now time.Time) (found *answer, mine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.generation != generation || l.answers == nil {
		l.generation, l.answers = generation, map[string]*answer{}
	}
	if found = l.answers[question]; found != nil && now.Sub(found.asked) < shareFor {
		return found, false
	}
	found = &answer{asked: now, done: make(chan struct{})}
	l.answers[question] = found
	return found, true
}

// drop forgets an answer.
func (l *listings) drop(question string, a *answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answers[question] == a {
		delete(l.answers, question)
	}
}

// ask is run for a listing, which it may share with others. The answer is at least as new as the call.
func (e *Engine) ask(ctx context.Context, args ...string) ([]byte, error) {
	generation, err := e.generation()
	if err != nil {
		return e.run(ctx, args...)
	}
	question := strings.Join(args, " ")
	found, mine := e.shared.find(generation, question, time.Now())
	if !mine {
		select {
		case <-found.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if found.err == nil {
			return found.text, nil
		}
		return e.run(ctx, args...) // it may have ended with the context of the other reader
	}
	found.text, found.err = e.run(ctx, args...)
	close(found.done)
	time.AfterFunc(shareFor, func() { e.shared.drop(question, found) })
	return found.text, found.err
}

// Prefetch asks for all that the first Read and the first Survey list, and returns once it is there. Either may begin meanwhile: it shares
// the answers. An error is not reported: the reader asks again, and reports it.
func (e *Engine) Prefetch(ctx context.Context) {
	var group errgroup.Group
	for _, table := range e.tablesInCare() {
		group.Go(func() error {
			_, err := e.list(ctx, table)
			return err
		})
	}
	if e.foreign.Load() {
		group.Go(func() error {
			bases, counts, err := e.foreignChains(ctx)
			if err != nil {
				return err
			}
			asked := map[tableKey]bool{}
			for _, base := range bases {
				key := tableKey{base.Family, base.Table}
				if counts[key] > wholeTable || asked[key] {
					continue
				}
				asked[key] = true
				group.Go(func() error {
					_, err := e.foreignListing(ctx, base, true)
					return err
				})
			}
			return nil
		})
	}
	_ = group.Wait()
}
