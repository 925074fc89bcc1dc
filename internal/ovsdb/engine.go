package ovsdb

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/reconcile"
)

// Change is a change of an Open vSwitch database.
type Change = reconcile.Change[Key, Row]

// Bounds of how often ovs-vswitchd's control socket is tried again. There is no end to it.
const (
	redialFirst = 25 * time.Millisecond
	redialLast  = time.Second
)

// Engine programs one switch over its database. It keeps a connection, and makes a new one whenever it is lost.
// Read, Commit, OFPort and Datapath wait for a connection if there is none, as long as their context lets them.
type Engine struct {
	config Config
	events *mailbox
	keeper *session.Keeper
	cancel context.CancelFunc
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
	e := &Engine{config: config.withDefaults(), events: newMailbox(), cancel: cancel, dirty: make(chan struct{}, 1)}
	var err error
	e.keeper, err = session.Keep(ctx, session.Config{
		Database: databaseName, Tables: monitored(), Endpoints: []string{e.config.Endpoint},
		ProbeInterval: e.config.ProbeInterval, Logger: e.config.Logger,
		Changed: e.noteChange, Connected: e.connected, Lost: func() { e.outdated.Store(true) },
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("database of the switch: %w", err)
	}
	e.group.Go(func() { e.events.run(running.Done()) })
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
	e.keeper.Close()
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
	err := e.keeper.Do(ctx, func(s *session.Session) (err error) {
		v, err = currentView(ctx, s, e.config.claim())
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
	err := e.keeper.Do(ctx, func(s *session.Session) (err error) {
		number, err = ofport(ctx, s, name, e.config.claim())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("port number of %.32q: %w", name, err)
	}
	return number, nil
}

func ofport(ctx context.Context, s *session.Session, name string, own claim) (uint32, error) {
	for {
		changed := s.Changed()
		v, err := currentView(ctx, s, own)
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
		case <-s.Lost():
			return 0, session.ErrLost
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
	err := e.keeper.Do(ctx, func(s *session.Session) error {
		v, err := currentView(ctx, s, e.config.claim())
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

// connected is called when there is a connection.
func (e *Engine) connected(again bool) {
	if again {
		e.events.post(Event{Kind: EventReconnected})
	}
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
	s := e.keeper.Current()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.ProbeInterval)
	defer cancel()
	v, err := latestView(ctx, s, e.config.claim()) // what comes later makes it look again
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
