package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/reconcile"
)

// Options of an Engine.
type Options struct {
	// Namespaces are read in addition to the process's own and to those named in commits. A namespace that does not exist holds nothing.
	Namespaces []string
	// Devices are managed from the start, whatever their alias (tun0, before the first commit).
	Devices []Key
}

// Engine programs links, bridges, addresses, routes, neighbours and rules by netlink. The methods of reconcile.Engine are not called
// concurrently; Watch runs concurrently with them.
type Engine struct {
	home *namespace
	// conn is the socket for the engine's changes in its own namespace; Watch omits their events.
	conn *conn
	// known is what is programmed after the last Read or Commit, nil before the first.
	known map[Key]Item

	// care is what the engine manages.
	care *care
}

var _ reconcile.Engine[Key, Item] = (*Engine)(nil)

// NewEngine returns an engine whose own network namespace is the caller's.
func NewEngine(options Options) (*Engine, error) {
	home, err := homeNamespace()
	if err != nil {
		return nil, fmt.Errorf("link engine: %w", err)
	}
	e := &Engine{home: home, care: newCare(options)}
	err = onThread(home, func() (err error) {
		e.conn, err = dial()
		return err
	})
	if err != nil {
		home.close()
		return nil, fmt.Errorf("link engine: %w", err)
	}
	return e, nil
}

// Close releases the engine's resources. What is programmed stays.
func (e *Engine) Close() {
	e.conn.close()
	e.home.close()
}

// Attend makes Watch also report one device that is not managed; the engine never changes it. It replaces the device of an earlier call.
func (e *Engine) Attend(device string) { e.care.attend(device) }

// Read implements reconcile.Engine.
func (e *Engine) Read(ctx context.Context) (map[Key]Item, error) {
	state := map[Key]Item{}
	for _, path := range e.care.namespacesIn() {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("reading links: %w", err)
		}
		err := e.in(path, func(s *session) error { return (&reader{session: s, state: state}).read() })
		if errors.Is(err, ErrNoNamespace) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading links: %w", err)
		}
	}
	for key := range state { // what an earlier process programmed may need no commit
		e.care.take(key)
	}
	e.known = maps.Clone(state)
	e.care.note(e.known)
	return state, nil
}

// session is work in one namespace, on a thread in that namespace.
type session struct {
	engine *Engine
	path   string
	// handle opens a socket for each of its requests, unless the session reads everything: most commits need none.
	handle *netlink.Handle
	conn   *conn
}

// in runs work inside the namespace at path; "" is the engine's own.
func (e *Engine) in(path string, work func(*session) error) error {
	where := e.home
	if path != "" {
		opened, err := openNamespace(path)
		if err != nil {
			return err
		}
		defer opened.close()
		where = opened
	}
	return onThread(where, func() error {
		s := &session{engine: e, path: path, conn: e.conn, handle: &netlink.Handle{}}
		var err error
		if path != "" {
			if s.conn, err = dial(); err != nil {
				return err
			}
			defer s.conn.close()
		}
		return work(s)
	})
}

// veth returns the pair of a link. Its other end is searched in the managed namespaces; if it is in none of them, the name stays empty and
// equals no desired pair.
func (s *session) veth(link netlink.Link) *Veth {
	pair := &Veth{Netns: s.path, Name: link.Attrs().Name}
	pair.Owner, _ = strings.CutPrefix(link.Attrs().Alias, AliasPrefix)
	if link.Attrs().NetNsID < 0 {
		if peer, err := s.handle.LinkByIndex(link.Attrs().ParentIndex); err == nil {
			pair.PeerNetns, pair.PeerName = s.path, peer.Attrs().Name
		}
		return pair
	}
	for _, path := range s.engine.care.namespacesIn() {
		if path == s.path || !s.identifies(link.Attrs().NetNsID, path) {
			continue
		}
		_ = s.engine.in(path, func(other *session) error {
			peer, err := other.handle.LinkByIndex(link.Attrs().ParentIndex)
			if err == nil && peer.Type() == "veth" && peer.Attrs().ParentIndex == link.Attrs().Index {
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
		opened, err := openNamespace(path)
		if err != nil {
			return false
		}
		defer opened.close()
		where = opened
	}
	have, err := s.handle.GetNetNsIdByFd(int(where.file.Fd()))
	return err == nil && have == id
}
