package whole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/reconcile"
)

// Options of an Engine.
type Options struct {
	// Owns reports whether the engine manages a VXLAN, IPIP or WireGuard device of that name, also if it is not desired. Nil: none.
	Owns func(name string) bool
	// Ranges are the ranges into which the engine manages routes through gateways, and blackholes, that have the protocol of ip(8) and flannel
	// (boot). SetRanges changes them. Those with Weft's protocol are managed in all ranges: they may be of a former process, with other ranges.
	Ranges []netip.Prefix
	// Log gets messages that are not errors. Default: discarded.
	Log *slog.Logger
}

// Engine programs the network namespace in which NewEngine was called; for WireGuard, the goroutine that runs it must be in that namespace
// too. The methods of reconcile.Engine are not called concurrently; Watch runs concurrently with them.
type Engine struct {
	options Options
	handle  *netlink.Handle
	// requests is the socket of all changes but those by handle.
	requests *rtnetlink.Conn
	// dumps is the socket of listings that handle does not have.
	dumps *nl.SocketHandle
	wg    wireguard

	mu sync.Mutex
	// known is what was read or committed last. It is used when a device is created again.
	known map[Key]Item
	// names are the devices by index, as of the last listing.
	names map[int]string
	// ranges are Options.Ranges or those of SetRanges. With ownOnly, only routes with Weft's protocol are managed in them.
	ranges  []netip.Prefix
	ownOnly bool
	// attended is the device of Attend.
	attended struct {
		index int
		name  string
	}
	// shown is HasNexthops as of the last read. owned are the identifiers of nexthop objects that were read or made: no other is replaced.
	shown bool
	owned map[uint32]bool
}

// Attend makes Watch also report one device that is not managed: the device by which nodes reach each other. It replaces the device of an
// earlier call.
func (e *Engine) Attend(index int, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attended.index, e.attended.name = index, name
}

// SetRanges replaces Options.Ranges, from the next read on. With ownOnly, other programs' routes through gateways are not managed: another
// mechanism connects the nodes.
func (e *Engine) SetRanges(ranges []netip.Prefix, ownOnly bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ranges, e.ownOnly = slices.Clone(ranges), ownOnly
}

