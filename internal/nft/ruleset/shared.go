package ruleset

import (
	"context"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// shareFor is how long a listing is shared. The generation counts every transaction, but not chains that the kernel removes with their
// device, and not elements that time out.
const shareFor = 2 * time.Second

// listings are nft listings that several readers share: at its start an agent requests the same listings several times, and each is a
// process. A listing is shared as long as the generation of nftables has not changed since its request, for shareFor at most.
type listings struct {
	mu         sync.Mutex
	generation uint32
	answers    map[string]*answer
}

// answer is one listing, running or done.
type answer struct {
	asked time.Time
	// done is closed when text and err are set.
	done chan struct{}
	text []byte
	err  error
}

// find returns the answer to a question in a generation, and reports whether the caller has to produce it.
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

// drop deletes an answer.
func (l *listings) drop(question string, a *answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answers[question] == a {
		delete(l.answers, question)
	}
}

// ask is run for a listing, which it may share with other callers. The answer is at least as new as the call.
func (e *Engine) ask(ctx context.Context, args ...string) ([]byte, error) {
	generation, err := e.namespace.Generation()
	if err != nil {
		return e.namespace.Run(ctx, args...)
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
		return e.namespace.Run(ctx, args...) // it may have failed because the other reader's context ended
	}
	found.text, found.err = e.namespace.Run(ctx, args...)
	close(found.done)
	time.AfterFunc(shareFor, func() { e.shared.drop(question, found) })
	return found.text, found.err
}

// Prefetch requests the listings by nft of the first Read and the first Survey, which are those of other programs' tables, and returns once
// they are done. Read and Survey may begin meanwhile: they share the answers. Errors are not returned: the reader requests the listing again, and returns its error.
func (e *Engine) Prefetch(ctx context.Context) {
	var group errgroup.Group
	if e.foreign.Load() {
		group.Go(func() error {
			bases, counts, err := e.foreignChains()
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
				group.Go(func() error { _, err := e.foreignListing(ctx, base, true); return err })
			}
			return nil
		})
	}
	_ = group.Wait()
}
