package action

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"weft.dev/weft/internal/openflow/wire"
)

// Instruction types (OpenFlow 1.5.1, 7.2.5).
const (
	instGotoTable     = 1
	instWriteMetadata = 2
	instWriteActions  = 3
	instApplyActions  = 4
	instClearActions  = 5
)

// instruction is an action that is encoded beside the list of applied actions, not in it. A flow's Actions may have instructions among
// the others, as ovs-ofctl's text does.
type instruction interface {
	Action
	// order is the position among the instructions of a flow, in which the switch executes and prints them.
	order() int
}

type gotoTable struct{ table uint8 }

// GotoTable goes on in a later table, after all other actions. A flow may have it once. Buckets and nested actions may not have it.
func GotoTable(table uint8) Action { return gotoTable{table} }

func (a gotoTable) order() int     { return 4 }
func (a gotoTable) String() string { return string(a.appendText(nil)) }

func (a gotoTable) appendText(b []byte) []byte {
	return strconv.AppendUint(append(b, "goto_table:"...), uint64(a.table), 10)
}

func (a gotoTable) appendWire(b []byte) []byte {
	start := len(b)
	return endAction(append(beginAction(b, instGotoTable), a.table, 0, 0, 0), start)
}

type writeMetadata struct{ value, mask uint64 }

// WriteMetadata writes the bits of the metadata that are set in mask.
func WriteMetadata(value, mask uint64) Action { return writeMetadata{value, mask} }

func (a writeMetadata) order() int     { return 3 }
func (a writeMetadata) String() string { return string(a.appendText(nil)) }

func (a writeMetadata) appendText(b []byte) []byte {
	b = wire.U64(a.value).AppendHex(append(b, "write_metadata:"...))
	if a.mask != ^uint64(0) {
		b = wire.U64(a.mask).AppendHex(append(b, '/'))
	}
	return b
}

func (a writeMetadata) appendWire(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint64(wire.Zeros(beginAction(b, instWriteMetadata), 4), a.value)
	return endAction(binary.BigEndian.AppendUint64(b, a.mask), start)
}

type writeActions struct{ actions Actions }

// WriteActions adds actions to the action set, which is executed when the packet goes to no further table.
func WriteActions(actions ...Action) Action { return writeActions{actions} }

func (a writeActions) order() int     { return 2 }
func (a writeActions) String() string { return string(a.appendText(nil)) }

func (a writeActions) appendText(b []byte) []byte {
	return append(a.actions.AppendText(append(b, "write_actions("...)), ')')
}

func (a writeActions) appendWire(b []byte) []byte {
	start := len(b)
	return endAction(a.actions.AppendWire(wire.Zeros(beginAction(b, instWriteActions), 4)), start)
}

type clearActions struct{}

// ClearActions empties the action set.
func ClearActions() Action { return clearActions{} }

func (a clearActions) order() int                 { return 1 }
func (a clearActions) String() string             { return "clear_actions" }
func (a clearActions) appendText(b []byte) []byte { return append(b, a.String()...) }

func (a clearActions) appendWire(b []byte) []byte {
	start := len(b)
	return endAction(wire.Zeros(beginAction(b, instClearActions), 4), start)
}

// opaqueInstruction is an instruction that this package cannot decode.
type opaqueInstruction struct{ opaque }

func (a opaqueInstruction) order() int { return 5 }

// AppendInstructions appends the actions as a flow's instructions.
func (a Actions) AppendInstructions(b []byte) []byte {
	applied := make(Actions, 0, len(a))
	var rest []instruction
	for _, action := range a {
		if inst, ok := action.(instruction); ok {
			rest = append(rest, inst)
		} else {
			applied = append(applied, action)
		}
	}
	if len(applied) > 0 {
		start := len(b)
		b = endAction(applied.AppendWire(wire.Zeros(beginAction(b, instApplyActions), 4)), start)
	}
	slices.SortStableFunc(rest, func(x, y instruction) int { return x.order() - y.order() })
	for _, inst := range rest {
		b = inst.appendWire(b)
	}
	return b
}

// DecodeInstructions reads instructions to the end of b.
func DecodeInstructions(b []byte) (Actions, error) {
	var actions, rest Actions
	for len(b) > 0 {
		raw, err := wire.SplitTLV(b, "instruction")
		if err != nil {
			return nil, err
		}
		b = b[len(raw):]
		if binary.BigEndian.Uint16(raw) == instApplyActions && len(raw) >= 8 {
			applied, err := Decode(raw[8:])
			if err != nil {
				return nil, fmt.Errorf("applied actions: %w", err)
			}
			actions = append(actions, applied...)
			continue
		}
		inst, err := decodeInstruction(raw)
		if err != nil {
			return nil, err
		}
		rest = append(rest, inst)
	}
	return append(actions, rest...), nil
}

func decodeInstruction(raw []byte) (Action, error) {
	switch kind := binary.BigEndian.Uint16(raw); {
	case kind == instGotoTable && len(raw) == 8:
		return gotoTable{raw[4]}, nil
	case kind == instWriteMetadata && len(raw) == 24:
		return writeMetadata{binary.BigEndian.Uint64(raw[8:]), binary.BigEndian.Uint64(raw[16:])}, nil
	case kind == instClearActions && len(raw) == 8:
		return clearActions{}, nil
	case kind == instWriteActions && len(raw) >= 8:
		written, err := Decode(raw[8:])
		if err != nil {
			return nil, fmt.Errorf("written actions: %w", err)
		}
		return writeActions{written}, nil
	default:
		return opaqueInstruction{opaque{string(raw)}}, nil
	}
}