// NewEngine returns an engine.
func NewEngine(options Options) (*Engine, error) {
	if options.Owns == nil {
		options.Owns = func(string) bool { return false }
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	requests, err := rtnetlink.Dial()
	if err != nil {
		handle.Close()
		return nil, err
	}
	dumps, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		requests.Close()
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &Engine{
		options: options, handle: handle, requests: requests, dumps: &nl.SocketHandle{Socket: dumps}, known: map[Key]Item{},
		ranges: options.Ranges, owned: map[uint32]bool{},
	}, nil
}

// Close closes the engine's sockets. What is programmed stays.
func (e *Engine) Close() {
	e.handle.Close()
	e.requests.Close()
	e.dumps.Close()
	e.wg.close()
}

// Commit implements reconcile.Engine. Keys that failed are in a *reconcile.PartialError; everything else is in effect.
func (e *Engine) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	devices, err := e.indexes()
	if err != nil {
		return fmt.Errorf("%w: %w", reconcile.ErrUnavailable, err)
	}
	change = e.complete(change)
	e.remember(change, nil) // before the requests, so that Watch interprets their events correctly
	c := &commit{engine: e, indexes: devices, failed: map[Key]error{}}
	set, remove := ordered(change.Set), ordered(change.Delete)
	for _, kind := range []Kind{KindVXLAN, KindIPIP, KindWireGuard, KindPeer, KindNeighbour, KindFDB, KindNexthop, KindRoute} {
		c.each(ctx, set[kind], c.set, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	}
	for _, kind := range []Kind{KindRoute, KindNexthop, KindFDB, KindNeighbour, KindPeer, KindWireGuard, KindIPIP, KindVXLAN} {
		c.each(ctx, remove[kind], c.remove, 0)
	}
	if len(c.failed) > 0 {
		e.remember(change, c.failed)
		return &reconcile.PartialError[Key]{Failed: c.failed}
	}
	return nil
}

// complete adds to a change the entries on the devices that it sets: the kernel removes them with a device, neighbours when the MAC address
// changes, and routes with the last address or while the device is down.
func (e *Engine) complete(change reconcile.Change[Key, Item]) reconcile.Change[Key, Item] {
	e.mu.Lock()
	defer e.mu.Unlock()
	renewed := map[string]bool{}
	for key, item := range change.Set {
		want, isDevice := item.(device)
		have, known := e.known[key]
		if isDevice && (!known || !want.Equal(have)) {
			renewed[key.Device] = true
		}
	}
	if len(renewed) == 0 || len(e.known) == 0 {
		return change
	}
	out := reconcile.Change[Key, Item]{Set: map[Key]Item{}, Delete: change.Delete}
	for key, item := range e.known {
		_, deleted := change.Delete[key]
		if _, isDevice := item.(device); !isDevice && renewed[deviceOf(item)] && !deleted {
			out.Set[key] = item
		}
	}
	maps.Copy(out.Set, change.Set)
	return out
}

func (e *Engine) remember(change reconcile.Change[Key, Item], failed map[Key]error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, item := range change.Set {
		if failed[key] != nil {
			delete(e.known, key)
		} else {
			e.known[key] = item
		}
	}
	for key, item := range change.Delete {
		if failed[key] != nil {
			e.known[key] = item
		} else {
			delete(e.known, key)
		}
	}
}

// keyed is an item with its key, which takes a while to compute.
type keyed struct {
	key  Key
	item Item
}

// ordered returns the items by kind, and those of a kind sorted by key, so that the same change makes the same requests.
func ordered(items map[Key]Item) map[Kind][]keyed {
	out := map[Kind][]keyed{}
	for key, item := range items {
		out[key.Kind] = append(out[key.Kind], keyed{key, item})
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b keyed) int {
			return cmp.Or(strings.Compare(a.key.Device, b.key.Device), strings.Compare(a.key.Name, b.key.Name))
		})
	}
	return out
}

// commit is one commit under way.
type commit struct {
	engine  *Engine
	indexes map[string]int
	failed  map[Key]error
}

func (c *commit) fail(key Key, err error) { c.failed[key] = fmt.Errorf("%s: %w", key, err) }

// entriesAtOnce limits the entries between two looks at the commit's context.
const entriesAtOnce = 1000

// each runs steps of one kind: entries with the request's flags, and everything else by do.
func (c *commit) each(ctx context.Context, steps []keyed, do func(Item) error, flags int) {
	for len(steps) > 0 {
		count := min(len(steps), entriesAtOnce)
		if err := ctx.Err(); err != nil {
			count = len(steps)
			for _, s := range steps {
				c.fail(s.key, err)
			}
		} else if isEntry(steps[0].key.Kind) {
			c.entries(steps[:count], flags)
		} else {
			count = 1
			if err := do(steps[0].item); err != nil {
				c.fail(steps[0].key, err)
			}
		}
		steps = steps[count:]
	}
}

// isEntry reports whether items of a kind are programmed by one request each.
func isEntry(kind Kind) bool {
	return kind == KindNeighbour || kind == KindFDB || kind == KindNexthop || kind == KindRoute
}

// ErrNoDevice is the error for an entry whose device does not exist.
var ErrNoDevice = errors.New("device does not exist")

func (c *commit) index(device string) (int, error) {
	index, ok := c.indexes[device]
	if !ok {
		return 0, fmt.Errorf("%s: %w", device, ErrNoDevice)
	}
	return index, nil
}

func (c *commit) set(item Item) error {
	switch item := item.(type) {
	case device:
		return c.setDevice(item)
	case *Peer:
		return c.engine.wg.setPeer(item)
	}
	return fmt.Errorf("%T is not an item of this engine", item)
}

