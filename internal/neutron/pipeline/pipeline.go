// Package pipeline compiles the flows of br-n, the bridge between the pods of Neutron networks and br-int. It opens no socket.
//
// A pod's port and the patch port to its port on br-int are a pair: what arrives on one leaves by the other, and Neutron's port security
// checks addresses there. Only packets from and to the host are different. The host reaches a pod at its address from HostAddress, in
// connections that the host opens; a pod reaches the host only by the answers in them. Packets from elsewhere to a host port have the
// source OutsideAddress, to which NetworkPolicies apply. Connections are tracked in a separate zone for each pod, because pods of different
// tenants have equal addresses.
package pipeline

import (
	"crypto/sha256"
	"encoding/binary"
	"net"
	"net/netip"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/reconcile"
)

// Bridge is the bridge's name.
const Bridge = "br-n"

// HostPort is the OpenFlow port of the host's interface.
const HostPort uint32 = 1

// Owner is the owner of what Static returns.
const Owner reconcile.Owner = "neutron"

// Tables of br-n. A packet that no flow matches is dropped.
const (
	// TableClassify finds the pod.
	TableClassify uint8 = 0
	// TableFromPod separates what a pod sends to the host from what it sends to its network.
	TableFromPod uint8 = 10
	// TableAnswer passes a pod's answers to the host.
	TableAnswer uint8 = 11
	// TableService translates new connections to Services. It and all later tables are for pods with tracked connections.
	TableService uint8 = 12
	// TableEgress applies NetworkPolicies to the connections that a pod opens.
	TableEgress uint8 = 13
	// TableHostService passes a pod's connections to Services that the host serves.
	TableHostService uint8 = 14
	// TableEndpoint addresses translated packets to their endpoint.
	TableEndpoint uint8 = 15
	// TableToPod drops packets from the network with the host's addresses.
	TableToPod uint8 = 20
	// TableState passes answers in a pod's connections.
	TableState uint8 = 22
	// TableIngress applies NetworkPolicies to the connections that others open to a pod.
	TableIngress uint8 = 23
	// TableOut commits new connections, and outputs.
	TableOut uint8 = 25
	// TableFromHost finds the pod that the host sends to.
	TableFromHost uint8 = 30
	// TableFromService passes what the host sends for a Service.
	TableFromService uint8 = 31
)

// TableNames returns the tables' names by their numbers.
func TableNames() map[uint8]string {
	return map[uint8]string{
		TableClassify: "classify", TableFromPod: "from-pod", TableAnswer: "answer", TableService: "service", TableEgress: "egress-policy",
		TableHostService: "host-service", TableEndpoint: "endpoint", TableToPod: "to-pod", TableState: "state", TableIngress: "ingress-policy",
		TableOut: "out", TableFromHost: "from-host", TableFromService: "from-service",
	}
}

// Registers.
const (
	// RegZone is reg0: the pod's conntrack zone.
	RegZone = 0
	// RegOut is reg1: the port on the other side.
	RegOut = 1
	// RegTarget is reg2: the address that an ARP request asks for.
	RegTarget = 2
	// RegNetwork is reg3, and RegNetwork+1: the number of the pod's network.
	RegNetwork = 3
)

// Priorities. Those of one table are independent of another's.
const (
	prioritySpecial = 200
	priorityHost    = 180
	priorityGuard   = 150
	// priorityNeighbours is above priorityTracked: neighbour discovery is not tracked.
	priorityNeighbours = 130
	priorityTracked    = 120
	priorityPod        = 100
	priorityClosed     = 50
	priorityRest       = 0
)

// HostAddress is the host's address on br-n. It is the same on every node: no packet with it leaves br-n.
func HostAddress() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 3}) }

// OutsideAddress is the source address of what the host passes from elsewhere to pods' host ports. No interface has it, and no packet with
// it leaves br-n.
func OutsideAddress() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 2}) }

