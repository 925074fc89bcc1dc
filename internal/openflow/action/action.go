package action

import (
	"encoding/binary"
	"slices"
	"strconv"

	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// Action is one step of what a flow or a bucket does with a packet. The constructors of this package make actions. An action of the
// switch that has no constructor is decoded as an opaque action, which encodes to the bytes it was read from.
type Action interface {
	// String prints the action as ovs-ofctl does.
	String() string
	appendText(b []byte) []byte
	appendWire(b []byte) []byte
}

// Actions is a list of actions, executed in order. The empty list drops the packet.
type Actions []Action

// String prints the list as ovs-ofctl does; the empty list is "drop".
func (a Actions) String() string { return string(a.AppendText(nil)) }

// AppendText appends the text of String.
func (a Actions) AppendText(b []byte) []byte {
	if len(a) == 0 {
		return append(b, "drop"...)
	}
	for i, action := range a {
		if i > 0 {
			b = append(b, ',')
		}
		b = action.appendText(b)
	}
	return b
}

// AppendWire appends the bytes of the list.
func (a Actions) AppendWire(b []byte) []byte {
	for _, action := range a {
		b = action.appendWire(b)
	}
	return b
}

// OpenFlow action types (OpenFlow 1.5.1, 7.2.6).
const (
	actOutput       = 0
	actPushVLAN     = 17
	actPopVLAN      = 18
	actPushMPLS     = 19
	actPopMPLS      = 20
	actSetQueue     = 21
	actGroup        = 22
	actDecTTL       = 24
	actSetField     = 25
	actCopyField    = 28
	actMeter        = 29
	actExperimenter = 0xffff
)

// Nicira's action subtypes (ovs-actions(7)).
const (
	nxResubmit       = 1
	nxNote           = 8
	nxResubmitTable  = 14
	nxOutputReg      = 15
	nxLearn          = 16
	nxExit           = 17
	nxController     = 20
	nxConjunction    = 34
	nxCT             = 35
	nxNAT            = 36
	nxController2    = 37
	nxClone          = 42
	nxCTClear        = 43
	nxResubmitCT     = 44
	nxLearn2         = 45
	nxCheckPktLarger = 49
)

// beginAction appends type and length. It returns the position of the action, for endAction.
func beginAction(b []byte, kind uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, kind), 0, 0)
}

func beginNicira(b []byte, subtype uint16) []byte {
	b = beginAction(b, actExperimenter)
	b = binary.BigEndian.AppendUint32(b, wire.VendorNicira)
	return binary.BigEndian.AppendUint16(b, subtype)
}

// endAction pads the action that began at start and writes its length.
func endAction(b []byte, start int) []byte {
	b = wire.Pad(b, start)
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start)) //nolint:gosec // actions are at most 64 KiB
	return b
}

// output sends the packet out of a port.
type output struct {
	port uint32
	// maxLen is how many bytes of the packet a controller gets; 0 for other ports.
	maxLen uint16
}

// Output sends the packet out of a port, but never out of the port that it came in by: for that use InPortAction.
func Output(port uint32) Action {
	if port == wire.PortController {
		return output{port, 0xffff}
	}
	return output{port: port}
}

// InPortAction sends the packet out of the port that it came in by.
func InPortAction() Action { return output{port: wire.PortInPort} }

func (a output) String() string { return string(a.appendText(nil)) }

func (a output) appendText(b []byte) []byte {
	if a.port < wire.PortMax {
		b = append(b, "output:"...)
	}
	b = wire.AppendPort(b, a.port)
	if a.port == wire.PortController {
		b = strconv.AppendUint(append(b, ':'), uint64(a.maxLen), 10)
	}
	return b
}

func (a output) appendWire(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(beginAction(b, actOutput), a.port)
	return endAction(wire.Zeros(binary.BigEndian.AppendUint16(b, a.maxLen), 6), start)
}

type outputReg struct {
	src    oxm.Subfield
	maxLen uint16
}

// OutputReg sends the packet out of the port whose number a field holds.
func OutputReg(src oxm.Subfield) Action { return outputReg{src, 0xffff} }

func (a outputReg) String() string { return string(a.appendText(nil)) }

func (a outputReg) appendText(b []byte) []byte {
	return a.src.AppendText(append(b, "output:"...))
}

func (a outputReg) appendWire(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(beginNicira(b, nxOutputReg), a.src.OffsetBits())
	b = a.src.AppendNXM(b)
	return endAction(wire.Zeros(binary.BigEndian.AppendUint16(b, a.maxLen), 6), start)
}

// number is an action whose argument is one number.
type number struct {
	kind  uint16
	value uint32
}

// GroupAction hands the packet to a group.
func GroupAction(id uint32) Action { return number{actGroup, id} }

// Meter passes the packet through a meter.
func Meter(id uint32) Action { return number{actMeter, id} }

// SetQueue sets the queue that a following output uses.
func SetQueue(id uint32) Action { return number{actSetQueue, id} }

func (a number) String() string { return string(a.appendText(nil)) }

func (a number) appendText(b []byte) []byte {
	switch a.kind {
	case actGroup:
		b = append(b, "group:"...)
	case actMeter:
		b = append(b, "meter:"...)
	default:
		b = append(b, "set_queue:"...)
	}
	return strconv.AppendUint(b, uint64(a.value), 10)
}

func (a number) appendWire(b []byte) []byte {
	start := len(b)
	return endAction(binary.BigEndian.AppendUint32(beginAction(b, a.kind), a.value), start)
}

// tag is an action on the outermost tag.
type tag struct {
	kind    uint16
	ethType uint16
}

// PushVLAN adds a tag; ethType is EthTypeVLAN or EthTypeQinQ.
func PushVLAN(ethType uint16) Action { return tag{actPushVLAN, ethType} }