func (c *commit) remove(item Item) error {
	switch item := item.(type) {
	case device:
		return c.removeDevice(item.shape())
	case *Peer:
		return c.engine.wg.removePeer(item)
	}
	return fmt.Errorf("%T is not an item of this engine", item)
}

// entries sets entries, or deletes them when flags is 0. An entry that does not exist counts as deleted.
func (c *commit) entries(steps []keyed, flags int) {
	var others []keyed
	for _, s := range c.send(steps, flags) {
		// Routes with and without a nexthop object are equal, so the item may be of the other kind than the route, which then seems absent.
		if route, is := s.item.(*Route); is && route.Gateway.Is4() && c.engine.shown {
			other := *route
			other.Nexthop = !route.Nexthop
			others = append(others, keyed{s.key, &other})
		}
	}
	c.send(others, 0)
}

// send sends the requests of entries, and returns those that were to be deleted and do not exist.
func (c *commit) send(steps []keyed, flags int) (absent []keyed) {
	sent, requests := make([]keyed, 0, len(steps)), make([]*nl.NetlinkRequest, 0, len(steps))
	for _, s := range steps {
		request, err := c.request(s.item, flags)
		if err == nil {
			sent, requests = append(sent, s), append(requests, request)
		} else if flags != 0 || !errors.Is(err, ErrNoDevice) {
			c.fail(s.key, err)
		}
	}
	answers, err := c.engine.requests.Do(requests...)
	for i, s := range sent {
		why := err
		if err == nil {
			why = answers[i].Err
		}
		nexthop, is := s.item.(*Nexthop)
		switch {
		case why == nil && is:
			c.engine.owned[nexthop.ID()] = flags != 0
		case why == nil:
		case is && errors.Is(why, unix.EEXIST):
			c.fail(s.key, fmt.Errorf("id %d is another program's (see ip nexthop): the route is made without it: %w", nexthop.ID(), why))
		case flags == 0 && isAbsent(s.item, why):
			absent = append(absent, s)
		default:
			c.fail(s.key, why)
		}
	}
	return absent
}

// isAbsent reports whether the error of a deletion says that there is nothing to delete.
func isAbsent(item Item, err error) bool {
	if route, is := item.(*Route); is && route.Nexthop && errors.Is(err, unix.EINVAL) {
		return true // the nexthop object does not exist
	}
	for _, gone := range []error{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.EADDRNOTAVAIL} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// request returns the request that sets an entry, or deletes it when flags is 0.
func (c *commit) request(item Item, flags int) (*nl.NetlinkRequest, error) {
	index := 0
	if device := deviceOf(item); device != "" {
		var err error
		if index, err = c.index(device); err != nil {
			return nil, err
		}
	}
	switch item := item.(type) {
	case *Neighbour:
		return neighbourRequest(item, index, flags), nil
	case *FDB:
		return fdbRequest(item, index, flags), nil
	case *Nexthop:
		if flags != 0 && !c.engine.owned[item.ID()] {
			flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
		}
		return nexthopRequest(item, index, flags), nil
	case *Route:
		return routeRequest(c.usual(item), index, flags), nil
	}
	return nil, fmt.Errorf("%T is not an item of this engine", item)
}

// usual returns a route with its gateway if it cannot refer to a nexthop object.
func (c *commit) usual(r *Route) *Route {
	nexthop := &Nexthop{Gateway: r.Gateway}
	if !r.Nexthop || c.engine.shown && c.failed[nexthop.Key()] == nil {
		return r
	}
	inline := *r
	inline.Nexthop = false
	return &inline
}

func (e *Engine) execute(request *nl.NetlinkRequest) error {
	answers, err := e.requests.Do(request)
	if err != nil {
		return err
	}
	return answers[0].Err
}

func (e *Engine) indexes() (map[string]int, error) {
	links, err := e.links()
	if err != nil {
		return nil, err
	}
	out := make(map[string]int, len(links))
	for _, link := range links {
		out[link.Attrs().Name] = link.Attrs().Index
	}
	return out, nil
}
