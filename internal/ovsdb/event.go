package ovsdb

import "fmt"

// EventKind says what has happened.
type EventKind uint8

// The kinds of events.
const (
	// EventReconnected: the connection to ovsdb-server was lost and is back. What happened in between is unknown, so
	// the caller reads again.
	EventReconnected EventKind = iota + 1
	// EventSwitchRestarted: ovs-vswitchd has started anew on the same database. Ports keep their numbers, flows,
	// groups and connections are gone.
	EventSwitchRestarted
	// EventDrift: someone else changed, added or removed the rows in Keys, or their OpenFlow port numbers.
	EventDrift
)

// String returns the kind in words.
func (k EventKind) String() string {
	switch k {
	case EventReconnected:
		return "reconnected"
	case EventSwitchRestarted:
		return "switch restarted"
	case EventDrift:
		return "drift"
	default:
		return fmt.Sprintf("event(%d)", uint8(k))
	}
}

// Event tells that what a caller knows of the switch may no longer hold. It carries keys, never values: the caller
// reads again.
type Event struct {
	Kind EventKind
	// Keys are the rows that an EventDrift is about, sorted. Other events are about everything.
	Keys []Key
}
