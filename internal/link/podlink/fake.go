package podlink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"

	"weft.dev/weft/internal/link"
)

// Fake keeps pods' veth pairs in memory. It is safe for concurrent use.
type Fake struct {
	mutex      sync.Mutex
	namespaces map[string]bool
	pairs      map[string]fakePair
	preplugged map[string]fakePreplugged
	nextIndex  int
	parents    []MacvlanParent
	macvlans   map[string]Macvlan
}

type fakePreplugged struct {
	Preplugged
	path string
	// user is the namespace of the pod that uses the port; "" if none does.
	user string
	down bool
	// shape is the shape of that pod's traffic.
	shape Shape
}

type fakePair struct {
	pair    Pair
	created Created
	down    bool // the host veth
}

var (
	_ Links    = (*Fake)(nil)
	_ Macvlans = (*Fake)(nil)
)

// firstFakeIndex is the first interface index used; 1 is lo's.
const firstFakeIndex = 2

// NewFake returns a Fake in which the given namespaces exist.
func NewFake(namespaces ...string) *Fake {
	p := &Fake{namespaces: map[string]bool{}, pairs: map[string]fakePair{}, preplugged: map[string]fakePreplugged{}, macvlans: map[string]Macvlan{}, nextIndex: firstFakeIndex}
	for _, path := range namespaces {
		p.namespaces[path] = true
	}
	return p
}

// AddNamespace adds a namespace.
func (p *Fake) AddNamespace(path string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.namespaces[path] = true
}

// RemoveNamespace removes a namespace, and with it the pairs of its pods.
func (p *Fake) RemoveNamespace(path string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.namespaces, path)
	maps.DeleteFunc(p.macvlans, func(place string, _ Macvlan) bool { return strings.HasPrefix(place, path+" ") })
	for name, entry := range p.pairs {
		if entry.pair.Netns == path {
			delete(p.pairs, name)
		}
	}
	for name, s := range p.preplugged {
		switch path {
		case s.path:
			delete(p.preplugged, name)
		case s.user:
			s.user = "" // its shape is on the veth peer, which stays
			p.preplugged[name] = s
		}
	}
}

// Create implements Links.
func (p *Fake) Create(ctx context.Context, pair Pair) (Created, error) {
	if err := errors.Join(pair.Validate(), ctx.Err()); err != nil {
		return Created{}, fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.namespaces[pair.Netns] {
		return Created{}, fmt.Errorf("pod link %s: namespace %s: %w", pair.HostName, pair.Netns, link.ErrNoNamespace)
	}
	for _, entry := range p.pairs {
		if entry.pair.Netns == pair.Netns && entry.pair.PodName == pair.PodName && entry.pair.HostName != pair.HostName {
			return Created{}, fmt.Errorf("pod link %s: %s (veth) in the pod: %w", pair.HostName, pair.PodName, link.ErrForeign)
		}
	}
	if pair.Preplugged != "" {
		if err := p.putPreplugged(&pair); err != nil {
			return Created{}, err
		}
	} else if pair.Shape != (Shape{}) {
		return Created{}, fmt.Errorf("pod link %s: %w", pair.HostName, ErrUnshaped)
	}
	entry, found := p.pairs[pair.HostName]
	if found && entry.pair.Owner != pair.Owner {
		return Created{}, fmt.Errorf("pod link %s (veth, alias %q) on the host: %w", pair.HostName, entry.pair.Alias(), link.ErrForeign)
	}
	if !found || entry.pair.Netns != pair.Netns {
		entry.created = Created{HostIndex: p.nextIndex, PodIndex: p.nextIndex + 1}
		p.nextIndex += 2
		entry.created.HostMAC = fakeMAC(entry.created.HostIndex)
		entry.created.PodMAC = fakeMAC(entry.created.PodIndex)
	}
	if len(pair.PodMAC) != 0 {
		entry.created.PodMAC = pair.PodMAC
	}
	entry.pair = pair
	p.pairs[pair.HostName] = entry
	return entry.created, nil
}

func (p *Fake) putPreplugged(pair *Pair) error {
	s, found := p.preplugged[pair.HostName]
	switch {
	case !found || s.path != pair.Preplugged:
		return fmt.Errorf("%w: pod link %s: host end: %w", ErrUnusable, pair.HostName, link.ErrNoDevice)
	case s.user != "" && s.user != pair.Netns:
		return fmt.Errorf("%w: pod link %s: %w", ErrUnusable, pair.HostName, ErrOccupied)
	}
	s.user, s.shape = pair.Netns, pair.Shape
	p.preplugged[pair.HostName] = s
	return nil
}

// CreatePreplugged implements PrepluggedLinks.
func (p *Fake) CreatePreplugged(ctx context.Context, path string, pairs ...Preplugged) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.namespaces[path] {
		return fmt.Errorf("pre-plugged ports: namespace %s: %w", path, link.ErrNoNamespace)
	}
	for _, pair := range pairs {
		if _, found := p.preplugged[pair.Name]; found {
			return fmt.Errorf("pre-plugged ports: %s: %w", pair.Name, link.ErrForeign)
		}
	}
	for _, pair := range pairs {
		p.preplugged[pair.Name] = fakePreplugged{Preplugged: pair, path: path}
	}
	return ctx.Err()
}

