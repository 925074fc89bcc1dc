package openflow

import (
	"encoding/binary"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// Features are a switch's reported features.
type Features struct {
	DatapathID   uint64
	Tables       uint8
	Capabilities uint32
}

// DecodeFeatures reads the answer to a features request.
func DecodeFeatures(b []byte) (Features, error) {
	if len(b) < 24 {
		return Features{}, wire.Malformed("features")
	}
	return Features{binary.BigEndian.Uint64(b), b[12], binary.BigEndian.Uint32(b[16:])}, nil
}

// AsyncConfig requests reports that flow monitors lack: group changes by others as *GroupsChanged (forwarded requests; OpenFlow 1.5.1, 7.3.13
// and 7.4.6), new ports as *PortStatus, and packets that a flow's controller action sends as *PacketIn. It requests nothing else.
func AsyncConfig() Message {
	// Properties of ofp_async_config_prop_type. In each pair, the odd number is for connections that are not slaves.
	const packetIn, portStatus, flowRemoved, roleStatus, tableStatus, requestForward = 1, 3, 5, 7, 9, 11
	const groupMod = 1 << 0 // OFPRFR_GROUP_MOD
	var b []byte
	for _, kind := range []uint16{flowRemoved, roleStatus, tableStatus} {
		b = wire.AppendProperty(b, kind, []byte{0, 0, 0, 0})
	}
	b = wire.AppendProperty(b, packetIn, []byte{0, 0, 0, 1 << action.ReasonAction})
	b = wire.AppendProperty(b, portStatus, []byte{0, 0, 0, 1 << PortAdded})
	b = wire.AppendProperty(b, requestForward, []byte{0, 0, 0, groupMod})
	return Message{Kind: MsgSetAsync, Body: b}
}

// SwitchConfig sets how many bytes of a packet the switch sends to the controller.
func SwitchConfig(missSendLen uint16) Message {
	return Message{Kind: MsgSetConfig, Body: binary.BigEndian.AppendUint16([]byte{0, 0}, missSendLen)}
}

// PacketOut sends a packet through actions, as if the packet had come in by port.
func PacketOut(port uint32, actions action.Actions, packet []byte) Message {
	encoded := actions.AppendWire(nil)
	b := binary.BigEndian.AppendUint32(nil, noBuffer)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(encoded))), 0, 0) //nolint:gosec // the whole message is checked when it is sent
	b = oxm.NewMatch(oxm.InPort(port)).AppendWire(b)
	return Message{Kind: MsgPacketOut, Body: append(append(b, encoded...), packet...)}
}
