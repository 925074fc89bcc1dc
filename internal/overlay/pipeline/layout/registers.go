package layout

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
	// FlagAnswer says that the packet came from outside the cluster by the tunnel: it must be a reply of a connection.
	FlagAnswer uint32 = 1 << 3
	// FlagEgress says that the sender is isolated for egress.
	FlagEgress uint32 = 1 << 10
	// FlagIngress says that the receiver is isolated for ingress.
	FlagIngress uint32 = 1 << 11
	// FlagAllowed says that a rule allows the packet, not only that nothing isolates.
	FlagAllowed uint32 = 1 << 12
	// FlagKeepEgress says that established connections of the sender continue although it is isolated for egress.
	FlagKeepEgress uint32 = 1 << 13
	// FlagKeepIngress says the same of the receiver, isolated for ingress.
	FlagKeepIngress uint32 = 1 << 14
	// FlagTranslated says that the packet begins a connection to a Service. After the commit in TableLocal its state is not known any more.
	FlagTranslated uint32 = 1 << 15
)

// MarkEnded is the bit of a connection's mark (ct_mark) that says that policy has refused it after its beginning. Its replies are dropped
// as well. The bit is cleared when the connection is allowed again.
const MarkEnded uint32 = 1 << 0

// MarkUnseen is the bit of a connection's mark that says that its direction is unknown: it is older than the mode or than the switch. Its
// packets pass where nothing isolates or a rule allows them; that they are replies means nothing.
const MarkUnseen uint32 = 1 << 1

// MarkHost is the bit of a connection's mark that says that the host serves it: its first datagram was fragmented, and showed no ports.
const MarkHost uint32 = 1 << 2

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