// ListPreplugged implements PrepluggedLinks.
func (p *Fake) ListPreplugged(ctx context.Context, path string) (map[string]PrepluggedPort, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	found := map[string]PrepluggedPort{}
	for name, s := range p.preplugged {
		found[name] = PrepluggedPort{MTU: PrepluggedMTU(s.MTU), TxOffloadOff: s.TxOffloadOff, Idle: s.path == path && s.user == "" && s.shape == Shape{}}
	}
	return found, ctx.Err()
}

// Unplug implements Links.
func (p *Fake) Unplug(ctx context.Context, pair Pair, began func()) error {
	began()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.pairs, pair.HostName)
	s, found := p.preplugged[pair.HostName]
	switch {
	case !found:
		return fmt.Errorf("pod link %s: host end: %w", pair.HostName, link.ErrNoDevice)
	case s.user != "" && s.user != pair.Netns:
		return fmt.Errorf("pod link %s: %w", pair.HostName, ErrOccupied)
	}
	s.user, s.shape = "", Shape{}
	p.preplugged[pair.HostName] = s
	return ctx.Err()
}

// Shapes implements Shapers.
func (p *Fake) Shapes(ctx context.Context, path string) (map[string]Shape, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	found := map[string]Shape{}
	for name, s := range p.preplugged {
		if s.path == path && s.shape != (Shape{}) {
			found[name] = s.shape
		}
	}
	return found, ctx.Err()
}

// Reshape implements Shapers. Tests also use it to change a shape as another program would.
func (p *Fake) Reshape(ctx context.Context, path, name string, want Shape) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	s, found := p.preplugged[name]
	switch {
	case found && s.path == path:
		s.shape = want
		p.preplugged[name] = s
	case want != Shape{}:
		return fmt.Errorf("shaping %s: its far end: %w", name, link.ErrNoDevice)
	}
	return ctx.Err()
}

func fakeMAC(index int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0, 0, byte(index >> 16), byte(index >> 8), byte(index)}
}

