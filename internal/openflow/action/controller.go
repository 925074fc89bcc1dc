package action

import (
	"encoding/binary"
	"strconv"

	"weft.dev/weft/internal/openflow/wire"
)

// ControllerAction sends the packet as a packet-in.
type ControllerAction struct {
	// MaxLen is how many bytes of the packet to send; 0: all of it.
	MaxLen uint16
	// ID is the controller ID of the connection that gets the packet-in; 0: all connections that have not set an ID.
	ID uint16
	// Reason is the packet-in's reason. The zero value is OpenFlow's "no match"; ReasonAction is the usual one.
	Reason uint8
	// UserData is returned in the packet-in.
	UserData []byte
	// Pause keeps the packet in the pipeline until a controller resumes it.
	Pause bool
}

// ReasonAction is the reason of a packet-in that a flow's action caused (OFPR_ACTION).
const ReasonAction = 1

// Properties of the controller action (ovs-actions(7)).
const (
	controllerMaxLen   = 0
	controllerID       = 1
	controllerReason   = 2
	controllerUserData = 3
	controllerPause    = 4
)

// Controller sends the packet to controllers.
func Controller(a ControllerAction) Action {
	if a.MaxLen == 0 {
		a.MaxLen = 0xffff
	}
	return controller{a}
}

type controller struct{ ControllerAction }

func (a controller) String() string { return string(a.appendText(nil)) }

func (a controller) appendText(b []byte) []byte {
	if a.Reason == ReasonAction && a.ID == 0 && len(a.UserData) == 0 && !a.Pause {
		return strconv.AppendUint(append(b, "CONTROLLER:"...), uint64(a.MaxLen), 10)
	}
	b = append(b, "controller("...)
	start := len(b)
	if a.Reason != ReasonAction {
		b = append(append(append(b, "reason="...), reasonName(a.Reason)...), ',')
	}
	if a.MaxLen != 0xffff {
		b = append(strconv.AppendUint(append(b, "max_len="...), uint64(a.MaxLen), 10), ',')
	}
	if a.ID != 0 {
		b = append(strconv.AppendUint(append(b, "id="...), uint64(a.ID), 10), ',')
	}
	if len(a.UserData) > 0 {
		b = append(wire.AppendBytesHex(append(b, "userdata="...), a.UserData), ',')
	}
	if a.Pause {
		b = append(b, "pause,"...)
	}
	if len(b) > start {
		b = b[:len(b)-1]
	}
	return append(b, ')')
}

func reasonName(r uint8) string {
	names := [...]string{"no_match", "action", "invalid_ttl", "action_set", "group", "packet_out"}
	if int(r) < len(names) {
		return names[r]
	}
	return strconv.Itoa(int(r))
}

func (a controller) appendWire(b []byte) []byte {
	start := len(b)
	b = wire.Zeros(beginNicira(b, nxController2), 6)
	if a.MaxLen != 0xffff {
		b = append(binary.BigEndian.AppendUint16(append(b, 0, controllerMaxLen, 0, 8), a.MaxLen), 0, 0)
	}
	if a.ID != 0 {
		b = append(binary.BigEndian.AppendUint16(append(b, 0, controllerID, 0, 8), a.ID), 0, 0)
	}
	if a.Reason != ReasonAction {
		b = append(b, 0, controllerReason, 0, 5, a.Reason, 0, 0, 0)
	}
	if len(a.UserData) > 0 {
		b = wire.AppendProperty(b, controllerUserData, a.UserData)
	}
	if a.Pause {
		b = append(b, 0, controllerPause, 0, 4, 0, 0, 0, 0)
	}
	return endAction(b, start)
}

// clone executes actions on a copy of the packet.
type clone struct{ actions Actions }

// Clone executes actions on a copy of the packet: their changes affect the copy only.
func Clone(actions ...Action) Action { return clone{actions} }

func (a clone) String() string { return string(a.appendText(nil)) }

func (a clone) appendText(b []byte) []byte {
	return append(a.actions.AppendText(append(b, "clone("...)), ')')
}

func (a clone) appendWire(b []byte) []byte {
	start := len(b)
	return endAction(a.actions.AppendWire(wire.Zeros(beginNicira(b, nxClone), 6)), start)
}
