package openflow

import (
	"encoding/binary"
	"fmt"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// Flow-mod and group-mod commands (OpenFlow 1.5.1, 7.3.4.1 and 7.3.4.3; add-or-modify is Open vSwitch's).
const (
	flowAdd          = 0
	flowDelete       = 3
	flowDeleteStrict = 4

	groupAdd         = 0
	groupModify      = 1
	groupDelete      = 2
	groupAddOrModify = 0x8000

	groupAll = 0xfffffffc
	groupAny = 0xffffffff
	tableAll = 255
	noBuffer = 0xffffffff
	// flowModLen is the fixed part of a flow-mod's body.
	flowModLen = 40
)

func flowMod(command uint8, f *Flow) Message {
	b := make([]byte, 0, 256)
	b = binary.BigEndian.AppendUint64(b, f.Cookie)
	b = wire.Zeros(b, 8)
	b = append(b, f.Table, command)
	b = binary.BigEndian.AppendUint16(b, f.IdleTimeout)
	b = binary.BigEndian.AppendUint16(b, f.HardTimeout)
	b = binary.BigEndian.AppendUint16(b, f.Priority)
	b = binary.BigEndian.AppendUint32(b, noBuffer)
	b = binary.BigEndian.AppendUint32(b, PortAny)
	b = binary.BigEndian.AppendUint32(b, groupAny)
	b = binary.BigEndian.AppendUint16(b, uint16(f.Flags))
	b = binary.BigEndian.AppendUint16(b, f.Importance)
	b = f.Match.AppendWire(b)
	if command == flowAdd {
		b = f.Actions.AppendInstructions(b)
	}
	return Message{Kind: MsgFlowMod, Body: b}
}

// Encode returns the message that adds the entry. A hash of it changes with everything that is significant to the switch. For a nil entry
// it is empty.
func Encode(_ Key, entry Entry) []byte {
	m, err := Mod{Entry: entry}.Message()
	if err != nil {
		return nil
	}
	return m.Body
}

// decodeFlowMod reads the body of a flow-mod.
func decodeFlowMod(b []byte) (uint8, *Flow, error) {
	if len(b) < flowModLen {
		return 0, nil, wire.Malformed("flow-mod")
	}
	be := binary.BigEndian
	f := &Flow{
		Cookie: be.Uint64(b), Table: b[16], IdleTimeout: be.Uint16(b[18:]), HardTimeout: be.Uint16(b[20:]),
		Priority: be.Uint16(b[22:]), Flags: FlowFlags(be.Uint16(b[36:])), Importance: be.Uint16(b[38:]),
	}
	rest, err := f.decodeBody(b[flowModLen:], 0)
	if err != nil {
		return 0, nil, fmt.Errorf("flow-mod: %w", err)
	}
	f.Actions, err = action.DecodeInstructions(rest)
	if err != nil {
		return 0, nil, fmt.Errorf("flow-mod: %w", err)
	}
	return b[17], f, nil
}

// decodeBody decodes the match, skips stats bytes of statistics, and returns the instructions.
func (f *Flow) decodeBody(b []byte, stats int) ([]byte, error) {
	match, rest, err := oxm.DecodeMatch(b)
	if err != nil {
		return nil, err
	}
	f.Match = match
	if stats == 0 {
		return rest, nil
	}
	// struct ofp_stats: reserved, length, fields, padding to 8 bytes.
	if len(rest) < 4 {
		return nil, wire.Malformed("statistics header")
	}
	n := wire.RoundUp8(int(binary.BigEndian.Uint16(rest[2:])))
	if n < 4 || n > len(rest) {
		return nil, wire.Malformed("statistics")
	}
	return rest[n:], nil
}

func groupMod(command uint16, g *Group) Message {
	b := binary.BigEndian.AppendUint16(nil, command)
	b = append(b, byte(g.Type), 0)
	b = binary.BigEndian.AppendUint32(b, g.ID)
	if command == groupDelete {
		return Message{Kind: MsgGroupMod, Body: append(wire.Zeros(b, 4), 0xff, 0xff, 0xff, 0xff)}
	}
	buckets := g.buckets()
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(buckets))), 0, 0, 0xff, 0xff, 0xff, 0xff) //nolint:gosec // Validate bounds it
	return Message{Kind: MsgGroupMod, Body: g.appendProperties(append(b, buckets...))}
}

