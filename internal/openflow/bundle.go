package openflow

import (
	"encoding/binary"
	"fmt"
)

// Bundle control types and flags (OpenFlow 1.5.1, 7.3.9).
const (
	BundleOpen    = 0
	BundleCommit  = 4
	BundleDiscard = 6
	// bundleFlags: atomic, so that no packet sees half of the bundle; ordered, so that a group exists before a flow uses it.
	bundleFlags = 1 | 2
)

// Mod is one change of a bundle: it adds, replaces or deletes a flow or a group.
type Mod struct {
	Entry  Entry
	Delete bool
}

// Message returns the flow-mod or group-mod.
func (m Mod) Message() (Message, error) {
	switch e := m.Entry.(type) {
	case *Flow:
		if m.Delete {
			return flowMod(flowDeleteStrict, e), nil
		}
		return flowMod(flowAdd, e), nil
	case *Group:
		if m.Delete {
			return groupMod(groupDelete, e), nil
		}
		return groupMod(groupAddOrModify, e), nil
	default:
		return Message{}, fmt.Errorf("not a switch entry: %T", m.Entry)
	}
}

// Validate reports what the switch would refuse.
func (m Mod) Validate() error {
	if m.Delete {
		return nil
	}
	switch e := m.Entry.(type) {
	case *Flow:
		return e.Validate()
	case *Group:
		return e.Validate()
	default:
		return fmt.Errorf("not a switch entry: %T", m.Entry)
	}
}

// BundleControl returns a message that opens, commits or discards a bundle.
func BundleControl(id uint32, kind uint16) Message {
	b := binary.BigEndian.AppendUint32(nil, id)
	b = binary.BigEndian.AppendUint16(b, kind)
	return Message{Kind: MsgBundleControl, Body: binary.BigEndian.AppendUint16(b, bundleFlags)}
}

// AppendBundleAdd appends m, wrapped as a part of bundle id. The wrapper and m have the same XID.
func AppendBundleAdd(b []byte, id uint32, m Message) []byte {
	start := len(b)
	b = append(b, version15, MsgBundleAdd, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.XID)
	b = append(binary.BigEndian.AppendUint32(b, id), 0, 0, 0, bundleFlags)
	b = m.AppendWire(b)
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start)) //nolint:gosec // the caller has checked that it fits
	return b
}

// BundleOverhead is what a bundle adds to a message: a header, and the bundle's number and flags.
const BundleOverhead = HeaderLen + 8

// DecodeMod reads a flow-mod or a group-mod.
func DecodeMod(m Message) (Mod, error) {
	if m.Kind == MsgGroupMod {
		command, g, err := decodeGroupMod(m.Body)
		return Mod{g, command == groupDelete}, err
	}
	command, f, err := decodeFlowMod(m.Body)
	return Mod{f, command == flowDelete || command == flowDeleteStrict}, err
}
