package openflow

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Features is what a switch says of itself.
type Features struct {
	DatapathID   uint64
	Tables       uint8
	Capabilities uint32
}

// Features asks the switch for its features.
func (c *Conn) Features(ctx context.Context) (Features, error) {
	k, err := c.exchange(ctx, "features request", message{kind: msgFeaturesRequest})
	if err != nil {
		return Features{}, err
	}
	b := k.reply.body
	if len(b) < 24 {
		return Features{}, malformed("features")
	}
	return Features{binary.BigEndian.Uint64(b), b[12], binary.BigEndian.Uint32(b[16:])}, nil
}

// Echo asks whether the switch is there.
func (c *Conn) Echo(ctx context.Context) error {
	_, err := c.exchange(ctx, "echo request", message{kind: msgEchoRequest, body: []byte("weft")})
	return err
}

// Barrier returns once the switch has done all that it was told before.
func (c *Conn) Barrier(ctx context.Context) error {
	_, err := c.exchange(ctx, "barrier", message{kind: msgBarrierRequest})
	return err
}

// Flows dumps the flows of all tables, those of the switch's own making included.
func (c *Conn) Flows(ctx context.Context) ([]*Flow, error) {
	k, err := c.exchange(ctx, "flow dump", flowsRequest(partFlowDesc, tableAll))
	if err != nil {
		return nil, err
	}
	var flows []*Flow
	for _, part := range k.parts {
		some, err := decodeFlows(part)
		if err != nil {
			return nil, err
		}
		flows = append(flows, some...)
	}
	return flows, nil
}

// Groups dumps the groups.
func (c *Conn) Groups(ctx context.Context) ([]*Group, error) {
	k, err := c.exchange(ctx, "group dump", groupsRequest())
	if err != nil {
		return nil, err
	}
	var groups []*Group
	for _, part := range k.parts {
		some, err := decodeGroups(part)
		if err != nil {
			return nil, err
		}
		groups = append(groups, some...)
	}
	return groups, nil
}

// Ports lists the bridge's ports.
func (c *Conn) Ports(ctx context.Context) ([]Port, error) {
	k, err := c.exchange(ctx, "port list", portsRequest())
	if err != nil {
		return nil, err
	}
	var ports []Port
	for _, part := range k.parts {
		some, err := decodePorts(part)
		if err != nil {
			return nil, err
		}
		ports = append(ports, some...)
	}
	return ports, nil
}

// Describe asks the switch who made it.
func (c *Conn) Describe(ctx context.Context) (SwitchDesc, error) {
	k, err := c.exchange(ctx, "description", multipart(partDesc, nil))
	if err != nil {
		return SwitchDesc{}, err
	}
	if len(k.parts) != 1 {
		return SwitchDesc{}, malformed("switch description")
	}
	return decodeSwitchDesc(k.parts[0])
}

// Totals are the counters of several flows together.
type Totals struct{ Flows, Packets, Bytes uint64 }

// Aggregate counts the flows of all tables and what they have seen.
func (c *Conn) Aggregate(ctx context.Context) (Totals, error) {
	k, err := c.exchange(ctx, "aggregate", flowsRequest(partAggregate, tableAll))
	if err != nil {
		return Totals{}, err
	}
	if len(k.parts) != 1 {
		return Totals{}, malformed("aggregate")
	}
	return decodeTotals(k.parts[0])
}

