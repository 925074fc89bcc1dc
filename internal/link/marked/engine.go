package marked

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/reconcile"
)

// Options of an Engine.
type Options struct {
	// Namespaces are read in addition to the process's own and to those named in commits. A namespace that does not exist holds nothing.
	Namespaces []string
	// Devices are managed from the start, whatever their alias (tun0, before the first commit).
	Devices []link.Key
}

// Engine programs links, bridges, addresses, routes, neighbours and rules by netlink. The methods of reconcile.Engine are not called
// concurrently; Watch runs concurrently with them.
type Engine struct {
	home *netns.Namespace
	// conn is the socket for the engine's changes in its own namespace; Watch omits their events.
	conn *rtnetlink.Conn
	// known is what is programmed after the last Read or Commit, nil before the first.
	known map[link.Key]link.Item

	// care is what the engine manages.
	care *notify.Care
}

var _ reconcile.Engine[link.Key, link.Item] = (*Engine)(nil)

// New returns an engine whose own network namespace is the caller's.
func New(options Options) (*Engine, error) {
	home, err := netns.Home()
	if err != nil {
		return nil, fmt.Errorf("link engine: %w", err)
	}
	e := &Engine{home: home, care: notify.NewCare(options.Namespaces, options.Devices)}
	err = netns.OnThread(home, func() (err error) {
		e.conn, err = rtnetlink.Dial()
		return err
	})
	if err != nil {
		home.Close()
		return nil, fmt.Errorf("link engine: %w", err)
	}
	return e, nil
}

// Close releases the engine's resources. What is programmed stays.
func (e *Engine) Close() {
	e.conn.Close()
	e.home.Close()
}

// Attend makes Watch also report one device that is not managed; the engine never changes it. It replaces the device of an earlier call.
func (e *Engine) Attend(device string) { e.care.Attend(device) }

// Watch reports changes by other programs until ctx ends; then it closes the channel. It reports changes of managed links, addresses,
// routes and rules in the engine's own namespace, of the pods' host veths there, and of other devices' IPv4 addresses. The engine's own
// changes of routes and neighbours are omitted. Its own changes of links, addresses and rules are reported: the reader compares, and finds
// nothing to do. The first value, with All set, reports that watching has begun. When the kernel dropped events (ENOBUFS), All is reported.
// Slow readers lose detail (All), never a change. A socket that fails otherwise ends the watching: the last value has the reason (Err).
func (e *Engine) Watch(ctx context.Context) (<-chan notify.Drift, error) {
	return notify.Watch(ctx, e.home, e.care, e.conn.Port)
}

// Read implements reconcile.Engine.
func (e *Engine) Read(ctx context.Context) (map[link.Key]link.Item, error) {
	state := map[link.Key]link.Item{}
	for _, path := range e.care.NamespacesIn() {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("reading links: %w", err)
		}
		err := e.in(path, func(s *session) error { return (&reader{session: s, state: state}).read() })
		if errors.Is(err, link.ErrNoNamespace) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading links: %w", err)
		}
	}
	for key := range state { // what an earlier process programmed may need no commit
		e.care.Take(key)
	}
	e.known = maps.Clone(state)
	e.care.Note(e.known)
	return state, nil
}

// session is work in one namespace, on a thread in that namespace.
type session struct {
	engine *Engine
	path   string
	// handle opens a socket for each of its requests, unless the session reads everything: most commits need none.
	handle *netlink.Handle
	conn   *rtnetlink.Conn
}

// in runs work inside the namespace at path; "" is the engine's own.
func (e *Engine) in(path string, work func(*session) error) error {
	where := e.home
	if path != "" {
		opened, err := netns.Open(path)
		if err != nil {
			return err
		}
		defer opened.Close()
		where = opened
	}
	return netns.OnThread(where, func() error {
		s := &session{engine: e, path: path, conn: e.conn, handle: &netlink.Handle{}}
		var err error
		if path != "" {
			if s.conn, err = rtnetlink.Dial(); err != nil {
				return err
			}
			defer s.conn.Close()
		}
		return work(s)
	})
}

// veth returns the pair of a link. Its other end is searched in the managed namespaces; if it is in none of them, the name stays empty and
// equals no desired pair.
func (s *session) veth(dev netlink.Link) *link.Veth {
	pair := &link.Veth{Netns: s.path, Name: dev.Attrs().Name}
	pair.Owner, _ = strings.CutPrefix(dev.Attrs().Alias, link.AliasPrefix)
	if dev.Attrs().NetNsID < 0 {
		if peer, err := s.handle.LinkByIndex(dev.Attrs().ParentIndex); err == nil {
			pair.PeerNetns, pair.PeerName = s.path, peer.Attrs().Name
		}
		return pair
	}
	for _, path := range s.engine.care.NamespacesIn() {
		if path == s.path || !s.identifies(dev.Attrs().NetNsID, path) {
			continue
		}
		_ = s.engine.in(path, func(other *session) error {
			peer, err := other.handle.LinkByIndex(dev.Attrs().ParentIndex)
			if err == nil && peer.Type() == "veth" && peer.Attrs().ParentIndex == dev.Attrs().Index {
				pair.PeerNetns, pair.PeerName = path, peer.Attrs().Name
			}
			return err
		})
	}
	return pair
}

// identifies reports whether the namespace at path has the id in the session's namespace.
func (s *session) identifies(id int, path string) bool {
	where := s.engine.home
	if path != "" {
		opened, err := netns.Open(path)
		if err != nil {
			return false
		}
		defer opened.Close()
		where = opened
	}
	have, err := s.handle.GetNetNsIdByFd(where.FD())
	return err == nil && have == id
}
