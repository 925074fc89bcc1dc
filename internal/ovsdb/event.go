package ovsdb

import "fmt"

// EventKind is the kind of an event.
type EventKind uint8

// The kinds of events.
const (
	// EventReconnected: the connection to ovsdb-server was lost and is back. Changes in between are unknown, so the caller must read again.
	EventReconnected EventKind = iota + 1
	// EventSwitchRestarted: ovs-vswitchd has restarted on the same database. Ports keep their numbers; flows, groups and connections are
	// lost.
	EventSwitchRestarted
	// EventDrift: others changed, added or removed the rows in Keys, or their OpenFlow port numbers.
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

// Event reports that a caller's copy of the switch's state may be out of date. It has keys, never values: the caller reads again.
type Event struct {
	Kind EventKind
	// Keys are the rows of an EventDrift, sorted. Other events are about all rows.
	Keys []Key
}