// decodeTotals reads a struct ofp_stats: reserved, length, fields of class OFPXSC_OPENFLOW_BASIC (0x8002).
func decodeTotals(b []byte) (Totals, error) {
	var t Totals
	if len(b) < 4 {
		return t, malformed("statistics header")
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < 4 || n > len(b) {
		return t, malformed("statistics")
	}
	for b = b[4:n]; len(b) >= 4; {
		length := int(b[3])
		if 4+length > len(b) {
			return t, malformed("statistic")
		}
		value := b[4 : 4+length]
		switch kind := b[2] >> 1; {
		case kind == 3 && length == 4:
			t.Flows = uint64(binary.BigEndian.Uint32(value))
		case kind == 4 && length == 8:
			t.Packets = binary.BigEndian.Uint64(value)
		case kind == 5 && length == 8:
			t.Bytes = binary.BigEndian.Uint64(value)
		}
		b = b[4+length:]
	}
	return t, nil
}

// Monitor asks for reports of flow changes that others make, which then come to OnAsync as []FlowUpdate.
func (c *Conn) Monitor(ctx context.Context, id uint32) error {
	_, err := c.exchange(ctx, "flow monitor", monitorRequest(id))
	return err
}

// MonitorRest asks for reports of what flow monitors do not tell of: of group changes that others make, which then come to
// OnAsync as *GroupsChanged (forwarded requests; OpenFlow 1.5.1, 7.3.13 and 7.4.6), and of ports that are added, as
// *PortStatus. Packets that a flow's controller action sends come as *PacketIn. Nothing else comes with them.
func (c *Conn) MonitorRest(ctx context.Context) error {
	// Properties of ofp_async_config_prop_type: of the pairs, the odd one is for connections that are no slave's.
	const packetIn, portStatus, flowRemoved, roleStatus, tableStatus, requestForward = 1, 3, 5, 7, 9, 11
	const groupMod = 1 << 0 // OFPRFR_GROUP_MOD
	var b []byte
	for _, kind := range []uint16{flowRemoved, roleStatus, tableStatus} {
		b = appendProperty(b, kind, []byte{0, 0, 0, 0})
	}
	b = appendProperty(b, packetIn, []byte{0, 0, 0, 1 << ReasonAction})
	b = appendProperty(b, portStatus, []byte{0, 0, 0, 1 << PortAdded})
	b = appendProperty(b, requestForward, []byte{0, 0, 0, groupMod})
	// A connection to a bridge's own socket is told of nothing before it has set a length for packets (Open vSwitch,
	// ofconn_receives_async_msg).
	config := binary.BigEndian.AppendUint16([]byte{0, 0}, 1)
	_, err := c.exchange(ctx, "monitor of groups and ports", message{kind: msgSetAsync, body: b}, message{kind: msgSetConfig, body: config}, message{kind: msgBarrierRequest})
	return err
}

// Nicira's messages.
const (
	nxtCTFlushZone = 29
	nxtPacketIn2   = 30
	nxtCTFlush     = 32
)

func niciraMessage(subtype uint32, body []byte) message {
	b := binary.BigEndian.AppendUint32(nil, vendorNicira)
	return message{kind: msgExperimenter, body: append(binary.BigEndian.AppendUint32(b, subtype), body...)}
}

// CTTuple is one direction of a connection. Invalid addresses and zero ports say nothing.
type CTTuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

// CTFlush says which connections to forget.
type CTFlush struct {
	// Zone limits it to a zone; nil: all zones.
	Zone *uint16
	// Proto limits it to an IP protocol; 0: all.
	Proto uint8
	// Orig and Reply limit it to what they say.
	Orig, Reply CTTuple
}

// FlushCT makes the switch forget connections, in the tracker that the bridge's datapath uses: in the userspace
// datapath that is not the kernel's. Needs Open vSwitch 3.1 unless only a zone is given.
func (c *Conn) FlushCT(ctx context.Context, what CTFlush) error {
	if what.Zone != nil && what == (CTFlush{Zone: what.Zone}) {
		body := binary.BigEndian.AppendUint16(make([]byte, 6), *what.Zone)
		_, err := c.exchange(ctx, fmt.Sprintf("flush of conntrack zone %d", *what.Zone), niciraMessage(nxtCTFlushZone, body), message{kind: msgBarrierRequest})
		return err
	}
	_, err := c.exchange(ctx, "flush of conntrack", niciraMessage(nxtCTFlush, what.body()), message{kind: msgBarrierRequest})
	return err
}

func (f CTFlush) body() []byte {
	const orig, reply, zone = 0, 1, 2
	b := []byte{f.Proto, 0, 0, 0, 0, 0, 0, 0}
	b = f.Orig.appendWire(b, orig)
	b = f.Reply.appendWire(b, reply)
	if f.Zone != nil {
		b = append(binary.BigEndian.AppendUint16(append(b, 0, zone, 0, 8), *f.Zone), 0, 0)
	}
	return b
}

// appendWire appends the tuple as a nested property, whose contents begin 8 bytes in; nothing for one that says nothing.
func (t CTTuple) appendWire(b []byte, kind byte) []byte {
	if t == (CTTuple{}) {
		return b
	}
	start := len(b)
	b = append(b, 0, kind, 0, 0, 0, 0, 0, 0)
	for i, a := range [...]netip.Addr{t.Src, t.Dst} {
		if a.IsValid() {
			mapped := a.As16()
			b = appendProperty(b, uint16(i), mapped[:]) //nolint:gosec // 0 or 1
		}
	}
	for i, p := range [...]uint16{t.SrcPort, t.DstPort} {
		if p != 0 {
			b = append(binary.BigEndian.AppendUint16(append(b, 0, byte(2+i), 0, 8), p), 0, 0)
		}
	}
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start)) //nolint:gosec // below 100
	return b
}

// PacketOut sends a packet through actions, as if it had come in by port.
func (c *Conn) PacketOut(ctx context.Context, port uint32, actions Actions, packet []byte) error {
	encoded := actions.appendWire(nil)
	b := binary.BigEndian.AppendUint32(nil, noBuffer)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(encoded))), 0, 0) //nolint:gosec // exchange checks the whole
	b = NewMatch(InPort(port)).appendWire(b)
	b = append(append(b, encoded...), packet...)
	_, err := c.exchange(ctx, "packet-out", message{kind: msgPacketOut, body: b}, message{kind: msgBarrierRequest})
	return err
}

// SetMissSendLen makes the switch send packet-ins and port changes to this connection, which a connection to a
// bridge's own socket does not get otherwise.
func (c *Conn) SetMissSendLen(ctx context.Context, n uint16) error {
	b := binary.BigEndian.AppendUint16([]byte{0, 0}, n)
	_, err := c.exchange(ctx, "configuration", message{kind: msgSetConfig, body: b}, message{kind: msgBarrierRequest})
	return err
}
