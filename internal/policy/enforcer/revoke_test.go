package enforcer_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/reconcile"
)

// A revocation that one call is making may be what another one asked for: that one returns only when it has been made.
func TestFlushWaitsForARevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := &sync.Mutex{}
		made := make(chan struct{})
		r := enforcer.NewRevocations(enforcer.RevocationOptions{
			Lock: lock, Rest: func() time.Duration { return time.Second },
			Settled: func(context.Context, []reconcile.Owner) error { return nil },
			Revoke:  func(context.Context) error { <-made; return nil },
		})
		flush := func() <-chan error {
			r.Due(false)
			flushed := make(chan error, 1)
			go func() { flushed <- r.Flush(t.Context()) }()
			synctest.Wait()
			return flushed
		}
		if err := r.Flush(t.Context()); err != nil { // nothing is due
			t.Fatal(err)
		}
		r.Due(true)
		first := flush()
		second := flush()
		if len(first)+len(second) > 0 {
			t.Fatal("a revocation that is being made is reported as made")
		}
		close(made)
		synctest.Wait()
		if len(first) != 1 || len(second) != 1 || <-first != nil || <-second != nil {
			t.Error("a revocation is not reported as made")
		}
	})
}

// interrupted is a lock that calls a function before it is taken for the second time.
type interrupted struct {
	sync.Mutex

	taken  int
	second func()
}

func (l *interrupted) Lock() {
	if l.taken++; l.taken == 2 {
		l.second()
	}
	l.Mutex.Lock()
}

// Between the moments at which Flush finds a revocation due and begins it, no other call can begin it unnoticed.
func TestFlushWaitsForARevocationThatJustBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock, made := &interrupted{second: func() {}}, false
		r := enforcer.NewRevocations(enforcer.RevocationOptions{
			Lock: lock, Rest: func() time.Duration { return time.Second },
			Settled: func(context.Context, []reconcile.Owner) error { return nil },
			Revoke: func(context.Context) error {
				time.Sleep(time.Second)
				lock.Mutex.Lock()
				defer lock.Unlock()
				made = true
				return nil
			},
		})
		r.Due(true)
		other := make(chan error, 1)
		lock.taken, lock.second = 0, func() {
			go func() { other <- r.Flush(t.Context()) }()
			synctest.Wait()
		}
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		lock.Mutex.Lock()
		if !made {
			t.Error("a revocation that another call is making is reported as made")
		}
		lock.Unlock()
		if err := <-other; err != nil {
			t.Error(err)
		}
	})
}

// A revocation that failed is tried again, also if its caller does not call again.
func TestFailedRevocationIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken, tries := errors.New("broken"), 0
		r := enforcer.NewRevocations(enforcer.RevocationOptions{
			Lock: &sync.Mutex{}, Rest: func() time.Duration { return time.Second },
			Settled: func(context.Context, []reconcile.Owner) error { return nil },
			Revoke: func(context.Context) error {
				if tries++; tries == 1 {
					return broken
				}
				return nil
			},
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		r.Due(true)
		if err := r.Flush(t.Context()); !errors.Is(err, broken) {
			t.Errorf("it fails, and the answer is %v", err)
		}
		synctest.Wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if tries != 2 || r.Pending() {
			t.Errorf("tried %d times; pending: %t", tries, r.Pending())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// counter is a compiler whose only fragment, and a permission, change at each Commit.
type counter struct{ commits int }

func (*counter) Apply(policy.Effect, *policy.Index) {}
func (*counter) Narrowed() bool                     { return true }
func (*counter) Clear()                             {}

func (c *counter) Commit(*policy.Index, []enforcer.Attachment, []attach.Record, bool) []reconcile.Owner {
	c.commits++
	return []reconcile.Owner{"policy"}
}

// A revocation waits for a fragment that is handed over while an earlier one of the same owner comes into effect.
func TestRevocationWaitsForTheLastFragment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock, compiler := &sync.Mutex{}, &counter{}
		var effective, revoked int
		tried := sync.NewCond(lock)
		e := enforcer.New(enforcer.Options{
			Node: "n1", Lock: lock,
			Revocations: enforcer.NewRevocations(enforcer.RevocationOptions{
				Lock: lock, Rest: func() time.Duration { return time.Second },
				Settled: func(context.Context, []reconcile.Owner) error {
					lock.Lock()
					defer lock.Unlock()
					for want := compiler.commits; effective < want; {
						tried.Wait()
					}
					return nil
				},
				Revoke: func(context.Context) error {
					lock.Lock()
					defer lock.Unlock()
					revoked = effective
					return nil
				},
			}),
		})
		e.Compile(compiler, nil)
		e.Begin(nil)
		update := func() <-chan error {
			updated := make(chan error, 1)
			go func() { updated <- e.Update(t.Context(), enforcer.Change{}) }()
			synctest.Wait()
			return updated
		}
		commit := func(n int) {
			lock.Lock()
			effective = n
			lock.Unlock()
			tried.Broadcast()
			synctest.Wait()
		}
		first, second := update(), update()
		commit(2)
		commit(3)
		if err := errors.Join(<-first, <-second); err != nil {
			t.Fatal(err)
		}
		if revoked != 3 {
			t.Errorf("both changes are reported as in effect, and what the %d. allowed is not revoked", revoked)
		}
	})
}

