package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"weft.dev/weft/internal/reconcile"
)

// Change is a change of an Open vSwitch database.
type Change = reconcile.Change[Key, Row]

// Bounds of how often a lost connection is tried again. There is no end to it.
const (
	redialFirst = 50 * time.Millisecond
	redialLast  = 2 * time.Second
	dialTimeout = 5 * time.Second
)

// Engine programs one switch over its database. It keeps a connection, and makes a new one whenever it is lost.
// Read, Commit, OFPort and Datapath wait for a connection if there is none, as long as their context lets them.
type Engine struct {
	config Config
	events *mailbox
	cancel context.CancelFunc
	done   <-chan struct{}
	group  sync.WaitGroup

	// commit is held while a change is made, so that the watch for drift does not take it for someone else's.
	commit sync.Mutex
	// known is what the caller knows or has asked for: the rows of the last Read, Commit or event.
	// Nil means that nothing is known.
	known map[Key]tracked
	// outdated says that known is from before the connection was lost.
	outdated atomic.Bool

	// dirty is signalled when rows have changed that may be Weft's.
	dirty chan struct{}

	mu       sync.Mutex
	current  *session      // nil while there is none
	replaced chan struct{} // closed, and replaced, whenever current is set
	dialErr  error         // why there is none
}

var _ reconcile.Engine[Key, Row] = (*Engine)(nil)

// tracked is a row with what else of it the caller depends on, and the copy's rows that it was made of.
type tracked struct {
	row    Row
	ofport int
	of     sources
}

// sources are what the copy has of a port. The copy replaces its rows and never writes into them.
type sources struct {
	bridge string
	port   *portRow
	iface  *interfaceRow
}

