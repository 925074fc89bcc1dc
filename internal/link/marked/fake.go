package marked

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/reconcile"
)

// Fake is an Engine in memory. It keeps what the kernel keeps, and rejects what the kernel rejects: a device that does not exist, a
// namespace that does not exist, a gateway that no address or route of the device reaches.
type Fake struct {
	mutex      sync.Mutex
	namespaces map[string]bool
	devices    map[link.Key]bool // what exists, of KindDevice
	state      map[link.Key]link.Item
	commits    int
}

var _ reconcile.Engine[link.Key, link.Item] = (*Fake)(nil)

// NewFake returns an empty Fake in which the given devices exist.
func NewFake(devices ...link.Key) *Fake {
	f := &Fake{namespaces: map[string]bool{"": true}, devices: map[link.Key]bool{}, state: map[link.Key]link.Item{}}
	for _, key := range devices {
		f.AddDevice(key.Netns, key.Name)
	}
	return f
}

// AddDevice adds a device, and its namespace.
func (f *Fake) AddDevice(netns, name string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.namespaces[netns] = true
	f.devices[link.Key{Netns: netns, Kind: link.KindDevice, Name: name}] = true
}

// RemoveDevice removes a device with everything that is programmed on it.
func (f *Fake) RemoveDevice(netns, name string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	removeDevice(f.devices, f.state, netns, name)
}

// RemoveNamespace removes a namespace with everything in it.
func (f *Fake) RemoveNamespace(netns string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	delete(f.namespaces, netns)
	maps.DeleteFunc(f.devices, func(key link.Key, _ bool) bool { return key.Netns == netns })
	maps.DeleteFunc(f.state, func(key link.Key, _ link.Item) bool { return key.Netns == netns })
}

// Forget removes an item as another program would, without the engine.
func (f *Fake) Forget(key link.Key) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	delete(f.state, key)
}

// Commits returns the number of commits that have changed something.
func (f *Fake) Commits() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.commits
}

// Read implements reconcile.Engine.
func (f *Fake) Read(ctx context.Context) (map[link.Key]link.Item, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return maps.Clone(f.state), ctx.Err()
}

// Commit implements reconcile.Engine.
func (f *Fake) Commit(ctx context.Context, change reconcile.Change[link.Key, link.Item]) error {
	if err := ctx.Err(); err != nil || change.Empty() {
		return err
	}
	for key, item := range change.Set {
		if err := link.Validate(item); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	// All changes are made to copies, which replace the originals after success.
	next := &Fake{namespaces: f.namespaces, devices: maps.Clone(f.devices), state: maps.Clone(f.state)}
	failed := map[link.Key]error{}
	for _, s := range plannedSteps(change, f.state) {
		if err := next.perform(s); err != nil {
			err = fmt.Errorf("%s: %w", s, err)
			if !onlyEntries(change) {
				return err
			}
			failed[s.item.Key()] = err
		}
	}
	f.devices, f.state, f.commits = next.devices, next.state, f.commits+1
	if len(failed) > 0 {
		return &reconcile.PartialError[link.Key]{Failed: failed}
	}
	return nil
}

func (f *Fake) perform(s *step) error {
	key := s.item.Key()
	if s.remove {
		delete(f.state, key)
		switch item := s.item.(type) {
		case *link.Veth:
			f.removeVeth(item)
		case *link.Bridge:
			removeDevice(f.devices, f.state, item.Netns, item.Name)
		}
		return nil
	}
	if !f.namespaces[key.Netns] {
		return fmt.Errorf("namespace %s: %w", key.Netns, link.ErrNoNamespace)
	}
	if err := f.check(s); err != nil {
		return err
	}
	f.state[key] = s.item
	return nil
}

func (f *Fake) check(s *step) error {
	switch item := s.item.(type) {
	case *link.Veth:
		return f.addVeth(item, s)
	case *link.Bridge:
		return f.addBridge(item, s)
	case *link.BridgePort:
		return errors.Join(f.exists(item.Netns, item.Bridge), f.exists(item.Netns, item.Device))
	case *link.Device:
		return f.exists(item.Netns, item.Name)
	case *link.Address:
		return f.exists("", item.Device)
	case *link.Neighbour:
		return f.exists(item.Netns, item.Device)
	case *link.Route:
		if item.Blackhole {
			return nil
		}
		if err := f.exists(item.Netns, item.Device); err != nil {
			return err
		}
		if item.Gateway.IsValid() && !item.OnLink && !f.reaches(item) {
			return fmt.Errorf("gateway %s is not reachable on %s", item.Gateway, item.Device)
		}
	}
	return nil
}

func (f *Fake) exists(netns, name string) error {
	if !f.devices[link.Key{Netns: netns, Kind: link.KindDevice, Name: name}] {
		return fmt.Errorf("%s: %w", name, link.ErrNoDevice)
	}
	return nil
}

func (f *Fake) addVeth(item *link.Veth, s *step) error {
	if s.before != nil {
		f.removeVeth(s.before.(*link.Veth))
	}
	if !f.namespaces[item.PeerNetns] {
		return fmt.Errorf("namespace %s: %w", item.PeerNetns, link.ErrNoNamespace)
	}
	ends := []link.Key{{Netns: item.Netns, Kind: link.KindDevice, Name: item.Name}, {Netns: item.PeerNetns, Kind: link.KindDevice, Name: item.PeerName}}
	for _, end := range ends {
		if f.devices[end] {
			return fmt.Errorf("%s: %w", end.Name, link.ErrForeign)
		}
	}
	for _, end := range ends {
		f.devices[end] = true
	}
	return nil
}

func (f *Fake) addBridge(item *link.Bridge, s *step) error {
	key := link.Key{Netns: item.Netns, Kind: link.KindDevice, Name: item.Name}
	if f.devices[key] && s.before == nil && !item.Adopt {
		return fmt.Errorf("%s: %w", item.Name, link.ErrForeign)
	}
	f.devices[key] = true
	return nil
}

func (f *Fake) removeVeth(item *link.Veth) {
	removeDevice(f.devices, f.state, item.Netns, item.Name)
	removeDevice(f.devices, f.state, item.PeerNetns, item.PeerName)
}

func removeDevice(devices map[link.Key]bool, state map[link.Key]link.Item, netns, name string) {
	delete(devices, link.Key{Netns: netns, Kind: link.KindDevice, Name: name})
	maps.DeleteFunc(state, func(key link.Key, item link.Item) bool {
		if key.Netns != netns {
			return false
		}
		switch item := item.(type) {
		case *link.Route:
			return item.Device == name
		case *link.Address:
			return item.Device == name
		case *link.Neighbour:
			return item.Device == name
		case *link.BridgePort:
			return item.Device == name || item.Bridge == name
		case *link.Device, *link.Veth, *link.Bridge:
			return key.Name == name
		}
		return false
	})
}

// reaches reports whether the route's gateway is in the prefix of an address, or of a connected route, of its device.
func (f *Fake) reaches(route *link.Route) bool {
	inside := func(p netip.Prefix) bool { return p.Contains(route.Gateway) }
	for _, item := range f.state {
		switch item := item.(type) {
		case *link.Device:
			if item.Netns == route.Netns && item.Name == route.Device && !item.NoPrefixRoute && slices.ContainsFunc(item.Addresses, inside) {
				return true
			}
		case *link.Route:
			if item.Netns == route.Netns && item.Device == route.Device && !item.Gateway.IsValid() && inside(item.Dst) {
				return true
			}
		}
	}
	return false
}