// TestApart: with Apart, a change waits for no revocation. Run makes it at once, and Made follows when the last that was due has been made, not
// one that failed. What failed rests before it is tried again.
func TestApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rest, pass = time.Minute, time.Second
		lock, failures, settled := &sync.Mutex{}, 0, 0
		var begun []time.Duration
		start := time.Now()
		c := &counter{}
		r := enforcer.NewRevocations(enforcer.RevocationOptions{
			Lock: lock, Rest: func() time.Duration { return rest }, Apart: true,
			Settled: func(context.Context, []reconcile.Owner) error { return nil },
			Revoke: func(context.Context) error {
				begun = append(begun, time.Since(start))
				time.Sleep(pass)
				if failures > 0 {
					failures--
					return errors.New("broken")
				}
				return nil
			},
			Made: func() { settled++ },
		})
		e := enforcer.New(enforcer.Options{Node: "n1", Lock: lock, Revocations: r, PerPolicy: true})
		e.Compile(c, nil)
		e.Begin(nil)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		change := func(wantSettled int, want ...time.Duration) {
			t.Helper()
			begun, start = nil, time.Now()
			if err := e.Update(t.Context(), enforcer.Change{}); err != nil || time.Since(start) > 0 {
				t.Errorf("a change ended after %v with %v", time.Since(start), err)
			}
			time.Sleep(pass / 2)
			if settled != wantSettled-1 {
				t.Error("a revocation that is being made is reported as made")
			}
			time.Sleep(2 * rest)
			synctest.Wait()
			if !slices.Equal(begun, want) || settled != wantSettled || r.Pending() {
				t.Errorf("passes began at %v, want %v; %d were reported as made, want %d; pending %t", begun, want, settled, wantSettled, r.Pending())
			}
		}
		change(1, 0)
		failures = 1
		change(2, 0, pass+rest)
		begun, start = nil, time.Now()
		for _, at := range []time.Duration{0, pass / 2} { // the second during the pass of the first
			time.Sleep(at - time.Since(start))
			if err := e.Update(t.Context(), enforcer.Change{}); err != nil || time.Since(start) > at {
				t.Errorf("a change ended after %v with %v", time.Since(start), err)
			}
			synctest.Wait()
		}
		time.Sleep(pass)
		if settled != 2 {
			t.Error("a revocation is reported as made before that of a later change")
		}
		time.Sleep(rest)
		synctest.Wait()
		if want := []time.Duration{0, pass}; !slices.Equal(begun, want) || settled != 3 {
			t.Errorf("passes began at %v, want %v; %d were reported as made", begun, want, settled)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