// HostAddresses are HostAddress and OutsideAddress.
func HostAddresses() netip.Prefix {
	const bits = 31
	return netip.PrefixFrom(OutsideAddress(), bits)
}

// HostMAC is the MAC address of the host's interface.
func HostMAC() net.HardwareAddr { return net.HardwareAddr{0x0a, 0x58, 169, 254, 0, 3} }

// PodsMAC is the MAC address of every pod in the host's neighbour entries. No interface has it; flows replace it by the pod's own.
func PodsMAC() net.HardwareAddr { return net.HardwareAddr{0x0a, 0x58, 169, 254, 0, 4} }

// Pod is a pod's port.
type Pod struct {
	// Owner is the attachment, "attachment/<container>/<interface>".
	Owner reconcile.Owner
	// OFPort is the pod's OpenFlow port, and Patch that of the patch port.
	OFPort, Patch uint32
	// Zone is the pod's conntrack zone.
	Zone uint16
	// MAC and Addresses are the port's in Neutron.
	MAC       net.HardwareAddr
	Addresses []netip.Addr
	// Network is the number of the pod's network.
	Network uint64
	// Tracked reports that the pod's connections are tracked: its network has Services, or policies isolate it.
	Tracked bool
	// Published are the pod's ports to which host ports are translated; Mask is not used.
	Published []Port
	// Ingress and Egress are what policies allow; nil: the pod is not isolated in that direction.
	Ingress, Egress *Allowed
}

// Allowed is what policies allow an isolated pod in one direction. Without rules only answers pass.
type Allowed struct{ Rules []Allow }

// Allow permits connections with peers, to ports of the side that is connected to.
type Allow struct {
	// AnyPeer: every address. Otherwise those in Peers.
	AnyPeer bool
	Peers   []netip.Prefix
	// AnyPort: every protocol and port. Otherwise those of Ports.
	AnyPort bool
	Ports   []Port
}

// Port is a protocol (TCP 6, UDP 17, SCTP 132) with ports: those that are Number in the bits of Mask; Mask 0 is all ports.
type Port struct {
	Protocol     uint8
	Number, Mask uint16
}

// match returns the match of the destination port.
func (p Port) match() []oxm.MatchField {
	const tcp, udp, sctp = 6, 17, 132
	fields := match(oxm.IPProto(p.Protocol))
	if p.Mask == 0 {
		return fields
	}
	switch p.Protocol {
	case tcp:
		return append(fields, oxm.TCPDstMasked(p.Number, p.Mask))
	case udp:
		return append(fields, oxm.UDPDstMasked(p.Number, p.Mask))
	case sctp:
		return append(fields, oxm.SCTPDstMasked(p.Number, p.Mask))
	}
	return fields
}

// Cookie returns the cookie of an owner's flows: the first 8 bytes of the owner's SHA-256. It is the same on every node.
func Cookie(owner reconcile.Owner) uint64 {
	sum := sha256.Sum256([]byte(owner))
	return binary.BigEndian.Uint64(sum[:8])
}

type program struct{ openflow.Rules }

func newProgram(owner reconcile.Owner) *program {
	return &program{openflow.Rules{Cookie: Cookie(owner)}}
}

func match(fields ...oxm.MatchField) []oxm.MatchField { return fields }

