package notify

import (
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/reconcile"
)

// Care is what an engine manages, and what it has programmed as far as Watch compares events with it.
type Care struct {
	mutex      sync.Mutex
	namespaces map[string]bool
	devices    map[link.Key]bool // of KindDevice and KindVeth
	neighbours map[string]bool   // in the own namespace, by the names of their keys
	ports      map[string]*watchedPort
	attended   string
}

// NewCare returns the care of an engine that begins with its own namespace, the namespaces at these paths, and these devices.
func NewCare(namespaces []string, devices []link.Key) *Care {
	c := &Care{namespaces: map[string]bool{"": true}, devices: map[link.Key]bool{}}
	for _, path := range namespaces {
		c.namespaces[path] = true
	}
	for _, key := range devices {
		c.Take(key)
	}
	return c
}

// watchedPort is a port of a bridge as it is programmed. The kernel's events do not identify the program that changed a port, but they
// arrive in the order of the changes. So while the engine programs a port, events that differ from it are ignored, up to the first that
// agrees.
type watchedPort struct {
	port link.BridgePort
	// settled reports that such an event has arrived.
	settled bool
}

// Attend replaces the device that is reported although it is not managed.
func (c *Care) Attend(device string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.attended = device
}

func (c *Care) attends(device string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return device != "" && device == c.attended
}

// Take marks a device, and the namespace of any item, as managed.
func (c *Care) Take(key link.Key) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.namespaces[key.Netns] = true
	switch key.Kind {
	case link.KindDevice, link.KindVeth, link.KindBridge, link.KindBridgePort:
		c.devices[key] = true
	case link.KindAddress, link.KindNeighbour, link.KindRoute, link.KindRule:
	}
}

// Enter marks the namespaces of an item as managed.
func (c *Care) Enter(item link.Item) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.namespaces[item.Key().Netns] = true
	if pair, ok := item.(*link.Veth); ok {
		c.namespaces[pair.PeerNetns] = true
	}
}

// Release marks a device as no longer managed.
func (c *Care) Release(key link.Key) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.devices, key)
}

// Has reports whether a device is managed.
func (c *Care) Has(key link.Key) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.devices[key]
}

// NamespacesIn returns the managed namespaces, sorted.
func (c *Care) NamespacesIn() []string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return slices.Sorted(maps.Keys(c.namespaces))
}

// Note records the neighbours and the bridges' ports of the own namespace as they were read. Of neighbours it keeps the keys: in the event of a
// deletion, the kernel reports the neighbour as failed, like any neighbour that does not answer.
func (c *Care) Note(known map[link.Key]link.Item) {
	neighbours, ports := map[string]bool{}, map[string]*watchedPort{}
	for key, item := range known {
		if key.Netns != "" {
			continue
		}
		if key.Kind == link.KindNeighbour {
			neighbours[key.Name] = true
		}
		if port, is := item.(*link.BridgePort); is {
			ports[key.Name] = &watchedPort{port: *port, settled: true}
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.neighbours, c.ports = neighbours, ports
}

// NoteNeighbour records one neighbour that was set or deleted.
func (c *Care) NoteNeighbour(key link.Key, set bool) {
	if key.Kind != link.KindNeighbour || key.Netns != "" {
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

func (c *Care) hasNeighbour(key link.Key) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.neighbours[key.Name]
}

// ChangePorts records the ports that a change is about to program, before their events.
func (c *Care) ChangePorts(change reconcile.Change[link.Key, link.Item]) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.ports == nil {
		c.ports = map[string]*watchedPort{}
	}
	for key := range change.Delete {
		if key.Kind == link.KindBridgePort && key.Netns == "" {
			delete(c.ports, key.Name)
		}
	}
	for key, item := range change.Set {
		if port, is := item.(*link.BridgePort); is && key.Netns == "" {
			c.ports[key.Name] = &watchedPort{port: *port}
		}
	}
}

// portChanged reports whether an event shows a port otherwise than programmed. same compares the event with the port.
func (c *Care) portChanged(device string, same func(*link.BridgePort) bool) bool {
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