// Check implements Links.
func (p *Fake) Check(ctx context.Context, pair Pair) error {
	if err := errors.Join(pair.Validate(), ctx.Err()); err != nil {
		return fmt.Errorf("pod link %s: %w", pair.HostName, err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.namespaces[pair.Netns] {
		return fmt.Errorf("pod link %s: namespace %s: %w", pair.HostName, pair.Netns, link.ErrNoNamespace)
	}
	entry, found := p.pairs[pair.HostName]
	if !found {
		return errors.Join(&Difference{pair.HostObject(), "does not exist"}, &Difference{pair.PodObject(), "does not exist"})
	}
	have := entry.pair
	if have.Netns != pair.Netns || have.PodName != pair.PodName {
		return &Difference{pair.PodObject(), "does not exist"}
	}
	hostDevice := have.HostDevice()
	hostDevice.Up = !entry.down
	list := append(Differences(pair.HostObject(), pair.HostDevice(), hostDevice),
		Differences(pair.PodObject(), pair.PodDevice(), have.PodDevice())...)
	routes := map[link.Key]*link.Route{}
	for _, route := range have.PodRoutes {
		routes[have.PodRoute(route).Key()] = have.PodRoute(route)
	}
	if s := p.preplugged[pair.HostName]; !pair.Shape.Matches(s.shape) {
		list = append(list, &Difference{pair.PodObject(), "is shaped otherwise: " + s.shape.String() + ", not " + pair.Shape.String()})
	}
	return errors.Join(append(list, pair.CompareRoutes(routes)...)...)
}

// Delete implements Links.
func (p *Fake) Delete(ctx context.Context, hostNames ...string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("deleting pod links: %w", err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, name := range hostNames {
		delete(p.pairs, name)
		delete(p.preplugged, name)
	}
	return nil
}

// List implements Links.
func (p *Fake) List(ctx context.Context) (map[string]string, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	list := map[string]string{}
	for name, entry := range p.pairs {
		list[name] = entry.pair.Owner
	}
	for name := range p.preplugged {
		list[name] = PrepluggedOwner(name)
	}
	return list, ctx.Err()
}

// HostEnds is the counterpart of Pods.HostEnds.
func (p *Fake) HostEnds(ctx context.Context) (map[string]HostEnd, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	found := map[string]HostEnd{}
	for name, entry := range p.pairs {
		found[name] = HostEnd{MTU: entry.pair.LinkMTU(), Group: entry.pair.HostGroup, Up: !entry.down}
	}
	for name, s := range p.preplugged {
		found[name] = HostEnd{MTU: PrepluggedMTU(s.MTU), Group: s.HostGroup, Up: !s.down}
	}
	return found, ctx.Err()
}

// Restore is the counterpart of Pods.Restore. Tests also use it to change a host veth as another program would.
func (p *Fake) Restore(ctx context.Context, name string, want HostEnd) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if s, found := p.preplugged[name]; found && ctx.Err() == nil {
		s.MTU, s.HostGroup, s.down = want.MTU, want.Group, !want.Up
		p.preplugged[name] = s
		return nil
	}
	if entry, found := p.pairs[name]; found && ctx.Err() == nil {
		entry.pair.MTU, entry.pair.HostGroup, entry.down = want.MTU, want.Group, !want.Up
		p.pairs[name] = entry
	}
	return ctx.Err()
}

// Pair returns the pair with this host veth, as it was last created.
func (p *Fake) Pair(hostName string) (Pair, bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	entry, ok := p.pairs[hostName]
	return entry.pair, ok
}

// Alter changes a pair as another program would.
func (p *Fake) Alter(hostName string, change func(*Pair)) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if entry, ok := p.pairs[hostName]; ok {
		change(&entry.pair)
		p.pairs[hostName] = entry
	}
}

// AddParent adds a device on which macvlans can be created. The first one is the device of the default route.
func (p *Fake) AddParent(parent MacvlanParent) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.parents = append(p.parents, parent)
}

// MacvlanParent implements Macvlans.
func (p *Fake) MacvlanParent(ctx context.Context, name string) (MacvlanParent, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, parent := range p.parents {
		if name == "" || parent.Name == name {
			return parent, ctx.Err()
		}
	}
	return MacvlanParent{}, fmt.Errorf("a macvlan's device: %s: %w", name, link.ErrNoDevice)
}

// CreateMacvlan implements Macvlans.
func (p *Fake) CreateMacvlan(ctx context.Context, m Macvlan) (net.HardwareAddr, error) {
	if _, err := p.MacvlanParent(ctx, m.Parent); err != nil {
		return nil, err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.namespaces[m.Netns] {
		return nil, fmt.Errorf("macvlan %s: namespace %s: %w", m.Name, m.Netns, link.ErrNoNamespace)
	}
	place := m.Netns + " " + m.Name
	if have, found := p.macvlans[place]; found && !reflect.DeepEqual(have, m) {
		return nil, fmt.Errorf("macvlan %s: %w", m.Name, link.ErrForeign)
	}
	p.macvlans[place] = m
	return fakeMAC(len(place)), ctx.Err()
}

// KeepMacvlanAddresses implements Macvlans.
func (p *Fake) KeepMacvlanAddresses(ctx context.Context, m Macvlan, keep func(netip.Prefix) bool) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	place := m.Netns + " " + m.Name
	if have, found := p.macvlans[place]; found && have.Owner == m.Owner {
		have.Addresses = slices.DeleteFunc(slices.Clone(have.Addresses), func(address netip.Prefix) bool { return !keep(address) })
		p.macvlans[place] = have
	}
	return ctx.Err()
}

// CheckMacvlan implements Macvlans.
func (p *Fake) CheckMacvlan(ctx context.Context, m Macvlan) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !reflect.DeepEqual(p.macvlans[m.Netns+" "+m.Name], m) {
		return &Difference{"pod end " + m.Name, "does not exist"}
	}
	return ctx.Err()
}

// DeleteMacvlan implements Macvlans.
func (p *Fake) DeleteMacvlan(ctx context.Context, m Macvlan) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if reflect.DeepEqual(p.macvlans[m.Netns+" "+m.Name], m) {
		delete(p.macvlans, m.Netns+" "+m.Name)
	}
	return ctx.Err()
}

// Macvlans returns all existing macvlans.
func (p *Fake) Macvlans() []Macvlan {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return slices.Collect(maps.Values(p.macvlans))
}
