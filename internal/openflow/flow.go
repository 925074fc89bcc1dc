package openflow

import (
	"bytes"
	"strconv"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// FlowFlags are a flow's flags (OpenFlow 1.5.1, 7.3.4.2).
type FlowFlags uint16

// The flags.
const (
	FlowSendRemoved FlowFlags = 1 << iota
	FlowCheckOverlap
	FlowResetCounts
	FlowNoPacketCounts
	FlowNoByteCounts
)

// Flow is one flow of a table.
type Flow struct {
	Table    uint8
	Priority uint16
	// Cookie identifies the flow's owner.
	Cookie  uint64
	Match   oxm.Match
	Actions action.Actions
	// IdleTimeout and HardTimeout are in seconds; 0: never. The engine leaves flows with a timeout to the switch.
	IdleTimeout, HardTimeout uint16
	Flags                    FlowFlags
	Importance               uint16
}

// Key is the identity of a flow or a group on the switch.
type Key struct {
	// Group is the group's number; it is 0 for a flow, which the other members identify.
	Group    uint32
	Table    uint8
	Priority uint16
	// Match is the canonical text of the match.
	Match string
}

// String prints the key in a form that ovs-ofctl accepts.
func (k Key) String() string {
	if k.Group != 0 {
		return "group_id=" + strconv.FormatUint(uint64(k.Group), 10)
	}
	b := strconv.AppendUint([]byte("table="), uint64(k.Table), 10)
	b = strconv.AppendUint(append(b, ",priority="...), uint64(k.Priority), 10)
	if k.Match != "" {
		b = append(append(b, ','), k.Match...)
	}
	return string(b)
}

// Entry is what the engine programs: a *Flow or a *Group.
type Entry interface {
	Key() Key
	Equal(other Entry) bool
	String() string
}

var (
	_ Entry = (*Flow)(nil)
	_ Entry = (*Group)(nil)
)

// Key returns table, priority and match.
func (f *Flow) Key() Key {
	return Key{Table: f.Table, Priority: f.Priority, Match: f.Match.String()}
}

// Equal reports whether the other is the same flow with the same effect. It ignores counters.
func (f *Flow) Equal(other Entry) bool {
	o, ok := other.(*Flow)
	if !ok || f == nil || o == nil {
		return false
	}
	return f.Table == o.Table && f.Priority == o.Priority && f.Cookie == o.Cookie &&
		f.IdleTimeout == o.IdleTimeout && f.HardTimeout == o.HardTimeout &&
		f.Flags == o.Flags && f.Importance == o.Importance && f.Match.Equal(o.Match) &&
		bytes.Equal(f.Actions.AppendInstructions(nil), o.Actions.AppendInstructions(nil))
}

// String prints the flow as `ovs-ofctl -O OpenFlow15 --no-stats dump-flows` does, without the leading space.
func (f *Flow) String() string {
	b := make([]byte, 0, 160)
	if f.Cookie != 0 {
		b = append(strconv.AppendUint(append(b, "cookie=0x"...), f.Cookie, 16), ", "...)
	}
	number := func(name string, v uint64) {
		if v != 0 {
			b = append(strconv.AppendUint(append(append(b, name...), '='), v, 10), ", "...)
		}
	}
	number("table", uint64(f.Table))
	number("idle_timeout", uint64(f.IdleTimeout))
	number("hard_timeout", uint64(f.HardTimeout))
	for i, name := range [...]string{"send_flow_rem ", "check_overlap ", "reset_counts ", "no_packet_counts ", "no_byte_counts "} {
		if f.Flags&(1<<i) != 0 {
			b = append(b, name...)
		}
	}
	number("importance", uint64(f.Importance))
	start := len(b)
	if f.Priority != wire.DefaultPriority {
		b = append(strconv.AppendUint(append(b, "priority="...), uint64(f.Priority), 10), ',')
	}
	before := len(b)
	b = f.Match.AppendText(b)
	if len(b) == before && before > start {
		b = b[:before-1]
	}
	if len(b) > start {
		b = append(b, ' ')
	}
	return string(f.Actions.Ordered().AppendText(append(b, "actions="...)))
}
