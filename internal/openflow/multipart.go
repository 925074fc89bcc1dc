package openflow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// Multipart types (OpenFlow 1.5.1, 7.3.5).
const (
	PartDesc        = 0
	PartFlowDesc    = 1
	PartAggregate   = 2
	PartGroupDesc   = 7
	PartPortDesc    = 13
	PartFlowMonitor = 16
	// PartMore marks every part of an answer but the last.
	PartMore = 1
)

// Multipart returns a multipart request.
func Multipart(kind uint16, body []byte) Message {
	b := binary.BigEndian.AppendUint16(nil, kind)
	return Message{Kind: MsgMultipart, Body: append(wire.Zeros(b, 6), body...)}
}

// FlowsRequest requests the flows of all tables: their descriptions with PartFlowDesc, the sums of their counters with PartAggregate.
func FlowsRequest(kind uint16) Message {
	b := []byte{tableAll, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, PortAny)
	b = binary.BigEndian.AppendUint32(b, groupAny)
	b = wire.Zeros(b, 4+8+8)
	return Multipart(kind, oxm.Match{}.AppendWire(b))
}

// GroupsRequest requests the descriptions of all groups.
func GroupsRequest() Message {
	return Multipart(PartGroupDesc, wire.Zeros(binary.BigEndian.AppendUint32(nil, groupAll), 4))
}

// PortsRequest requests the descriptions of all ports.
func PortsRequest() Message {
	return Multipart(PartPortDesc, wire.Zeros(binary.BigEndian.AppendUint32(nil, PortAny), 4))
}

// DecodeFlows reads the flows of one part of a flow description.
func DecodeFlows(b []byte) ([]*Flow, error) {
	var flows []*Flow
	for len(b) > 0 {
		f, rest, err := decodeFlowDesc(b)
		if err != nil {
			return flows, fmt.Errorf("flow %d of a dump: %w", len(flows), err)
		}
		flows, b = append(flows, f), rest
	}
	return flows, nil
}

// flowDescLen is the length of the fixed part of a flow's description.
const flowDescLen = 24

func decodeFlowDesc(b []byte) (*Flow, []byte, error) {
	if len(b) < flowDescLen {
		return nil, nil, wire.Malformed("flow description")
	}
	be := binary.BigEndian
	n := int(be.Uint16(b))
	if n < flowDescLen || n > len(b) {
		return nil, nil, wire.Malformed("flow description")
	}
	f := &Flow{
		Table: b[4], Priority: be.Uint16(b[6:]), IdleTimeout: be.Uint16(b[8:]), HardTimeout: be.Uint16(b[10:]),
		Flags: FlowFlags(be.Uint16(b[12:])), Importance: be.Uint16(b[14:]), Cookie: be.Uint64(b[16:]),
	}
	instructions, err := f.decodeBody(b[flowDescLen:n], 1)
	if err != nil {
		return nil, nil, err
	}
	f.Actions, err = action.DecodeInstructions(instructions)
	return f, b[n:], err
}

// EncodeFlowDesc is the inverse of decodeFlowDesc; the statistics are empty.
func EncodeFlowDesc(f *Flow) []byte {
	be := binary.BigEndian
	b := []byte{0, 0, 0, 0, f.Table, 0}
	for _, v := range [...]uint16{f.Priority, f.IdleTimeout, f.HardTimeout, uint16(f.Flags), f.Importance} {
		b = be.AppendUint16(b, v)
	}
	b = f.Match.AppendWire(be.AppendUint64(b, f.Cookie))
	b = append(b, 0, 0, 0, 4, 0, 0, 0, 0)
	b = f.Actions.AppendInstructions(b)
	be.PutUint16(b, uint16(len(b))) //nolint:gosec // a flow fits in a message
	return b
}

