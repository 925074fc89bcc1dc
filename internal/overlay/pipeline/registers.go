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
	// RegService is reg3: the group of the Service for which an endpoint is looked for.
	RegService = 3
	// RegEndpoint is reg4: the address of the endpoint that was found, 0 for none.
	RegEndpoint = 4
	// RegEndpointPort is reg5: its port.
	RegEndpointPort = 5
	// RegFlags is reg6: bits, named Flag….
	RegFlags = 6
	// RegFirewall is reg7: the number of the egress firewall of the sender's namespace, 0 for none.
	RegFirewall = 7
	// RegPart is reg8: which part of a list of receivers is next, where one flow does not hold them all.
	RegPart = 8
)

// Bits of RegFlags.
const (
	// FlagNode says that the destination is a node's address.
	FlagNode uint32 = 1 << 0
	// FlagThisNode says that it is an address of this node.
	FlagThisNode uint32 = 1 << 1
	// FlagHairpin says that the packet answers a pod that reached itself by a Service, and goes back to that pod.
	FlagHairpin uint32 = 1 << 2
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
		{"reg3", "the Service's group, while an endpoint is looked for"},
		{"reg4", "the endpoint's address"},
		{"reg5", "the endpoint's port"},
		{"reg6", "bit 0: to a node's address; bit 1: to this node's; bit 2: answer of a pod to itself; bit 3: answer from outside by another node; bits 8 to 14: isolation and verdict of policies"},
		{"reg7", "the egress firewall of the sender's namespace; 0: none"},
		{"reg8", "which part of a list of receivers of multicast is next"},
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
