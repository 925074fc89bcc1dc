package bridge

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/session"
	"weft.dev/weft/internal/reconcile"
)

var (
	_ reconcile.Engine[openflow.Key, openflow.Entry] = (*Engine)(nil)
	_ reconcile.Engine[openflow.Key, openflow.Entry] = (*Fake)(nil)
)

// DefaultBundleSize is the default of Config.BundleSize. The userspace datapath forwards on the thread that commits bundles. One change
// takes it 6 to 50 microseconds, depending on the machine and its load. So 500 changes stop traffic for 25 milliseconds at most, for
// which the sockets' buffers suffice. On an idle switch, large bundles are a quarter faster.
const DefaultBundleSize = 500

// Config describes an Engine's bridge and connection.
type Config struct {
	// Address is the path of the bridge's socket (<run directory>/<bridge>.mgmt), or host:port.
	Address string
	// BundleSize is the maximum number of changes in a bundle; 0: DefaultBundleSize. A Commit of at most so many changes is atomic.
	BundleSize int
	// Last selects the entries that are written after all others, such as the hash of the whole state; nil: none.
	Last func(openflow.Key) bool
	// OnBundle, if not nil, is called after each bundle with the number of changes and the error.
	OnBundle func(mods int, err error)
	// OnPacket, if not nil, is called with each packet that a flow sends to the controller. It runs on the connection's reading goroutine and
	// must not block.
	OnPacket func(*openflow.PacketIn)
	// KeepAlive is the interval of echo requests to a silent switch; 0: DefaultKeepAlive.
	KeepAlive time.Duration
	// ConnectWait is how long Read and Commit wait for a connection if there is none; 0: 1 s.
	ConnectWait time.Duration
	// RetryMin and RetryMax bound the pause between attempts to connect, which doubles; 0: 50 ms and 2 s.
	RetryMin, RetryMax time.Duration
}

// Event is a change on the switch that the engine did not make. Waiting events are merged into one.
type Event struct {
	// Connected reports a new connection: the switch may have restarted, so everything must be read again.
	Connected bool
	// Lost is the reason why the last connection ended, nil if none ended.
	Lost error
	// Drift are flows that others added, changed or removed.
	Drift []openflow.Key
	// Unclear reports that more than Drift may have changed: everything must be read again.
	Unclear bool
}

// Engine programs the flows and groups of one bridge. It renews the connection whenever it breaks.
//
// The engine's state has no flows with a timeout: flows that a learn action added belong to the switch.
type Engine struct {
	config Config
	feed   feed
	ports  arrivals

	mu    sync.Mutex
	conn  *session.Conn
	ready chan struct{} // closed while there is a connection
}

// NewEngine makes an engine. It connects in Run.
func NewEngine(config Config) *Engine {
	if config.BundleSize == 0 {
		config.BundleSize = DefaultBundleSize
	}
	if config.ConnectWait == 0 {
		config.ConnectWait = time.Second
	}
	if config.RetryMin == 0 {
		config.RetryMin = 50 * time.Millisecond
	}
	if config.RetryMax == 0 {
		config.RetryMax = 2 * time.Second
	}
	if config.OnBundle == nil {
		config.OnBundle = func(int, error) {}
	}
	return &Engine{config: config, feed: newFeed(), ports: newArrivals(), ready: make(chan struct{})}
}

// Run keeps a connection until ctx ends, and returns the cause of that. Next reports a failed attempt to connect as Lost.
//
// A starting switch makes its socket again. That ends the pause, because all traffic waits for the flows that this connection programs.
func (e *Engine) Run(ctx context.Context) error {
	pause := e.config.RetryMin
	for {
		made, stop := socketMade(e.config.Address) // before the attempt, so that none is missed
		err := e.connect(ctx, stop)
		if ctx.Err() != nil {
			stop()
			return context.Cause(ctx)
		}
		if errors.Is(err, session.ErrClosed) { // there was a connection
			pause = e.config.RetryMin
		}
		e.feed.post(Event{Lost: err})
		if e.rest(ctx, made, pause) {
			pause = min(listenPause, e.config.RetryMin)
		} else {
			pause = min(2*pause, e.config.RetryMax)
		}
		stop()
	}
}

// rest waits for the pause, or until the switch makes its socket. It reports whether the socket was made.
func (e *Engine) rest(ctx context.Context, made <-chan fsnotify.Event, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case event, ok := <-made:
			if !ok { // there was a connection
				made = nil
			} else if event.Name == e.config.Address && event.Has(fsnotify.Create) {
				return true
			}
		case <-timer.C:
			return false
		}
	}
}

// listenPause is the first pause after the switch made its socket: it listens on the socket a moment later.
const listenPause = 5 * time.Millisecond

// socketMade reports new files in the directory of the switch's socket. Without inotify, or for an address that is not a path, it reports
// nothing.
func socketMade(address string) (made <-chan fsnotify.Event, stop func()) {
	if !filepath.IsAbs(address) {
		return nil, func() {}
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, func() {}
	}
	if err := watcher.Add(filepath.Dir(address)); err != nil {
		_ = watcher.Close() // it has no watches
		return nil, func() {}
	}
	return watcher.Events, sync.OnceFunc(func() { _ = watcher.Close() })
}

