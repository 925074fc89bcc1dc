package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Bounds of the pause between attempts to reconnect. The attempts end when the keeper is closed. A session that lasts no longer than
// redialLast counts as a failed attempt.
const (
	redialFirst = 50 * time.Millisecond
	redialLast  = 2 * time.Second
	dialTimeout = 10 * time.Second
)

// Keeper makes one session after the other until it is closed.
type Keeper struct {
	config Config
	cancel context.CancelFunc
	done   <-chan struct{}
	group  sync.WaitGroup

	mu       sync.Mutex
	current  *Session      // nil while there is none
	replaced chan struct{} // closed, and replaced, whenever current is set
	dialErr  error         // why there is no session
}

// Keep starts to connect and returns at once; the first [Keeper.Do] waits for the connection. It fails only for a configuration that
// cannot work (ErrInvalid). The keeper uses the values of ctx, not its end. It runs until Close, which the caller must call.
func Keep(ctx context.Context, config Config) (*Keeper, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k := &Keeper{config: config.withDefaults(), cancel: cancel, done: ctx.Done(), replaced: make(chan struct{})}
	k.group.Go(func() { k.run(ctx) })
	return k, nil
}

// Close ends the connection and returns when all goroutines have ended. It may be called more than once.
func (k *Keeper) Close() {
	k.cancel()
	k.group.Wait()
}

// Do calls work with the current session, and again with the next one if work returns ErrLost. So work must be safe to repeat. While
// there is no session, Do waits; it returns ErrNotConnected if ctx ends before, and ErrClosed after Close. Other errors of work are
// returned as they are.
func (k *Keeper) Do(ctx context.Context, work func(*Session) error) error {
	for {
		s, err := k.wait(ctx)
		if err != nil {
			return err
		}
		if err := work(s); !errors.Is(err, ErrLost) {
			return err
		}
		select {
		case <-s.Lost():
		case <-k.done:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", ErrNotConnected, context.Cause(ctx))
		}
	}
}

// Current returns the current session, nil if there is none.
func (k *Keeper) Current() *Session {
	s, _, _ := k.state()
	return s
}

// wait returns the current session, and waits if there is none.
func (k *Keeper) wait(ctx context.Context) (*Session, error) {
	for {
		s, replaced, dialErr := k.state()
		if s != nil {
			return s, nil
		}
		select {
		case <-replaced:
		case <-k.done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%w (%w)", ErrNotConnected, context.Cause(ctx)), dialErr)
		}
	}
}

// state returns three values: the session, or nil; a channel that is closed when the session may have changed; and the reason if there is
// none.
func (k *Keeper) state() (*Session, <-chan struct{}, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil || k.current.IsLost() {
		return nil, k.replaced, k.dialErr
	}
	return k.current, k.replaced, nil
}

func (k *Keeper) set(s *Session, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current, k.dialErr = s, err
	close(k.replaced)
	k.replaced = make(chan struct{})
}

// run makes one session after the other until ctx is done.
func (k *Keeper) run(ctx context.Context) {
	log := k.config.Logger.With("database", k.config.Database)
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(redialFirst), backoff.WithMaxInterval(redialLast), backoff.WithMaxElapsedTime(0))
	for again := false; ; again = true {
		s := k.redial(ctx, pause)
		if s == nil {
			return
		}
		if again {
			log.Info("connection to ovsdb-server is back", "endpoint", s.endpoint)
		}
		k.config.Connected(again)
		began := time.Now()
		why := s.alive(ctx, k.config.ProbeInterval)
		s.close()
		k.config.Lost()
		k.set(nil, ErrLost)
		if ctx.Err() != nil {
			return
		}
		log.Warn("connection to ovsdb-server was lost", "endpoint", s.endpoint, "error", why)
		if time.Since(began) > redialLast {
			pause.Reset() // and reconnect at once
		} else if !pauseFor(ctx, pause.NextBackOff()) {
			return
		}
	}
}

// redial tries the endpoints in turn until there is a connection. It returns nil if ctx is done.
func (k *Keeper) redial(ctx context.Context, pause backoff.BackOff) *Session {
	for {
		config, err := k.config.located(ctx)
		errs := []error{err}
		for _, endpoint := range config.Endpoints {
			s, err := config.open(ctx, endpoint)
			if err == nil {
				k.set(s, nil)
				return s
			}
			errs = append(errs, err)
		}
		k.set(nil, errors.Join(errs...))
		if !pauseFor(ctx, pause.NextBackOff()) {
			return nil
		}
	}
}

// located returns the configuration with the current endpoints.
func (c Config) located(ctx context.Context) (Config, error) {
	if c.Locate == nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var err error
	if c.Endpoints, c.TLS, err = c.Locate(ctx); err != nil {
		c.Endpoints = nil
		return c, fmt.Errorf("find database %s: %w", c.Database, err)
	}
	for _, endpoint := range c.Endpoints {
		if err := c.validEndpoint(endpoint); err != nil {
			c.Endpoints = nil
			return c, err
		}
	}
	return c, nil
}

// open returns a session whose copy is complete.
func (c Config) open(ctx context.Context, endpoint string) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var leader *Session
	if c.LeaderOnly {
		var err error
		if leader, err = watchLeader(ctx, c, endpoint); err != nil {
			return nil, err
		}
	}
	s, err := dial(ctx, c, endpoint)
	if err != nil {
		if leader != nil {
			leader.close()
		}
		return nil, err
	}
	s.leader = leader
	return s, nil
}

// pauseFor returns after d, or with false when ctx is done before.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
