package openflow

import (
	"bytes"
	"encoding/binary"

	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
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
	Metadata oxm.Match
}

// GroupsChanged says that another connection has changed groups.
type GroupsChanged struct{}

// DecodeAsync decodes a message that answers no request: a *PortStatus, *PacketIn, []FlowUpdate, *GroupsChanged or *Error. It returns nil for
// what it cannot decode, except for reports of flow monitors: a change that is not reported would stay until the next dump.
func DecodeAsync(m Message) any {
	switch {
	case m.Kind == MsgError:
		return DecodeError(m)
	case m.Kind == MsgPortStatus && len(m.Body) >= 8:
		if ports, err := DecodePorts(m.Body[8:]); err == nil && len(ports) == 1 {
			return &PortStatus{PortReason(m.Body[0]), ports[0]}
		}
	case m.Kind == MsgMultipartReply && len(m.Body) >= 8 && binary.BigEndian.Uint16(m.Body) == PartFlowMonitor:
		return decodeFlowUpdates(m.Body[8:])
	case m.Kind == MsgRequestForward && len(m.Body) >= HeaderLen && m.Body[1] == MsgGroupMod:
		return &GroupsChanged{}
	case m.Kind == MsgPacketIn:
		if p := decodePacketIn(m.Body); p != nil {
			return p
		}
	case m.Kind == MsgExperimenter && len(m.Body) >= 8 && binary.BigEndian.Uint32(m.Body) == wire.VendorNicira &&
		binary.BigEndian.Uint32(m.Body[4:]) == nxtPacketIn2:
		if p := decodePacketIn2(m.Body[8:]); p != nil {
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
	match, rest, err := oxm.DecodeMatch(b[16:])
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
		kind, value, rest, err := wire.NextProperty(b)
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
			p.Metadata = oxm.DecodeFields(value)
		}
	}
	return p
}