// decodeGroupMod reads the body of a group-mod.
func decodeGroupMod(b []byte) (uint16, *Group, error) {
	if len(b) < 16 {
		return 0, nil, wire.Malformed("group-mod")
	}
	g := &Group{ID: binary.BigEndian.Uint32(b[4:]), Type: GroupType(b[2])}
	err := g.decodeBody(b[16:], int(binary.BigEndian.Uint16(b[8:])))
	return binary.BigEndian.Uint16(b), g, err
}

// decodeBody decodes buckets, whose total length is buckets, and then properties.
func (g *Group) decodeBody(b []byte, buckets int) error {
	if buckets > len(b) {
		return wire.Malformed("group's buckets")
	}
	rest, properties := b[:buckets], b[buckets:]
	for len(rest) > 0 {
		if len(rest) < 8 {
			return wire.Malformed("bucket header")
		}
		n := int(binary.BigEndian.Uint16(rest))
		if n < 8 || n%8 != 0 || n > len(rest) {
			return wire.Malformed("bucket")
		}
		bucket, err := decodeBucket(rest[:n])
		if err != nil {
			return fmt.Errorf("bucket of group %d: %w", g.ID, err)
		}
		g.Buckets = append(g.Buckets, bucket)
		rest = rest[n:]
	}
	for len(properties) > 0 {
		kind, value, next, err := wire.NextProperty(properties)
		if err != nil {
			return fmt.Errorf("group %d: %w", g.ID, err)
		}
		raw := properties[:len(properties)-len(next)]
		properties = next
		if s := decodeSelection(kind, value); s != nil && g.Selection == nil {
			g.Selection = s
		} else {
			g.opaque += string(raw)
		}
	}
	return nil
}

func decodeBucket(b []byte) (Bucket, error) {
	k := Bucket{ID: binary.BigEndian.Uint32(b[4:])}
	actions := int(binary.BigEndian.Uint16(b[2:]))
	if 8+actions > len(b) {
		return k, wire.Malformed("bucket's actions")
	}
	var err error
	if k.Actions, err = action.Decode(b[8 : 8+actions]); err != nil {
		return k, err
	}
	for rest := b[8+actions:]; len(rest) > 0; {
		kind, value, next, err := wire.NextProperty(rest)
		if err != nil {
			return k, err
		}
		rest = next
		switch {
		case kind == bucketWeight && len(value) >= 2:
			k.Weight = binary.BigEndian.Uint16(value)
		case kind == bucketWatchPort && len(value) >= 4:
			k.WatchPort = unlessAny(binary.BigEndian.Uint32(value))
		case kind == bucketWatchGroup && len(value) >= 4:
			k.WatchGroup = unlessAny(binary.BigEndian.Uint32(value))
		}
	}
	return k, nil
}

func unlessAny(v uint32) uint32 {
	if v == PortAny {
		return 0
	}
	return v
}

// decodeSelection decodes the property of a selection method; nil for another property.
func decodeSelection(kind uint16, v []byte) *Selection {
	const fixed = 12 + selectionNameLen + 8
	if kind != groupExperimenter || len(v) < fixed ||
		binary.BigEndian.Uint32(v) != vendorNetronome || binary.BigEndian.Uint32(v[4:]) != selectionMethod {
		return nil
	}
	name := v[12 : 12+selectionNameLen]
	s := &Selection{Param: binary.BigEndian.Uint64(v[12+selectionNameLen:])}
	for _, c := range name {
		if c == 0 {
			break
		}
		s.Method += string(rune(c))
	}
	for rest := v[fixed:]; len(rest) > 0; {
		f, raw, err := oxm.DecodeField(rest)
		if err != nil || !f.Known() {
			return nil
		}
		s.Fields = append(s.Fields, f.Field())
		rest = rest[len(raw):]
	}
	return s
}
