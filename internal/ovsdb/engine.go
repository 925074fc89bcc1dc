package ovsdb

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/ovsdb/confdb"
	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/reconcile"
)

// Change is a change of an Open vSwitch database.
type Change = reconcile.Change[Key, Row]

// Bounds of the pause between attempts to reach ovs-vswitchd's control socket. The attempts never end.
const (
	redialFirst = 25 * time.Millisecond
	redialLast  = time.Second
)

// Engine programs one switch over its database. It keeps a connection, and makes a new one whenever it is lost. While there is none,
// Read, Commit, OFPort and Datapath wait for a connection until their context ends.
type Engine struct {
	config Config
	events *mailbox
	keeper *session.Keeper
	cancel context.CancelFunc
	group  sync.WaitGroup

	// commit is held while a change is made, so that the check for drift does not mistake it for a change by others.
	commit sync.Mutex
	// known are the rows that the caller knows: those of the last Read, Commit or event. Nil means none.
	known map[Key]tracked
	// outdated says that known is from before the connection was lost.
	outdated atomic.Bool

	// dirty is signalled when rows have changed that may be Weft's.
	dirty chan struct{}
}

var _ reconcile.Engine[Key, Row] = (*Engine)(nil)

// tracked is a row, its OpenFlow port number, and the rows of the copy that it was made from.
type tracked struct {
	row    Row
	ofport int
	of     sources
}

// sources are the rows of a port in the copy. The copy replaces its rows and never writes into them.
type sources struct {
	bridge string
	port   *confdb.Port
	iface  *confdb.Interface
}

// Open connects to the switch's database and returns once the copy is complete. It fails with ErrNotConnected if there is no connection
// before ctx is done; after Open, ctx has no influence. The caller must Close the engine, and should receive its Events.
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
		Database: confdb.Database, Tables: confdb.Monitored(), Endpoints: []string{e.config.Endpoint},
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

// Close ends the connection and all goroutines of the engine, and closes the channel of events. It changes nothing in the switch. It may
// be called more than once.
func (e *Engine) Close() {
	e.cancel()
	e.keeper.Close()
	e.group.Wait()
}

// Events returns the channel of events. Waiting events of one kind are merged; none is lost, and nothing waits for the receiver. Close
// closes the channel.
func (e *Engine) Events() <-chan Event { return e.events.out }

// Read returns Weft's rows as the database has them at the time of the call, including rows that the caller did not write. Rows that are
// not in effect in the switch have a Failure.
func (e *Engine) Read(ctx context.Context) (map[Key]Row, error) {
	e.commit.Lock()
	defer e.commit.Unlock()
	var v *confdb.View
	err := e.keeper.Do(ctx, func(s *session.Session) (err error) {
		v, err = confdb.Current(ctx, s, e.config.claim())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the switch's rows: %w", err)
	}
	e.outdated.Store(false)
	e.known = track(v, e.known)
	return ownRows(v), nil
}

// OFPort returns the OpenFlow port number that the switch gave to a port, or to a bridge's local port, whether it is Weft's or not. If
// the port is in the database, it waits until the switch has added it. It returns ErrNotFound if there is no such port, and a *PortError
// if the switch could not make it.
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

func ofport(ctx context.Context, s *session.Session, name string, own confdb.Claim) (uint32, error) {
	for {
		changed := s.Changed()
		v, err := confdb.Current(ctx, s, own)
		if err != nil {
			return 0, err
		}
		port, there := v.Ports[name]
		number, taken := v.OFPort(name)
		switch {
		case !there:
			return 0, ErrNotFound
		case taken && number > 0:
			return uint32(number), nil
		case taken:
			return 0, &PortError{Key: PortKey(name), Reason: port.SwitchFailure()}
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

// Datapath returns the datapaths that work here: those that ovs-vswitchd is built with, and whether the running kernel has the system
// datapath. An ovs-vswitchd that has never run on this database has written no types there; then only DatapathNetdev is returned, which
// every build has.
func (e *Engine) Datapath(ctx context.Context) (Datapath, error) {
	d := Datapath{}
	err := e.keeper.Do(ctx, func(s *session.Session) error {
		v, err := confdb.Current(ctx, s, e.config.claim())
		if err == nil && v.Root != nil {
			d.Types = sortedSet(v.Root.DatapathTypes)
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

// connected is called for each new connection.
func (e *Engine) connected(again bool) {
	if again {
		e.events.post(Event{Kind: EventReconnected})
	}
}

// wait returns true after d, or false when ctx is done before.
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

// track returns Weft's rows of the view. It reuses the known values of ports that have not changed.
func track(v *confdb.View, known map[Key]tracked) map[Key]tracked {
	now := make(map[Key]tracked, len(v.Ports))
	for name, b := range v.Bridges {
		if b.Own {
			number, _ := v.OFPort(name)
			now[BridgeKey(name)] = tracked{row: bridgeOf(b), ofport: number}
		}
	}
	for name, p := range v.Ports {
		if !p.Own {
			continue
		}
		key, of := PortKey(name), sources{p.Bridge.Name, p.Row, p.Interface}
		if was, ok := known[key]; ok && was.of == of {
			now[key] = was
			continue
		}
		number, _ := v.OFPort(name)
		now[key] = tracked{row: portOf(p), ofport: number, of: of}
	}
	return now
}

// noteChange is called for every change of a table that may hold Weft's rows.
func (e *Engine) noteChange(table string) {
	if table == confdb.TableRoot {
		return // only cur_cfg and next_cfg changed; a new or deleted bridge changes its own table
	}
	select {
	case e.dirty <- struct{}{}:
	default:
	}
}

// watchDrift reports rows that others have changed.
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

// checkDrift compares once. Without a connection it does nothing: the next connection causes an EventReconnected. It blocks Read and
// Commit, so it waits only for an answer of the server.
func (e *Engine) checkDrift(ctx context.Context) {
	e.commit.Lock()
	defer e.commit.Unlock()
	s := e.keeper.Current()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.ProbeInterval)
	defer cancel()
	v, err := confdb.Latest(ctx, s, e.config.claim()) // a later change triggers another check
	if err != nil {
		return // the connection is lost or about to be closed
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

// drifted returns the keys whose rows differ, sorted.
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