// PopVLAN removes the outermost VLAN tag.
func PopVLAN() Action { return tag{kind: actPopVLAN} }

// PushMPLS adds a label.
func PushMPLS(ethType uint16) Action { return tag{actPushMPLS, ethType} }

// PopMPLS removes the outermost label. ethType is the type of the packet below the label.
func PopMPLS(ethType uint16) Action { return tag{actPopMPLS, ethType} }

func (a tag) String() string { return string(a.appendText(nil)) }

func (a tag) appendText(b []byte) []byte {
	switch a.kind {
	case actPopVLAN:
		return append(b, "pop_vlan"...)
	case actPushVLAN:
		b = append(b, "push_vlan:"...)
	case actPushMPLS:
		b = append(b, "push_mpls:"...)
	default:
		b = append(b, "pop_mpls:"...)
	}
	return wire.AppendHexPadded(append(b, "0x"...), uint64(a.ethType), 4)
}

func (a tag) appendWire(b []byte) []byte {
	start := len(b)
	b = beginAction(b, a.kind)
	if a.kind != actPopVLAN {
		b = binary.BigEndian.AppendUint16(b, a.ethType)
		return endAction(b, start)
	}
	return endAction(wire.Zeros(b, 4), start)
}

// plain is an action without arguments; text is its name.
type plain struct {
	kind, subtype uint16
	text          string
}

// DecTTL decrements the time to live; at zero the packet goes to the controller and its processing ends.
func DecTTL() Action { return plain{actDecTTL, 0, "dec_ttl"} }

// CTClear removes the packet's conntrack state.
func CTClear() Action { return plain{actExperimenter, nxCTClear, "ct_clear"} }

// Exit ends the processing of the packet, also in the flows that resubmitted the packet.
func Exit() Action { return plain{actExperimenter, nxExit, "exit"} }

func (a plain) String() string { return a.text }

func (a plain) appendText(b []byte) []byte { return append(b, a.text...) }

func (a plain) appendWire(b []byte) []byte {
	start := len(b)
	if a.kind == actExperimenter {
		return endAction(wire.Zeros(beginNicira(b, a.subtype), 6), start)
	}
	return endAction(wire.Zeros(beginAction(b, a.kind), 4), start)
}

type resubmit struct {
	port   uint32
	table  uint8
	withCT bool
}

// tableCurrent, as the table of a resubmit, is the table of the flow itself.
const tableCurrent = 255

// Resubmit looks the packet up again in a table, as if it had come in by port, and then continues with the next action. wire.PortInPort keeps
// the packet's own port.
func Resubmit(port uint32, table uint8) Action { return resubmit{port: port, table: table} }

func (a resubmit) String() string { return string(a.appendText(nil)) }

func (a resubmit) appendText(b []byte) []byte {
	if a.port != wire.PortInPort && a.table == tableCurrent {
		return wire.AppendPort(append(b, "resubmit:"...), a.port)
	}
	b = append(b, "resubmit("...)
	if a.port != wire.PortInPort {
		b = wire.AppendPort(b, a.port)
	}
	b = append(b, ',')
	if a.table != tableCurrent {
		b = strconv.AppendUint(b, uint64(a.table), 10)
	}
	if a.withCT {
		b = append(b, ",ct"...)
	}
	return append(b, ')')
}

func (a resubmit) appendWire(b []byte) []byte {
	start := len(b)
	subtype := uint16(nxResubmitTable)
	if a.withCT {
		subtype = nxResubmitCT
	}
	b = binary.BigEndian.AppendUint16(beginNicira(b, subtype), wire.NarrowPort(a.port))
	return endAction(append(b, a.table, 0, 0, 0), start)
}

type conjunction struct {
	id        uint32
	clause, n uint8
}

// Conjunction says that the flow's match is one alternative of one of the n clauses of a conjunction. clause counts from 1. A flow with a
// conjunction may have no other actions than conjunctions and notes.
func Conjunction(id uint32, clause, n uint8) Action { return conjunction{id, clause, n} }

func (a conjunction) String() string { return string(a.appendText(nil)) }

func (a conjunction) appendText(b []byte) []byte {
	b = strconv.AppendUint(append(b, "conjunction("...), uint64(a.id), 10)
	b = strconv.AppendUint(append(b, ','), uint64(a.clause), 10)
	b = strconv.AppendUint(append(b, '/'), uint64(a.n), 10)
	return append(b, ')')
}

func (a conjunction) appendWire(b []byte) []byte {
	start := len(b)
	b = append(beginNicira(b, nxConjunction), a.clause-1, a.n)
	return endAction(binary.BigEndian.AppendUint32(b, a.id), start)
}

type note struct{ data string }

// Note does nothing and carries data. The switch pads data with zeros to 6 bytes, or to a multiple of 8 bytes beyond these 6.
func Note(data []byte) Action {
	n := len(data)
	for n < 6 || (n-6)%8 != 0 {
		n++
	}
	return note{string(append(slices.Clip(data), make([]byte, n-len(data))...))}
}

func (a note) String() string { return string(a.appendText(nil)) }

func (a note) appendText(b []byte) []byte {
	return wire.AppendBytesHex(append(b, "note:"...), []byte(a.data))
}

func (a note) appendWire(b []byte) []byte {
	start := len(b)
	return endAction(append(beginNicira(b, nxNote), a.data...), start)
}

// opaque is an action, with its header, that this package cannot decode.
type opaque struct{ raw string }

func (a opaque) String() string { return string(a.appendText(nil)) }

func (a opaque) appendText(b []byte) []byte {
	return append(wire.AppendBytesHex(append(b, "unknown("...), []byte(a.raw)), ')')
}

func (a opaque) appendWire(b []byte) []byte { return append(b, a.raw...) }
