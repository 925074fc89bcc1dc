package openflow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
)

// Multipart types (OpenFlow 1.5.1, 7.3.5).
const (
	partDesc        = 0
	partFlowDesc    = 1
	partAggregate   = 2
	partGroupDesc   = 7
	partPortDesc    = 13
	partFlowMonitor = 16
	// partMore marks every part of an answer but the last.
	partMore = 1
)

func multipart(kind uint16, body []byte) message {
	b := binary.BigEndian.AppendUint16(nil, kind)
	return message{kind: msgMultipart, body: append(zeros(b, 6), body...)}
}

// flowsRequest requests the flows of one table, or of all tables with tableAll.
func flowsRequest(kind uint16, table uint8) message {
	b := append([]byte{table}, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, PortAny)
	b = binary.BigEndian.AppendUint32(b, groupAny)
	b = zeros(b, 4+8+8)
	return multipart(kind, Match{}.appendWire(b))
}

func groupsRequest() message {
	return multipart(partGroupDesc, zeros(binary.BigEndian.AppendUint32(nil, groupAll), 4))
}

func portsRequest() message {
	return multipart(partPortDesc, zeros(binary.BigEndian.AppendUint32(nil, PortAny), 4))
}

// decodeFlows reads the flows of one part of a flow description.
func decodeFlows(b []byte) ([]*Flow, error) {
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
		return nil, nil, malformed("flow description")
	}
	be := binary.BigEndian
	n := int(be.Uint16(b))
	if n < flowDescLen || n > len(b) {
		return nil, nil, malformed("flow description")
	}
	f := &Flow{
		Table: b[4], Priority: be.Uint16(b[6:]), IdleTimeout: be.Uint16(b[8:]), HardTimeout: be.Uint16(b[10:]),
		Flags: FlowFlags(be.Uint16(b[12:])), Importance: be.Uint16(b[14:]), Cookie: be.Uint64(b[16:]),
	}
	instructions, err := f.decodeBody(b[flowDescLen:n], 1)
	if err != nil {
		return nil, nil, err
	}
	f.Actions, err = decodeInstructions(instructions)
	return f, b[n:], err
}

// flowDesc is the inverse of decodeFlowDesc; the statistics are empty.
func flowDesc(f *Flow) []byte {
	be := binary.BigEndian
	b := []byte{0, 0, 0, 0, f.Table, 0}
	for _, v := range [...]uint16{f.Priority, f.IdleTimeout, f.HardTimeout, uint16(f.Flags), f.Importance} {
		b = be.AppendUint16(b, v)
	}
	b = f.Match.appendWire(be.AppendUint64(b, f.Cookie))
	b = append(b, 0, 0, 0, 4, 0, 0, 0, 0)
	b = f.Actions.appendInstructions(b)
	be.PutUint16(b, uint16(len(b))) //nolint:gosec // a flow fits in a message
	return b
}

// decodeGroups reads the groups of one part of a group description.
func decodeGroups(b []byte) ([]*Group, error) {
	var groups []*Group
	for len(b) > 0 {
		if len(b) < 16 {
			return groups, malformed("group description")
		}
		n := int(binary.BigEndian.Uint16(b))
		if n < 16 || n > len(b) {
			return groups, malformed("group description")
		}
		g := &Group{Type: GroupType(b[2]), ID: binary.BigEndian.Uint32(b[4:])}
		if err := g.decodeBody(b[16:n], int(binary.BigEndian.Uint16(b[8:]))); err != nil {
			return groups, err
		}
		groups, b = append(groups, g), b[n:]
	}
	return groups, nil
}

func groupDesc(g *Group) []byte {
	buckets := g.buckets()
	b := binary.BigEndian.AppendUint32([]byte{0, 0, byte(g.Type), 0}, g.ID)
	b = zeros(binary.BigEndian.AppendUint16(b, uint16(len(buckets))), 6) //nolint:gosec // Validate bounds it
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

func decodePorts(b []byte) ([]Port, error) {
	var ports []Port
	for len(b) > 0 {
		if len(b) < portLen {
			return ports, malformed("port description")
		}
		n := int(binary.BigEndian.Uint16(b[4:]))
		if n < portLen || n > len(b) {
			return ports, malformed("port description")
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

func decodeSwitchDesc(b []byte) (SwitchDesc, error) {
	if len(b) < 1056 {
		return SwitchDesc{}, malformed("switch description")
	}
	text := func(from, n int) string {
		s, _, _ := bytes.Cut(b[from:from+n], []byte{0})
		return string(s)
	}
	return SwitchDesc{text(0, 256), text(256, 256), text(512, 256), text(768, 32), text(800, 256)}, nil
}
