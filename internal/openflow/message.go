package openflow

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// version15 is the number of OpenFlow 1.5 in messages.
const version15 = 6

// headerLen is the length of an OpenFlow message's header.
const headerLen = 8

// Message types (OpenFlow 1.5.1, 7.1.1).
const (
	msgHello           = 0
	msgError           = 1
	msgEchoRequest     = 2
	msgEchoReply       = 3
	msgExperimenter    = 4
	msgFeaturesRequest = 5
	msgFeaturesReply   = 6
	msgSetConfig       = 9
	msgPacketIn        = 10
	msgPortStatus      = 12
	msgPacketOut       = 13
	msgFlowMod         = 14
	msgGroupMod        = 15
	msgMultipart       = 18
	msgMultipartReply  = 19
	msgBarrierRequest  = 20
	msgBarrierReply    = 21
	msgSetAsync        = 28
	msgRequestForward  = 32
	msgBundleControl   = 33
	msgBundleAdd       = 34
)

// message is one OpenFlow message without its header.
type message struct {
	kind uint8
	xid  uint32
	body []byte
}

func (m message) appendWire(b []byte) []byte {
	b = append(b, version15, m.kind)
	b = binary.BigEndian.AppendUint16(b, uint16(headerLen+len(m.body))) //nolint:gosec // what is sent is checked against maxMessage
	return append(binary.BigEndian.AppendUint32(b, m.xid), m.body...)
}

func (m message) fits() bool { return headerLen+len(m.body) <= maxMessage }

// readMessage reads the next message. Only hello and error may have another version.
func readMessage(r *bufio.Reader) (message, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return message{}, fmt.Errorf("read message header: %w", err)
	}
	m := message{kind: h[1], xid: binary.BigEndian.Uint32(h[4:])}
	n := int(binary.BigEndian.Uint16(h[2:]))
	if n < headerLen {
		return m, malformed("message header")
	}
	if h[0] != version15 && m.kind != msgHello && m.kind != msgError {
		return m, fmt.Errorf("message of version %d: %w", h[0], ErrVersion)
	}
	m.body = make([]byte, n-headerLen)
	if _, err := io.ReadFull(r, m.body); err != nil {
		return m, fmt.Errorf("read message: %w", err)
	}
	if m.kind == msgHello && !helloSpeaks15(h[0], m.body) {
		return m, ErrVersion
	}
	return m, nil
}

// helloMessage offers version 1.5 only.
func helloMessage() message {
	return message{msgHello, 1, []byte{0, 1, 0, 8, 0, 0, 0, 1 << version15}}
}

// helloSpeaks15 reads a hello's version bitmap. Without a bitmap, the hello's own version is the highest one supported.
func helloSpeaks15(version uint8, body []byte) bool {
	for len(body) >= 8 {
		kind, value, rest, err := nextProperty(body)
		if err != nil {
			break
		}
		if kind == 1 && len(value) >= 4 {
			return binary.BigEndian.Uint32(value)&(1<<version15) != 0
		}
		body = rest
	}
	return version >= version15
}

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

func flowMod(command uint8, f *Flow) message {
	b := make([]byte, 0, 256)
	b = binary.BigEndian.AppendUint64(b, f.Cookie)
	b = zeros(b, 8)
	b = append(b, f.Table, command)
	b = binary.BigEndian.AppendUint16(b, f.IdleTimeout)
	b = binary.BigEndian.AppendUint16(b, f.HardTimeout)
	b = binary.BigEndian.AppendUint16(b, f.Priority)
	b = binary.BigEndian.AppendUint32(b, noBuffer)
	b = binary.BigEndian.AppendUint32(b, PortAny)
	b = binary.BigEndian.AppendUint32(b, groupAny)
	b = binary.BigEndian.AppendUint16(b, uint16(f.Flags))
	b = binary.BigEndian.AppendUint16(b, f.Importance)
	b = f.Match.appendWire(b)
	if command == flowAdd {
		b = f.Actions.appendInstructions(b)
	}
	return message{kind: msgFlowMod, body: b}
}

