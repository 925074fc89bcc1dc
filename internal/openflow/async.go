package openflow

import (
	"bytes"
	"encoding/binary"
)

// PortStatus reports that a port was added, deleted or changed.
type PortStatus struct {
	Reason PortReason
	Port   Port
}

// PortReason is what happened to a port.
type PortReason uint8

// The reasons (OpenFlow 1.5.1, 7.4.3).
const (
	PortAdded PortReason = iota
	PortDeleted
	PortModified
)

// PacketIn is a packet that the switch sends to the controller.
type PacketIn struct {
	Reason   uint8
	Table    uint8
	Cookie   uint64
	Packet   []byte
	UserData []byte
	// Metadata has the pipeline's fields of the packet: in_port, registers, tunnel.
	Metadata Match
}

// GroupsChanged says that another connection has changed groups.
type GroupsChanged struct{}

// async decodes messages that no call waits for, and passes them to OnAsync. It drops what it cannot decode, except for reports of flow
// monitors: a change that is not reported would stay until the next dump.
func (c *Conn) async(m message) {
	if c.options.OnAsync == nil {
		return
	}
	if event := decodeAsync(m); event != nil {
		c.options.OnAsync(event)
	}
}

func decodeAsync(m message) any {
	switch {
	case m.kind == msgError:
		return decodeError(m)
	case m.kind == msgPortStatus && len(m.body) >= 8:
		if ports, err := decodePorts(m.body[8:]); err == nil && len(ports) == 1 {
			return &PortStatus{PortReason(m.body[0]), ports[0]}
		}
	case m.kind == msgMultipartReply && len(m.body) >= 8 && binary.BigEndian.Uint16(m.body) == partFlowMonitor:
		return decodeFlowUpdates(m.body[8:])
	case m.kind == msgRequestForward && len(m.body) >= headerLen && m.body[1] == msgGroupMod:
		return &GroupsChanged{}
	case m.kind == msgPacketIn:
		if p := decodePacketIn(m.body); p != nil {
			return p
		}
	case m.kind == msgExperimenter && len(m.body) >= 8 && binary.BigEndian.Uint32(m.body) == vendorNicira &&
		binary.BigEndian.Uint32(m.body[4:]) == nxtPacketIn2:
		if p := decodePacketIn2(m.body[8:]); p != nil {
			return p
		}
	}
	return nil
}

// decodePacketIn reads OpenFlow's own packet-in: buffer, length, reason, table, cookie, match, two bytes, packet.
func decodePacketIn(b []byte) *PacketIn {
	if len(b) < 16 {
		return nil
	}
	p := &PacketIn{Reason: b[6], Table: b[7], Cookie: binary.BigEndian.Uint64(b[8:])}
	match, rest, err := decodeMatch(b[16:])
	if err != nil || len(rest) < 2 {
		return nil
	}
	p.Metadata, p.Packet = match, bytes.Clone(rest[2:])
	return p
}

// Properties of NXT_PACKET_IN2.
const (
	pinPacket   = 0
	pinTable    = 3
	pinCookie   = 4
	pinReason   = 5
	pinMetadata = 6
	pinUserData = 7
)

func decodePacketIn2(b []byte) *PacketIn {
	p := &PacketIn{}
	for len(b) > 0 {
		kind, value, rest, err := nextProperty(b)
		if err != nil {
			return nil
		}
		b = rest
		switch {
		case kind == pinPacket:
			p.Packet = bytes.Clone(value)
		case kind == pinTable && len(value) >= 1:
			p.Table = value[0]
		case kind == pinReason && len(value) >= 1:
			p.Reason = value[0]
		case kind == pinCookie && len(value) >= 12:
			p.Cookie = binary.BigEndian.Uint64(value[4:])
		case kind == pinUserData:
			p.UserData = bytes.Clone(value)
		case kind == pinMetadata:
			p.Metadata = decodeFields(value)
		}
	}
	return p
}

// decodeFields decodes a list of fields without a header, up to the first malformed field.
func decodeFields(b []byte) Match {
	var m Match
	for len(b) > 0 {
		f, raw, err := decodeOXM(b)
		if err != nil {
			break
		}
		b = b[len(raw):]
		if f.field != fieldNone {
			m.set(f)
		}
	}
	return m
}
