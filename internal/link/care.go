package link

import (
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/reconcile"
)

// care is what an engine manages, and what it has programmed as far as Watch compares events with it.
type care struct {
	mutex      sync.Mutex
	namespaces map[string]bool
	devices    map[Key]bool    // of KindDevice and KindVeth
	neighbours map[string]bool // in the own namespace, by the names of their keys
	ports      map[string]*watchedPort
	attended   string
}

func newCare(options Options) *care {
	c := &care{namespaces: map[string]bool{"": true}, devices: map[Key]bool{}}
	for _, path := range options.Namespaces {
		c.namespaces[path] = true
	}
	for _, key := range options.Devices {
		c.take(key)
	}
	return c
}

// watchedPort is a port of a bridge as it is programmed. The kernel's events do not identify the program that changed a port, but they
// arrive in the order of the changes. So while the engine programs a port, events that differ from it are ignored, up to the first that
// agrees.
type watchedPort struct {
	port BridgePort
	// settled reports that such an event has arrived.
	settled bool
}

// attend replaces the device that is reported although it is not managed.
func (c *care) attend(device string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.attended = device
}

func (c *care) attends(device string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return device != "" && device == c.attended
}

// take marks a device, and the namespace of any item, as managed.
func (c *care) take(key Key) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.namespaces[key.Netns] = true
	switch key.Kind {
	case KindDevice, KindVeth, KindBridge, KindBridgePort:
		c.devices[key] = true
	case KindAddress, KindNeighbour, KindRoute, KindRule:
	}
}

// enter marks the namespaces of an item as managed.
func (c *care) enter(item Item) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.namespaces[item.Key().Netns] = true
	if pair, ok := item.(*Veth); ok {
		c.namespaces[pair.PeerNetns] = true
	}
}

// release marks a device as no longer managed.
func (c *care) release(key Key) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.devices, key)
}

// has reports whether a device is managed.
func (c *care) has(key Key) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.devices[key]
}

// namespacesIn returns the managed namespaces, sorted.
func (c *care) namespacesIn() []string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return slices.Sorted(maps.Keys(c.namespaces))
}

// note records the neighbours and the bridges' ports of the own namespace as they were read. Of neighbours it keeps the keys: in the event of a
// deletion, the kernel reports the neighbour as failed, like any neighbour that does not answer.
func (c *care) note(known map[Key]Item) {
	neighbours, ports := map[string]bool{}, map[string]*watchedPort{}
	for key, item := range known {
		if key.Netns != "" {
			continue
		}
		if key.Kind == KindNeighbour {
			neighbours[key.Name] = true
		}
		if port, is := item.(*BridgePort); is {
			ports[key.Name] = &watchedPort{port: *port, settled: true}
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.neighbours, c.ports = neighbours, ports
}

// noteNeighbour records one neighbour that was set or deleted.
func (c *care) noteNeighbour(key Key, set bool) {
	if key.Kind != KindNeighbour || key.Netns != "" {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if set {
		c.neighbours[key.Name] = true
	} else {
		delete(c.neighbours, key.Name)
	}
}

func (c *care) hasNeighbour(key Key) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.neighbours[key.Name]
}

// changePorts records the ports that a change is about to program, before their events.
func (c *care) changePorts(change reconcile.Change[Key, Item]) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.ports == nil {
		c.ports = map[string]*watchedPort{}
	}
	for key := range change.Delete {
		if key.Kind == KindBridgePort && key.Netns == "" {
			delete(c.ports, key.Name)
		}
	}
	for key, item := range change.Set {
		if port, is := item.(*BridgePort); is && key.Netns == "" {
			c.ports[key.Name] = &watchedPort{port: *port}
		}
	}
}

// portChanged reports whether an event shows a port otherwise than programmed. same compares the event with the port.
func (c *care) portChanged(device string, same func(*BridgePort) bool) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	watched := c.ports[device]
	if watched == nil {
		return false
	}
	if same(&watched.port) {
		watched.settled = true
		return false
	}
	return watched.settled
}
