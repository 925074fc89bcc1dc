package openflow

import (
	"encoding/binary"
	"fmt"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// FlowEvent is what a flow monitor reports.
type FlowEvent uint16

// The events (OpenFlow 1.5.1, 7.3.5.21).
const (
	FlowInitial FlowEvent = iota
	FlowAdded
	FlowRemoved
	FlowModified
	// FlowOwn reports changes that this connection made; XID identifies the message.
	FlowOwn
	// MonitorPaused says that the switch ran out of buffers: reports before MonitorResumed may lack details.
	MonitorPaused
	MonitorResumed
	MonitorUnclear FlowEvent = 0xffff // not of the protocol: the rest of a message that could not be decoded
)

// FlowUpdate is one report of a flow monitor.
type FlowUpdate struct {
	Event FlowEvent
	// Flow has its actions only if the monitor request includes them.
	Flow *Flow
	// XID is the XID of this connection's message that made the change, for FlowOwn.
	XID uint32
}

const (
	monitorAdd     = 1 << 1
	monitorRemoved = 1 << 2
	monitorModify  = 1 << 3
)

// MonitorRequest requests reports of changes by others in any table. Reports of own changes are abbreviated.
func MonitorRequest(id uint32) Message {
	b := binary.BigEndian.AppendUint32(nil, id)
	b = binary.BigEndian.AppendUint32(b, PortAny)
	b = binary.BigEndian.AppendUint32(b, groupAny)
	b = binary.BigEndian.AppendUint16(b, monitorAdd|monitorRemoved|monitorModify)
	return Multipart(PartFlowMonitor, oxm.Match{}.AppendWire(append(b, tableAll, 0)))
}

// flowUpdateLen is the length of the fixed part of a full report.
const flowUpdateLen = 24

// decodeFlowUpdates reads the reports of one message. The last one is MonitorUnclear if the rest cannot be decoded.
func decodeFlowUpdates(b []byte) (updates []FlowUpdate) {
	for len(b) > 0 {
		n := 0
		if len(b) >= 8 {
			n = int(binary.BigEndian.Uint16(b))
		}
		if n < 8 || n > len(b) {
			return append(updates, FlowUpdate{Event: MonitorUnclear})
		}
		u, err := decodeFlowUpdate(b[:n])
		if err != nil {
			return append(updates, FlowUpdate{Event: MonitorUnclear})
		}
		updates, b = append(updates, u), b[n:]
	}
	return updates
}

func decodeFlowUpdate(b []byte) (FlowUpdate, error) {
	u := FlowUpdate{Event: FlowEvent(binary.BigEndian.Uint16(b[2:]))}
	switch u.Event {
	case MonitorPaused, MonitorResumed:
		return u, nil
	case FlowOwn:
		u.XID = binary.BigEndian.Uint32(b[4:])
		return u, nil
	case FlowInitial, FlowAdded, FlowRemoved, FlowModified:
	default:
		return u, fmt.Errorf("event %d: %w", u.Event, wire.Malformed("flow update"))
	}
	if len(b) < flowUpdateLen {
		return u, wire.Malformed("flow update")
	}
	u.Flow = &Flow{
		Table: b[4], IdleTimeout: binary.BigEndian.Uint16(b[6:]), HardTimeout: binary.BigEndian.Uint16(b[8:]),
		Priority: binary.BigEndian.Uint16(b[10:]), Cookie: binary.BigEndian.Uint64(b[16:]),
	}
	rest, err := u.Flow.decodeBody(b[flowUpdateLen:], 0)
	if err != nil {
		return u, fmt.Errorf("flow update: %w", err)
	}
	u.Flow.Actions, err = action.DecodeInstructions(rest)
	return u, err
}

// EncodeFlowUpdate appends a report of a flow monitor.
func EncodeFlowUpdate(b []byte, event FlowEvent, f *Flow) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(wire.Zeros(b, 2), uint16(event))
	b = append(b, f.Table, 0)
	for _, v := range [...]uint16{f.IdleTimeout, f.HardTimeout, f.Priority} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	b = f.Match.AppendWire(binary.BigEndian.AppendUint64(wire.Zeros(b, 4), f.Cookie))
	binary.BigEndian.PutUint16(b[start:], uint16(len(b)-start)) //nolint:gosec // a match is short
	return b
}
