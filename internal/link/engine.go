package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

	mutex      sync.Mutex
	namespaces map[string]bool
	devices    map[Key]bool    // of KindDevice and KindVeth
	neighbours map[string]bool // in the own namespace, by the names of their keys
	ports      map[string]*watchedPort
	attended   string
}

var _ reconcile.Engine[Key, Item] = (*Engine)(nil)

// NewEngine returns an engine whose own network namespace is the caller's.
func NewEngine(options Options) (*Engine, error) {
	home, err := homeNamespace()
	if err != nil {
		return nil, fmt.Errorf("link engine: %w", err)
	}
	e := &Engine{home: home, namespaces: map[string]bool{"": true}, devices: map[Key]bool{}}
	err = onThread(home, func() (err error) {
		e.conn, err = dial()
		return err
	})
	if err != nil {
		home.close()
		return nil, fmt.Errorf("link engine: %w", err)
	}
	for _, path := range options.Namespaces {
		e.namespaces[path] = true
	}
	for _, key := range options.Devices {
		e.take(key)
	}
	return e, nil
}

// Close releases the engine's resources. What is programmed stays.
func (e *Engine) Close() {
	e.conn.close()
	e.home.close()
}

// Attend makes Watch also report one device that is not managed; the engine never changes it. It replaces the device of an earlier call.
func (e *Engine) Attend(device string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.attended = device
}

func (e *Engine) attends(device string) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return device != "" && device == e.attended
}

// take marks a device, and the namespace of any item, as managed.
func (e *Engine) take(key Key) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.namespaces[key.Netns] = true
	switch key.Kind {
	case KindDevice, KindVeth, KindBridge, KindBridgePort:
		e.devices[key] = true
	case KindAddress, KindNeighbour, KindRoute, KindRule:
	}
}

// noteNeighbours records the programmed neighbours for Watch: in the event of a deletion, the kernel reports the neighbour as failed, like
// any neighbour that does not answer.
func (e *Engine) noteNeighbours() {
	neighbours := map[string]bool{}
	for key := range e.known {
		if key.Kind == KindNeighbour && key.Netns == "" {
			neighbours[key.Name] = true
		}
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.neighbours = neighbours
}

// noteNeighbour records one neighbour that was set or deleted.
func (e *Engine) noteNeighbour(key Key, set bool) {
	if key.Kind != KindNeighbour || key.Netns != "" {
		return
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if set {
		e.neighbours[key.Name] = true
	} else {
		delete(e.neighbours, key.Name)
	}
}

func (e *Engine) hasNeighbour(key Key) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.neighbours[key.Name]
}

// enterCare marks the namespaces of an item as managed.
func (e *Engine) enterCare(item Item) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.namespaces[item.Key().Netns] = true
	if pair, ok := item.(*Veth); ok {
		e.namespaces[pair.PeerNetns] = true
	}
}

func (e *Engine) release(key Key) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	delete(e.devices, key)
}

func (e *Engine) inCare(key Key) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.devices[key]
}

func (e *Engine) namespacesInCare() []string {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return slices.Sorted(maps.Keys(e.namespaces))
}

// Read implements reconcile.Engine.
func (e *Engine) Read(ctx context.Context) (map[Key]Item, error) {
	state := map[Key]Item{}
	for _, path := range e.namespacesInCare() {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("reading links: %w", err)
		}
		err := e.in(path, func(s *session) error { return s.read(state) })
		if errors.Is(err, ErrNoNamespace) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading links: %w", err)
		}
	}
	for key := range state { // what an earlier process programmed may need no commit
		e.take(key)
	}
	e.known = maps.Clone(state)
	e.noteNeighbours()
	e.notePorts()
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

// read adds what is managed in the session's namespace.
func (s *session) read(state map[Key]Item) error {
	var err error
	if s.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer s.handle.Close()
	links, err := listLinks(nil)
	if err != nil {
		return err
	}
	names, cared := map[int]string{}, map[int]bool{}
	for _, link := range links {
		attrs := link.Attrs()
		names[attrs.Index] = attrs.Name
		device, veth := Key{s.path, KindDevice, attrs.Name}, Key{s.path, KindVeth, attrs.Name}
		owner, marked := strings.CutPrefix(attrs.Alias, AliasPrefix)
		if marked || s.engine.inCare(device) {
			item, err := s.device(link, owner)
			if errors.Is(err, unix.ENODEV) {
				continue // it was deleted meanwhile
			}
			if err != nil {
				return err
			}
			cared[attrs.Index], state[device] = true, item
		}
		if link.Type() == "veth" && s.engine.inCare(veth) {
			state[veth] = s.veth(link)
		}
	}
	if err := s.readBridges(links, state); err != nil {
		return err
	}
	routes, err := readRoutes(s.handle, names)
	if err != nil {
		return err
	}
	for _, route := range routes {
		route.Netns = s.path
		state[route.Key()] = route
	}
	return errors.Join(s.readAddresses(state, names), s.readNeighbours(state, names, cared), s.readRules(state))
}

func (s *session) device(link netlink.Link, owner string) (*Device, error) {
	item, err := readDevice(s.handle, link)
	if err != nil {
		return nil, err
	}
	item.Netns, item.Owner = s.path, owner
	return item, nil
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
	for _, path := range s.engine.namespacesInCare() {
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

func (s *session) readNeighbours(state map[Key]Item, names map[int]string, cared map[int]bool) error {
	list, err := dump(func() ([]netlink.Neigh, error) { return s.handle.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("listing neighbours: %w", err)
	}
	for i := range list {
		entry := &list[i]
		known := entry.Family == netlink.FAMILY_V4 || entry.Family == netlink.FAMILY_V6
		if !known || !cared[entry.LinkIndex] || entry.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		item := &Neighbour{Netns: s.path, Device: names[entry.LinkIndex], Address: toAddr(entry.IP), MAC: entry.HardwareAddr}
		state[item.Key()] = item
	}
	return nil
}

func (s *session) readRules(state map[Key]Item) error {
	list, err := dump(func() ([]netlink.Rule, error) { return s.handle.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("listing rules: %w", err)
	}
	for i := range list {
		rule := &list[i]
		if rule.Protocol != Protocol {
			continue
		}
		item := &Rule{
			Netns: s.path, Priority: max(rule.Priority, 0), IPv6: rule.Family == netlink.FAMILY_V6, Source: toPrefix(rule.Src),
			Destination: toPrefix(rule.Dst), InDevice: rule.IifName, Mark: rule.Mark, Table: rule.Table,
		}
		if rule.Mask != nil {
			item.Mask = *rule.Mask
		}
		state[item.Key()] = item
	}
	return nil
}
