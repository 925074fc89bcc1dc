package action

import (
	"encoding/binary"
	"strconv"

	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// LearnSpec is a learn action: it makes the switch add a flow when a packet executes the action. Learned flows belong to the switch: this
// package's engine neither reads nor deletes flows that have a timeout.
type LearnSpec struct {
	Table    uint8
	Priority uint16
	Cookie   uint64
	// IdleTimeout and HardTimeout are in seconds; 0: never. FinIdleTimeout and FinHardTimeout replace them once a TCP connection ends.
	IdleTimeout, HardTimeout       uint16
	FinIdleTimeout, FinHardTimeout uint16
	// SendFlowRemoved makes the switch notify controllers when the learned flow ends. DeleteLearned deletes the learned flows together with
	// the flow that has the learn action.
	SendFlowRemoved, DeleteLearned bool
	// Limit is the maximum number of flows in Table with Cookie; 0: no limit. Result, if given, is set to 1 if a flow was learned.
	Limit  uint32
	Result *oxm.Subfield
	// Fields are the conditions and actions of the flow to learn.
	Fields []LearnField
}

// LearnField is one condition or action of the flow to learn.
type LearnField struct {
	dst   learnDst
	from  bool // src holds, else value
	src   oxm.Subfield
	value wire.U128
	to    oxm.Subfield
}

type learnDst uint16

const (
	learnMatch  learnDst = 0
	learnLoad   learnDst = 1 << 11
	learnOutput learnDst = 2 << 11

	learnImmediate = 1 << 13
	learnBitsMask  = 0x3ff

	learnSendFlowRemoved = 1
	learnDeleteLearned   = 2
	learnWriteResult     = 4
)

// LearnMatch makes the learned flow match dst on the value that src has in the packet now.
func LearnMatch(dst, src oxm.Subfield) LearnField {
	return LearnField{dst: learnMatch, from: true, src: src, to: dst}
}

// LearnMatchValue makes the learned flow match dst on a number.
func LearnMatchValue(dst oxm.Subfield, value uint64) LearnField {
	return LearnField{dst: learnMatch, value: wire.U64(value), to: dst}
}

// LearnLoad makes the learned flow write the value that src has in the packet now to dst.
func LearnLoad(dst, src oxm.Subfield) LearnField {
	return LearnField{dst: learnLoad, from: true, src: src, to: dst}
}

// LearnLoadValue makes the learned flow write a number to dst.
func LearnLoadValue(dst oxm.Subfield, value uint64) LearnField {
	return LearnField{dst: learnLoad, value: wire.U64(value), to: dst}
}

// LearnOutput makes the learned flow output to the port that src has in the packet now.
func LearnOutput(src oxm.Subfield) LearnField {
	return LearnField{dst: learnOutput, from: true, src: src}
}

// Learn makes the switch add a flow for the packet.
func Learn(spec LearnSpec) Action { return learn{spec} }

type learn struct{ LearnSpec }

func (a learn) String() string { return string(a.appendText(nil)) }

func (a learn) appendText(b []byte) []byte {
	b = strconv.AppendUint(append(b, "learn(table="...), uint64(a.Table), 10)
	number := func(name string, v uint64, unless uint64) {
		if v != unless {
			b = strconv.AppendUint(append(append(append(b, ','), name...), '='), v, 10)
		}
	}
	number("idle_timeout", uint64(a.IdleTimeout), 0)
	number("hard_timeout", uint64(a.HardTimeout), 0)
	number("fin_idle_timeout", uint64(a.FinIdleTimeout), 0)
	number("fin_hard_timeout", uint64(a.FinHardTimeout), 0)
	number("priority", uint64(a.Priority), wire.DefaultPriority)
	if a.SendFlowRemoved {
		b = append(b, ",send_flow_rem"...)
	}
	if a.DeleteLearned {
		b = append(b, ",delete_learned"...)
	}
	if a.Cookie != 0 {
		b = strconv.AppendUint(append(b, ",cookie=0x"...), a.Cookie, 16)
	}
	number("limit", uint64(a.Limit), 0)
	if a.Result != nil {
		b = a.Result.AppendText(append(b, ",result_dst="...))
	}
	for _, f := range a.Fields {
		b = f.appendText(append(b, ','))
	}
	return append(b, ')')
}

func (f LearnField) appendText(b []byte) []byte {
	switch {
	case f.dst == learnOutput:
		return f.src.AppendText(append(b, "output:"...))
	case f.dst == learnLoad && f.from:
		return f.to.AppendText(append(f.src.AppendText(append(b, "load:"...)), "->"...))
	case f.dst == learnLoad:
		return f.to.AppendText(append(f.value.AppendHex(append(b, "load:"...)), "->"...))
	case f.from:
		b = f.to.AppendText(b)
		if f.src.Field != f.to.Field || f.src.Offset != f.to.Offset {
			b = f.src.AppendText(append(b, '='))
		}
		return b
	case f.to == oxm.Whole(f.to.Field):
		b = append(append(b, f.to.Field.String()...), '=')
		return oxm.Wide(f.to.Field, f.value, wire.Ones(f.to.Bits)).AppendValue(b)
	default:
		return f.value.AppendHex(append(f.to.AppendText(b), '='))
	}
}

func (a learn) flags() uint16 {
	flags := uint16(0)
	if a.SendFlowRemoved {
		flags |= learnSendFlowRemoved
	}
	if a.DeleteLearned {
		flags |= learnDeleteLearned
	}
	if a.Result != nil {
		flags |= learnWriteResult
	}
	return flags
}

func (a learn) appendWire(b []byte) []byte {
	start := len(b)
	subtype := uint16(nxLearn)
	if a.Limit != 0 || a.Result != nil {
		subtype = nxLearn2
	}
	b = beginNicira(b, subtype)
	for _, v := range [...]uint16{a.IdleTimeout, a.HardTimeout, a.Priority} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	b = binary.BigEndian.AppendUint64(b, a.Cookie)
	b = append(binary.BigEndian.AppendUint16(b, a.flags()), a.Table, 0)
	b = binary.BigEndian.AppendUint16(b, a.FinIdleTimeout)
	b = binary.BigEndian.AppendUint16(b, a.FinHardTimeout)
	if subtype == nxLearn2 {
		b = a.appendResult(b)
	}
	for _, f := range a.Fields {
		b = f.appendWire(b)
	}
	return endAction(b, start)
}

func (a learn) appendResult(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, a.Limit)
	if a.Result == nil {
		return wire.Zeros(b, 4)
	}
	b = append(binary.BigEndian.AppendUint16(b, a.Result.Offset), 0, 0)
	return a.Result.AppendNXM(b)
}

func (f LearnField) appendWire(b []byte) []byte {
	n := f.to.Bits
	if f.dst == learnOutput {
		n = f.src.Bits
	}
	header := n | uint16(f.dst)
	if f.from {
		b = binary.BigEndian.AppendUint16(b, header)
		b = binary.BigEndian.AppendUint16(f.src.AppendNXM(b), f.src.Offset)
	} else {
		b = binary.BigEndian.AppendUint16(b, header|learnImmediate)
		b = f.value.And(wire.Ones(n)).Put(b, 2*((int(n)+15)/16))
	}
	if f.dst == learnOutput {
		return b
	}
	return binary.BigEndian.AppendUint16(f.to.AppendNXM(b), f.to.Offset)
}