// DecodeGroups reads the groups of one part of a group description.
func DecodeGroups(b []byte) ([]*Group, error) {
	var groups []*Group
	for len(b) > 0 {
		if len(b) < 16 {
			return groups, wire.Malformed("group description")
		}
		n := int(binary.BigEndian.Uint16(b))
		if n < 16 || n > len(b) {
			return groups, wire.Malformed("group description")
		}
		g := &Group{Type: GroupType(b[2]), ID: binary.BigEndian.Uint32(b[4:])}
		if err := g.decodeBody(b[16:n], int(binary.BigEndian.Uint16(b[8:]))); err != nil {
			return groups, err
		}
		groups, b = append(groups, g), b[n:]
	}
	return groups, nil
}

// EncodeGroupDesc returns a group's description.
func EncodeGroupDesc(g *Group) []byte {
	buckets := g.buckets()
	b := binary.BigEndian.AppendUint32([]byte{0, 0, byte(g.Type), 0}, g.ID)
	b = wire.Zeros(binary.BigEndian.AppendUint16(b, uint16(len(buckets))), 6) //nolint:gosec // Validate bounds it
	b = g.appendProperties(append(b, buckets...))
	binary.BigEndian.PutUint16(b, uint16(len(b))) //nolint:gosec // the same
	return b
}

// Port is a port of a bridge.
type Port struct {
	Number uint32
	Name   string
	MAC    net.HardwareAddr
	// Down is the configured state, LinkDown the actual state of the link.
	Down, LinkDown bool
}

const portLen = 40

// DecodePorts reads ports' descriptions.
func DecodePorts(b []byte) ([]Port, error) {
	var ports []Port
	for len(b) > 0 {
		if len(b) < portLen {
			return ports, wire.Malformed("port description")
		}
		n := int(binary.BigEndian.Uint16(b[4:]))
		if n < portLen || n > len(b) {
			return ports, wire.Malformed("port description")
		}
		name, _, _ := bytes.Cut(b[16:32], []byte{0})
		ports = append(ports, Port{
			Number: binary.BigEndian.Uint32(b), Name: string(name), MAC: bytes.Clone(b[8:14]),
			Down: binary.BigEndian.Uint32(b[32:])&1 != 0, LinkDown: binary.BigEndian.Uint32(b[36:])&1 != 0,
		})
		b = b[n:]
	}
	return ports, nil
}

// SwitchDesc is a switch's description of itself.
type SwitchDesc struct{ Manufacturer, Hardware, Software, Serial, Datapath string }

// DecodeSwitchDesc reads a switch's description.
func DecodeSwitchDesc(b []byte) (SwitchDesc, error) {
	if len(b) < 1056 {
		return SwitchDesc{}, wire.Malformed("switch description")
	}
	text := func(from, n int) string {
		s, _, _ := bytes.Cut(b[from:from+n], []byte{0})
		return string(s)
	}
	return SwitchDesc{text(0, 256), text(256, 256), text(512, 256), text(768, 32), text(800, 256)}, nil
}

// MultipartReply returns one part of an answer.
func MultipartReply(xid uint32, kind uint16, flags byte, body []byte) Message {
	b := append(binary.BigEndian.AppendUint16(nil, kind), 0, flags, 0, 0, 0, 0)
	return Message{MsgMultipartReply, xid, append(b, body...)}
}

// Totals are the counters of several flows together.
type Totals struct{ Flows, Packets, Bytes uint64 }

// DecodeTotals reads a struct ofp_stats: reserved, length, fields of class OFPXSC_OPENFLOW_BASIC (0x8002).
func DecodeTotals(b []byte) (Totals, error) {
	var t Totals
	if len(b) < 4 {
		return t, wire.Malformed("statistics header")
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < 4 || n > len(b) {
		return t, wire.Malformed("statistics")
	}
	for b = b[4:n]; len(b) >= 4; {
		length := int(b[3])
		if 4+length > len(b) {
			return t, wire.Malformed("statistic")
		}
		value := b[4 : 4+length]
		switch kind := b[2] >> 1; {
		case kind == 3 && length == 4:
			t.Flows = uint64(binary.BigEndian.Uint32(value))
		case kind == 4 && length == 8:
			t.Packets = binary.BigEndian.Uint64(value)
		case kind == 5 && length == 8:
			t.Bytes = binary.BigEndian.Uint64(value)
		}
		b = b[4+length:]
	}
	return t, nil
}
