package pipeline

import (
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
)

// Registers. All others are free. A feature that uses a further register adds it here.
const (
	// RegSource is reg0: the VNID of the sender. 0 is the host, the namespace default, and every pod in a flat network.
	RegSource = 0
	// RegDestination is reg1: the VNID of the receiver, if that is a local pod.
	RegDestination = 1
	// RegPort is reg2: the ofport of the receiver, if that is a local pod.
	RegPort = 2
	// RegService is reg3: the group of the Service while an endpoint is chosen.
	RegService = 3
	// RegEndpoint is reg4: the address of the chosen endpoint, 0 for none.
	RegEndpoint = 4
	// RegEndpointPort is reg5: the endpoint's port.
	RegEndpointPort = 5
	// RegFlags is reg6: bits, named Flag….
	RegFlags = 6
	// RegFirewall is reg7: the number of the egress firewall of the sender's namespace, 0 for none.
	RegFirewall = 7
	// RegPart is reg8: the next part of a list of receivers that does not fit one flow.
	RegPart = 8
)

// Bits of RegFlags.
const (
	// FlagNode says that the destination is a node's address.
	FlagNode uint32 = 1 << 0
	// FlagThisNode says that it is an address of this node.
	FlagThisNode uint32 = 1 << 1
	// FlagHairpin says that the packet is the reply of a pod that reached itself by a Service, and returns to that pod.
	FlagHairpin uint32 = 1 << 2
)

// Ports of br0 on every node. Pods' ports are from FirstPodPort.
const (
	// PortVXLAN is vxlan0, the tunnel.
	PortVXLAN uint32 = 1
	// PortTun is tun0, the host's interface.
	PortTun uint32 = 2
	// FirstPodPort is the lowest ofport of pods.
	FirstPodPort uint32 = 3
)

// Register describes the use of a register.
type Register struct {
	Name, Purpose string
}

// Registers returns the registers in use, in order.
func Registers() []Register {
	return []Register{
		{"reg0", "source VNID; the VNI on the wire"},
		{"reg1", "destination VNID"},
		{"reg2", "destination port"},
		{"reg3", "the Service's group, while an endpoint is looked for"},
		{"reg4", "the endpoint's address"},
		{"reg5", "the endpoint's port"},
		{"reg6", "bit 0: to a node's address; bit 1: to this node's; bit 2: answer of a pod to itself; bit 3: answer from outside by another node; bits 10 to 15: isolation and verdict of policies"},
		{"reg7", "the egress firewall of the sender's namespace; 0: none"},
		{"reg8", "which part of a list of receivers of multicast is next"},
	}
}

func source(vnid uint32) action.Action {
	return action.SetField(oxm.Reg(RegSource, vnid))
}

// sourceToTunnel copies the source VNID to the VNI.
func sourceToTunnel() action.Action {
	const last = 31
	return action.Move(oxm.RegBits(RegSource, 0, last), oxm.Bits(oxm.FieldTunID, 0, last))
}
