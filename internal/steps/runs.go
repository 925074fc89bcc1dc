package steps

import (
	"context"
	"sync"
)

// Runs programs changes that take several steps of I/O, without a lock during I/O. A caller stores its change under its own lock, and then
// calls Do. One run is made at a time, for everything that was stored before it began. A later change supersedes earlier ones for which
// no run has begun, and the I/O of an earlier run never follows that of a later one. The zero value is ready.
type Runs struct {
	mu sync.Mutex
	// stored counts the calls of Do: it is the number of the last change.
	stored uint64
	// underway is the run in progress; nil: none is.
	underway *run
}

// run is one run.
type run struct {
	// covers is the number of the last change that was stored before it began.
	covers uint64
	// ended is closed at its end. The fields below are set by then: its error, and whether its caller gave up.
	ended   chan struct{}
	err     error
	givenUp bool
}

// Do returns once a run has ended that began after the call, and returns the error of that run. If another caller makes that run, Do waits
// for it; otherwise Do makes it, by calling program, which takes what is stored when it begins. If the caller that makes a run gives up, a
// caller that waits for it makes a new run.
func (r *Runs) Do(ctx context.Context, program func(ctx context.Context) error) error {
	r.mu.Lock()
	r.stored++
	number := r.stored
	for r.underway != nil {
		other := r.underway
		r.mu.Unlock()
		select {
		case <-other.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
		if other.covers >= number && !other.givenUp {
			return other.err
		}
		r.mu.Lock()
	}
	own := &run{covers: r.stored, ended: make(chan struct{})}
	r.underway = own
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.underway = nil
		r.mu.Unlock()
		close(own.ended)
	}()
	own.givenUp = true // unless program returns
	own.err = program(ctx)
	own.givenUp = ctx.Err() != nil
	return own.err
}
