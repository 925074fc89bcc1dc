package pipeline

import "weft.dev/weft/internal/openflow"

// Registers. All others are free; a feature that takes one adds it here.
const (
	// RegSource is reg0: the VNID of the sender. 0 is the host, the namespace default, and everybody in a flat network.
	RegSource = 0
	// RegDestination is reg1: the VNID of the receiver, where that is a local pod.
	RegDestination = 1
	// RegPort is reg2: the OpenFlow port of the receiver, where that is a local pod.
	RegPort = 2
)

// Ports of br0 that every node has. Pods' are from FirstPodPort.
const (
	// PortVXLAN is vxlan0, the tunnel.
	PortVXLAN uint32 = 1
	// PortTun is tun0, the host's interface.
	PortTun uint32 = 2
	// FirstPodPort is the first that a pod may have.
	FirstPodPort uint32 = 3
)

// Register is a register's use.
type Register struct {
	Name, Purpose string
}

// Registers returns the registers in use, in order.
func Registers() []Register {
	return []Register{
		{"reg0", "source VNID; the VNI on the wire"},
		{"reg1", "destination VNID"},
		{"reg2", "destination port"},
	}
}

func source(vnid uint32) openflow.Action {
	return openflow.SetField(openflow.Reg(RegSource, vnid))
}

// sourceToTunnel makes the VNI of the source VNID.
func sourceToTunnel() openflow.Action {
	const last = 31
	return openflow.Move(openflow.RegBits(RegSource, 0, last), openflow.Bits(openflow.FieldTunID, 0, last))
}