// Encode returns the message that adds the entry. A hash of it changes with everything that is significant to the switch. For a nil entry
// it is empty.
func Encode(_ Key, entry Entry) []byte {
	m, err := Mod{Entry: entry}.message()
	if err != nil {
		return nil
	}
	return m.body
}

// decodeFlowMod reads the body of a flow-mod.
func decodeFlowMod(b []byte) (uint8, *Flow, error) {
	if len(b) < flowModLen {
		return 0, nil, malformed("flow-mod")
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
	f.Actions, err = decodeInstructions(rest)
	if err != nil {
		return 0, nil, fmt.Errorf("flow-mod: %w", err)
	}
	return b[17], f, nil
}

// decodeBody decodes the match, skips stats bytes of statistics, and returns the instructions.
func (f *Flow) decodeBody(b []byte, stats int) ([]byte, error) {
	match, rest, err := decodeMatch(b)
	if err != nil {
		return nil, err
	}
	f.Match = match
	if stats == 0 {
		return rest, nil
	}
	// struct ofp_stats: reserved, length, fields, padding to 8 bytes.
	if len(rest) < 4 {
		return nil, malformed("statistics header")
	}
	n := roundUp8(int(binary.BigEndian.Uint16(rest[2:])))
	if n < 4 || n > len(rest) {
		return nil, malformed("statistics")
	}
	return rest[n:], nil
}

func groupMod(command uint16, g *Group) message {
	b := binary.BigEndian.AppendUint16(nil, command)
	b = append(b, byte(g.Type), 0)
	b = binary.BigEndian.AppendUint32(b, g.ID)
	if command == groupDelete {
		return message{kind: msgGroupMod, body: append(zeros(b, 4), 0xff, 0xff, 0xff, 0xff)}
	}
	buckets := g.buckets()
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(buckets))), 0, 0, 0xff, 0xff, 0xff, 0xff) //nolint:gosec // Validate bounds it
	return message{kind: msgGroupMod, body: g.appendProperties(append(b, buckets...))}
}

// decodeGroupMod reads the body of a group-mod.
func decodeGroupMod(b []byte) (uint16, *Group, error) {
	if len(b) < 16 {
		return 0, nil, malformed("group-mod")
	}
	g := &Group{ID: binary.BigEndian.Uint32(b[4:]), Type: GroupType(b[2])}
	err := g.decodeBody(b[16:], int(binary.BigEndian.Uint16(b[8:])))
	return binary.BigEndian.Uint16(b), g, err
}

// decodeBody decodes buckets, whose total length is buckets, and then properties.
func (g *Group) decodeBody(b []byte, buckets int) error {
	if buckets > len(b) {
		return malformed("group's buckets")
	}
	rest, properties := b[:buckets], b[buckets:]
	for len(rest) > 0 {
		if len(rest) < 8 {
			return malformed("bucket header")
		}
		n := int(binary.BigEndian.Uint16(rest))
		if n < 8 || n%8 != 0 || n > len(rest) {
			return malformed("bucket")
		}
		bucket, err := decodeBucket(rest[:n])
		if err != nil {
			return fmt.Errorf("bucket of group %d: %w", g.ID, err)
		}
		g.Buckets = append(g.Buckets, bucket)
		rest = rest[n:]
	}
	for len(properties) > 0 {
		kind, value, next, err := nextProperty(properties)
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
		return k, malformed("bucket's actions")
	}
	var err error
	if k.Actions, err = decodeActions(b[8 : 8+actions]); err != nil {
		return k, err
	}
	for rest := b[8+actions:]; len(rest) > 0; {
		kind, value, next, err := nextProperty(rest)
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
		f, raw, err := decodeOXM(rest)
		if err != nil || f.field == fieldNone {
			return nil
		}
		s.Fields = append(s.Fields, f.field)
		rest = rest[len(raw):]
	}
	return s
}