func single(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

func set(register int, value uint32) action.Action {
	return action.SetField(oxm.Reg(register, value))
}

// ARP operations (RFC 826).
const (
	arpRequest = 1
	arpReply   = 2
)

// reply returns the actions that answer an ARP request: addr is at mac. An invalid addr means the address that the request asks for.
func reply(mac net.HardwareAddr, addr netip.Addr) []action.Action {
	whole := oxm.Whole
	actions := []action.Action{
		action.Move(whole(oxm.FieldARPTPA), whole(oxm.FieldReg(RegTarget))),
		action.Move(whole(oxm.FieldEthSrc), whole(oxm.FieldEthDst)), action.SetField(oxm.EthSrc(mac)),
		action.SetField(oxm.ARPOp(arpReply)),
		action.Move(whole(oxm.FieldARPSHA), whole(oxm.FieldARPTHA)), action.SetField(oxm.ARPSHA(mac)),
		action.Move(whole(oxm.FieldARPSPA), whole(oxm.FieldARPTPA)),
	}
	if addr.IsValid() {
		actions = append(actions, action.SetField(oxm.ARPSPA(single(addr))))
	} else {
		actions = append(actions, action.Move(whole(oxm.FieldReg(RegTarget)), whole(oxm.FieldARPSPA)))
	}
	return append(actions, action.InPortAction())
}

// Static returns the rules that do not depend on any pod.
func Static() []openflow.Rule {
	p := newProgram(Owner)
	host := HostAddresses()
	ip := oxm.EthType(oxm.EthTypeIPv4)
	p.Add(TableClassify, prioritySpecial, "VLAN tags: Neutron's port has none", match(oxm.VLANAny()))
	p.Add(TableClassify, priorityPod, "from the host", match(oxm.InPort(HostPort)), action.GotoTable(TableFromHost))

	p.Add(TableFromPod, prioritySpecial, "a pod asks for the host's MAC address",
		match(oxm.ARP(), oxm.ARPOp(arpRequest), oxm.ARPTPA(host)), reply(HostMAC(), netip.Addr{})...)
	for _, r := range []struct {
		purpose string
		on      []oxm.MatchField
	}{
		{"other ARP about the host stays here", match(oxm.ARP(), oxm.ARPTPA(host))},
		{"ARP in the host's name", match(oxm.ARP(), oxm.ARPSPA(host))},
		{"to the host, and no answer to it", match(oxm.EthDst(HostMAC()))},
		{"to the host's address by the network", match(ip, oxm.IPDst(host))},
		{"in the host's name", match(ip, oxm.IPSrc(host))},
	} {
		p.Add(TableFromPod, priorityGuard, r.purpose, r.on)
	}
	out := action.OutputReg(oxm.Whole(oxm.FieldReg(RegOut)))
	p.Add(TableFromPod, priorityRest, "to the pod's network", match(), out)

	p.Add(TableAnswer, priorityPod, "an answer to the host",
		match(ip, oxm.CTState(oxm.CTTrk|oxm.CTEst|oxm.CTRpl, oxm.CTInv)), action.Output(HostPort))
	p.Add(TableAnswer, priorityPod, "an ICMP error about a packet of the host",
		match(ip, oxm.CTState(oxm.CTTrk|oxm.CTRel|oxm.CTRpl, oxm.CTInv)), action.Output(HostPort))

	p.tracked(out)

	for _, r := range []struct {
		purpose string
		on      []oxm.MatchField
	}{
		{"ARP about the host from the network", match(oxm.ARP(), oxm.ARPSPA(host))},
		{"ARP for the host from the network", match(oxm.ARP(), oxm.ARPTPA(host))},
		{"from the network in the host's name", match(ip, oxm.IPSrc(host))},
		{"from the network with the host's MAC address", match(oxm.EthSrc(HostMAC()))},
	} {
		p.Add(TableToPod, priorityGuard, r.purpose, r.on)
	}
	p.Add(TableToPod, priorityRest, "to the pod", match(), out)

	p.Add(TableFromHost, prioritySpecial, "the host asks for a pod's MAC address",
		match(oxm.ARP(), oxm.ARPOp(arpRequest), oxm.ARPSPA(host)), reply(PodsMAC(), netip.Addr{})...)
	p.Add(TableFromService, priorityPod, "the host's answer to a pod", match(ip, oxm.CTState(oxm.CTTrk|oxm.CTEst|oxm.CTRpl, oxm.CTInv)), out)
	p.Add(TableFromService, priorityPod, "an ICMP error about a pod's packet", match(ip, oxm.CTState(oxm.CTTrk|oxm.CTRel|oxm.CTRpl, oxm.CTInv)), out)
	return p.List
}

// tracked adds the rules for tracked connections. Each packet in the direction in which a connection was opened is judged, so that a
// changed policy applies to established connections; answers pass.
func (p *program) tracked(out action.Action) {
	for _, ip := range families() {
		p.trackedFamily(ip, out)
	}
	for _, table := range []uint8{TableFromPod, TableToPod} {
		for _, kind := range []uint8{oxm.NDSolicit, oxm.NDAdvert} {
			p.Add(table, priorityNeighbours, "IPv6 neighbour discovery is not tracked, and no policy applies to it", match(oxm.ICMPv6Type(kind)), out)
		}
	}
}

// families are the matches of IPv4 and IPv6.
func families() []oxm.MatchField {
	return []oxm.MatchField{oxm.EthType(oxm.EthTypeIPv4), oxm.EthType(oxm.EthTypeIPv6)}
}

// trackedFamily adds the rules for tracked connections of IPv4 or IPv6. Only those of IPv4 are translated: Services have no IPv6 addresses here.
func (p *program) trackedFamily(ip oxm.MatchField, out action.Action) {
	zone := zoneField()
	fresh := match(ip, oxm.CTState(oxm.CTTrk|oxm.CTNew, oxm.CTDNAT))
	commit := action.CT(action.CTAction{Commit: true, ZoneField: &zone})
	for _, t := range []struct{ states, judges, passes uint8 }{{TableService, TableEgress, TableEndpoint}, {TableState, TableIngress, TableOut}} {
		p.Add(t.states, prioritySpecial+1, "an answer in a connection that a policy refused", match(ip, oxm.CTState(oxm.CTTrk|oxm.CTRpl, 0), refused()))
		p.Add(t.states, prioritySpecial, "an answer", match(ip, oxm.CTState(oxm.CTTrk|oxm.CTEst|oxm.CTRpl, oxm.CTInv)), action.GotoTable(t.passes))
		p.Add(t.states, prioritySpecial, "an ICMP error about a connection", match(ip, oxm.CTState(oxm.CTTrk|oxm.CTRel, oxm.CTInv)), action.GotoTable(t.passes))
		p.Add(t.states, prioritySpecial, "of no connection that can be", match(ip, oxm.CTState(oxm.CTTrk|oxm.CTInv, 0)))
		p.Add(t.states, priorityRest, "in the direction in which the connection is opened", match(ip), action.GotoTable(t.judges))
		p.Add(t.judges, priorityRest, "the pod is not isolated", match(ip), action.GotoTable(t.passes))
	}
	p.Add(TableEndpoint, priorityRest, "not translated", match(ip), action.GotoTable(TableOut))
	p.Add(TableOut, priorityPod, "the connection is new", fresh, commit, out)
	p.Add(TableOut, priorityRest, "the connection is known", match(ip), out)
}

// refusedBit is the bit of a connection's mark that says that a policy refused it. A Service's translation commits a connection before any
// verdict: unless it is marked, packets of the endpoint count as its answers.
const refusedBit = 1

// refused matches packets of connections that a policy refused.
func refused() oxm.MatchField { return oxm.CTMarkMasked(refusedBit, refusedBit) }

// markRefused sets or clears the mark of the packet's connection.
func markRefused(value uint32) action.Action {
	zone := zoneField()
	return action.CT(action.CTAction{Commit: true, ZoneField: &zone, Exec: action.Actions{action.SetField(oxm.CTMarkMasked(value, refusedBit))}})
}

// zoneField is the pod's zone as the field of a ct action.
func zoneField() oxm.Subfield {
	const bits = 15
	return oxm.RegBits(RegZone, 0, bits)
}

// words splits the number of a network for its two registers.
func words(network uint64) (high, low uint32) {
	const half = 32
	return uint32(network >> half), uint32(network & (1<<half - 1)) //nolint:gosec // the halves
}