// Open connects to the switch's database and returns once its content is known. It fails with ErrNotConnected if
// there is no connection before ctx is done; ctx has no influence after that. The caller must Close the engine, and
// should take its Events.
func Open(ctx context.Context, config Config) (*Engine, error) {
	for _, name := range config.Bridges {
		if err := ValidName(name); err != nil {
			return nil, fmt.Errorf("own bridge: %w", err)
		}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e := &Engine{
		config: config.withDefaults(), events: newMailbox(), cancel: cancel, done: running.Done(),
		dirty: make(chan struct{}, 1), replaced: make(chan struct{}),
	}
	e.group.Go(func() { e.events.run(running.Done()) })
	e.group.Go(func() { e.keepConnected(running) })
	e.group.Go(func() { e.watchDrift(running) })
	e.group.Go(func() { e.watchSwitch(running) })
	if _, err := e.Read(ctx); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Close ends the connection and all that the engine runs, and closes the channel of events. It changes nothing in the
// switch. It may be called more than once.
func (e *Engine) Close() {
	e.cancel()
	e.group.Wait()
}

// Events returns the channel of events. Events of one kind that nobody has taken yet are joined; none is lost and
// nothing waits for the taker. The channel is closed by Close.
func (e *Engine) Events() <-chan Event { return e.events.out }

// Read returns Weft's rows as the database has them at the time of the call, also those that nobody asked for. Rows
// that are not in effect in the switch carry a Failure.
func (e *Engine) Read(ctx context.Context) (map[Key]Row, error) {
	e.commit.Lock()
	defer e.commit.Unlock()
	var v *view
	err := e.withSession(ctx, func(s *session) (err error) {
		v, err = s.view(ctx, e.config.Bridges)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the switch's rows: %w", err)
	}
	e.outdated.Store(false)
	e.known = track(v, e.known)
	return v.own(), nil
}

// OFPort returns the OpenFlow port number of a port or of a bridge's local port, whoever's it is, as the switch gave
// it. It waits for the switch to take up a port that is in the database. It returns ErrNotFound if there is no such
// port, and a *PortError if the switch could not make it.
func (e *Engine) OFPort(ctx context.Context, name string) (uint32, error) {
	var number uint32
	err := e.withSession(ctx, func(s *session) (err error) {
		number, err = s.ofport(ctx, name, e.config.Bridges)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("port number of %.32q: %w", name, err)
	}
	return number, nil
}

func (s *session) ofport(ctx context.Context, name string, ownBridges []string) (uint32, error) {
	for {
		changed := s.change()
		v, err := s.view(ctx, ownBridges)
		if err != nil {
			return 0, err
		}
		port, there := v.ports[name]
		number, taken := v.ofport(name)
		switch {
		case !there:
			return 0, ErrNotFound
		case taken && number > 0:
			return uint32(number), nil
		case taken:
			return 0, &PortError{Key: PortKey(name), Reason: port.switchFailure()}
		}
		select {
		case <-changed:
		case <-s.lost:
			return 0, errSessionLost
		case <-ctx.Done():
			return 0, fmt.Errorf("%w (%w)", ErrNotApplied, context.Cause(ctx))
		}
	}
}

// Datapath says which datapaths work here: what ovs-vswitchd was built for, and whether the running kernel has its
// part of the system datapath. An ovs-vswitchd that has never run on this database has left no types there; then only
// DatapathNetdev is taken for granted, which every build has.
func (e *Engine) Datapath(ctx context.Context) (Datapath, error) {
	d := Datapath{}
	err := e.withSession(ctx, func(s *session) error {
		v, err := s.view(ctx, e.config.Bridges)
		if err == nil && v.root != nil {
			d.Types = sortedSet(v.root.DatapathTypes)
		}
		return err
	})
	if err != nil {
		return d, fmt.Errorf("types of datapaths: %w", err)
	}
	if len(d.Types) == 0 {
		d.Types = []string{DatapathNetdev}
	}
	d.Kernel, err = kernelDatapath()
	return d, err
}

// withSession calls do with a connection, and again with the next one if that is lost meanwhile. do must be fit to be
// repeated.
func (e *Engine) withSession(ctx context.Context, do func(*session) error) error {
	for {
		s, err := e.session(ctx)
		if err != nil {
			return err
		}
		if err := do(s); !errors.Is(err, errSessionLost) {
			return err
		}
		select {
		case <-s.lost:
		case <-e.done:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", ErrNotConnected, context.Cause(ctx))
		}
	}
}

// session returns the connection, and waits for one.
func (e *Engine) session(ctx context.Context) (*session, error) {
	for {
		s, changed, dialErr := e.connection()
		if s != nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-e.done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%w (%w)", ErrNotConnected, context.Cause(ctx)), dialErr)
		}
	}
}

// connection returns the connection, nil if there is none, and a channel that is closed when there may be another.
func (e *Engine) connection() (*session, <-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current == nil || e.current.isLost() {
		return nil, e.replaced, e.dialErr
	}
	return e.current, e.replaced, nil
}

// keepConnected makes one session after the other until ctx is done.
func (e *Engine) keepConnected(ctx context.Context) {
	for first := true; ; first = false {
		s := e.redial(ctx)
		if s == nil {
			return
		}
		if !first {
			e.config.Logger.Info("connection to ovsdb-server is back", "endpoint", e.config.Endpoint)
			e.events.post(Event{Kind: EventReconnected})
		}
		s.alive(ctx, e.config.ProbeInterval)
		s.close()
		e.outdated.Store(true)
		e.setSession(nil, errSessionLost)
		if ctx.Err() != nil {
			return
		}
		e.config.Logger.Warn("connection to ovsdb-server was lost", "endpoint", e.config.Endpoint)
	}
}

// redial tries until there is a connection; nil means that ctx is done.
func (e *Engine) redial(ctx context.Context) *session {
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(redialFirst), backoff.WithMaxInterval(redialLast), backoff.WithMaxElapsedTime(0))
	for {
		attempt, cancel := context.WithTimeout(ctx, dialTimeout)
		s, err := dial(attempt, e.config.Endpoint, e.noteChange)
		cancel()
		e.setSession(s, err)
		if err == nil {
			return s
		}
		if !wait(ctx, pause.NextBackOff()) {
			return nil
		}
	}
}

func (e *Engine) setSession(s *session, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current, e.dialErr = s, err
	close(e.replaced)
	e.replaced = make(chan struct{})
}

// wait returns after d, or with false when ctx is done before.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// track returns what there is to know of Weft's rows. What is known of ports that have not changed is taken over.
func track(v *view, known map[Key]tracked) map[Key]tracked {
	now := make(map[Key]tracked, len(v.ports))
	for name, b := range v.bridges {
		if b.own {
			number, _ := v.ofport(name)
			now[BridgeKey(name)] = tracked{row: b.value(), ofport: number}
		}
	}
	for name, p := range v.ports {
		if !p.own {
			continue
		}
		key, of := PortKey(name), sources{p.bridge.Name, p.row, p.iface}
		if was, ok := known[key]; ok && was.of == of {
			now[key] = was
			continue
		}
		number, _ := v.ofport(name)
		now[key] = tracked{row: p.value(), ofport: number, of: of}
	}
	return now
}

// noteChange is called for every change of a table that may hold Weft's rows.
func (e *Engine) noteChange(table string) {
	if table == tableRoot {
		return // cur_cfg and next_cfg; a bridge that comes or goes shows in its own table
	}
	select {
	case e.dirty <- struct{}{}:
	default:
	}
}

// watchDrift tells of rows that others have changed.
func (e *Engine) watchDrift(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.dirty:
		}
		e.checkDrift(ctx)
	}
}

// checkDrift compares once. Without a connection it does nothing: the next one brings EventReconnected. It holds up
// Read and Commit, so it waits for nothing but an answer of the server.
func (e *Engine) checkDrift(ctx context.Context) {
	e.commit.Lock()
	defer e.commit.Unlock()
	s, _, _ := e.connection()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.ProbeInterval)
	defer cancel()
	v, err := s.latest(ctx, e.config.Bridges) // what comes later makes it look again
	if err != nil {
		return // the connection is lost or about to be given up
	}
	now := track(v, e.known)
	if e.outdated.Swap(false) {
		e.known = nil
	}
	if e.known != nil {
		if keys := drifted(e.known, now); len(keys) > 0 {
			e.events.post(Event{Kind: EventDrift, Keys: keys})
		}
	}
	e.known = now
}

// drifted returns the keys under which the two differ, sorted.
func drifted(known, now map[Key]tracked) []Key {
	var keys []Key
	for key, was := range known {
		is, ok := now[key]
		if !ok || is.ofport != was.ofport || !is.row.Equal(was.row) {
			keys = append(keys, key)
		}
	}
	for key := range now {
		if _, ok := known[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}