// connect connects and returns when the connection breaks. It calls connected once there is a connection.
func (e *Engine) connect(ctx context.Context, connected func()) error {
	conn, err := session.Dial(ctx, e.config.Address, session.Options{KeepAlive: e.config.KeepAlive, OnAsync: e.onAsync})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	connected()
	// The monitors start before the dump that Connected causes, so that no change is missed in between.
	if err := conn.Monitor(ctx, 1); err != nil {
		return err
	}
	if err := conn.MonitorRest(ctx); err != nil {
		return err
	}
	e.set(conn)
	defer e.set(nil)
	e.feed.post(Event{Connected: true})
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-conn.Done():
		return conn.Err()
	}
}

func (e *Engine) set(conn *session.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conn = conn
	if conn != nil {
		close(e.ready)
	} else {
		e.ready = make(chan struct{})
	}
}

// Conn waits for the connection and returns it. It is for operations that are not state: flushing conntrack, sending packets.
func (e *Engine) Conn(ctx context.Context) (*session.Conn, error) {
	for {
		e.mu.Lock()
		conn, ready := e.conn, e.ready
		e.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a connection to %s: %w", e.config.Address, context.Cause(ctx))
		}
	}
}

// Next waits for a change on the switch, and returns all waiting events as one.
func (e *Engine) Next(ctx context.Context) (Event, error) { return e.feed.next(ctx) }

// soon returns the connection and waits at most ConnectWait for it: a loop that waits longer does not report that the switch is
// unavailable.
func (e *Engine) soon(ctx context.Context) (*session.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, e.config.ConnectWait)
	defer cancel()
	conn, err := e.Conn(limited)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: %w", reconcile.ErrUnavailable, err)
	}
	return conn, err
}

// away marks an error that ended the connection as reconcile.ErrUnavailable.
func away(err error) error {
	if errors.Is(err, session.ErrClosed) || errors.Is(err, session.ErrUnresponsive) {
		return fmt.Errorf("%w: %w", reconcile.ErrUnavailable, err)
	}
	return err
}

// Read dumps groups and flows. It fails with reconcile.ErrUnavailable while there is no connection.
func (e *Engine) Read(ctx context.Context) (map[openflow.Key]openflow.Entry, error) {
	conn, err := e.soon(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := conn.Groups(ctx)
	if err != nil {
		return nil, away(err)
	}
	flows, err := conn.Flows(ctx)
	if err != nil {
		return nil, away(err)
	}
	return state(groups, flows), nil
}

func state(groups []*openflow.Group, flows []*openflow.Flow) map[openflow.Key]openflow.Entry {
	entries := make(map[openflow.Key]openflow.Entry, len(groups)+len(flows))
	for _, g := range groups {
		entries[g.Key()] = g
	}
	for _, f := range flows {
		if f.IdleTimeout == 0 && f.HardTimeout == 0 {
			entries[f.Key()] = f
		}
	}
	return entries
}

// Commit makes the change and returns once it is in effect. A change of at most BundleSize is one bundle: all of it or nothing. A larger
// change is split into several bundles, in an order that opens no hole. If a bundle fails, the bundles before it stay in effect, which
// the next Read shows. Commit fails with reconcile.ErrUnavailable while there is no connection.
func (e *Engine) Commit(ctx context.Context, change Change) error {
	mods, err := plan(change, e.config.Last)
	if err != nil || len(mods) == 0 {
		return err
	}
	conn, err := e.soon(ctx)
	if err != nil {
		return err
	}
	return away(conn.Bundles(ctx, slices.Collect(slices.Chunk(mods, e.config.BundleSize)), e.config.OnBundle))
}

// FlushCT removes connections from the switch's conntrack.
func (e *Engine) FlushCT(ctx context.Context, what openflow.CTFlush) error {
	conn, err := e.Conn(ctx)
	if err != nil {
		return err
	}
	return conn.FlushCT(ctx, what)
}

func (e *Engine) onAsync(event any) {
	switch event := event.(type) {
	case []openflow.FlowUpdate:
		e.feed.post(drift(event))
	case *openflow.GroupsChanged:
		e.feed.post(Event{Unclear: true})
	case *openflow.PortStatus:
		if event.Reason == openflow.PortAdded {
			e.ports.announce(event.Port.Name, event.Port.Number)
		}
	case *openflow.PacketIn:
		if e.config.OnPacket != nil {
			e.config.OnPacket(event)
		}
	}
}

// drift converts reports of a flow monitor to an event.
func drift(updates []openflow.FlowUpdate) Event {
	var event Event
	for _, u := range updates {
		switch u.Event {
		case openflow.MonitorPaused, openflow.MonitorResumed, openflow.MonitorUnclear:
			event.Unclear = true
		case openflow.FlowAdded, openflow.FlowRemoved, openflow.FlowModified:
			if u.Flow.IdleTimeout == 0 && u.Flow.HardTimeout == 0 {
				event.Drift = append(event.Drift, u.Flow.Key())
			}
		case openflow.FlowInitial, openflow.FlowOwn:
		}
	}
	return event
}
