package openflow

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Features are a switch's reported features.
type Features struct {
	DatapathID   uint64
	Tables       uint8
	Capabilities uint32
}

// Features requests the switch's features.
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

// Echo checks that the switch answers.
func (c *Conn) Echo(ctx context.Context) error {
	_, err := c.exchange(ctx, "echo request", message{kind: msgEchoRequest, body: []byte("weft")})
	return err
}

// Barrier returns once the switch has processed all earlier messages of the connection.
func (c *Conn) Barrier(ctx context.Context) error {
	_, err := c.exchange(ctx, "barrier", message{kind: msgBarrierRequest})
	return err
}

// Flows dumps the flows of all tables, including those that the switch itself added.
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

// Describe requests the switch's description of itself.
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

// Aggregate sums up the flows of all tables and their counters.
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

// Monitor requests reports of flow changes by others. OnAsync gets them as []FlowUpdate.
func (c *Conn) Monitor(ctx context.Context, id uint32) error {
	_, err := c.exchange(ctx, "flow monitor", monitorRequest(id))
	return err
}

// MonitorRest requests reports that flow monitors lack. OnAsync gets group changes by others as *GroupsChanged (forwarded requests;
// OpenFlow 1.5.1, 7.3.13 and 7.4.6), new ports as *PortStatus, and packets that a flow's controller action sends as *PacketIn. It
// requests nothing else.
func (c *Conn) MonitorRest(ctx context.Context) error {
	// Properties of ofp_async_config_prop_type. In each pair, the odd number is for connections that are not slaves.
	const packetIn, portStatus, flowRemoved, roleStatus, tableStatus, requestForward = 1, 3, 5, 7, 9, 11
	const groupMod = 1 << 0 // OFPRFR_GROUP_MOD
	var b []byte
	for _, kind := range []uint16{flowRemoved, roleStatus, tableStatus} {
		b = appendProperty(b, kind, []byte{0, 0, 0, 0})
	}
	b = appendProperty(b, packetIn, []byte{0, 0, 0, 1 << ReasonAction})
	b = appendProperty(b, portStatus, []byte{0, 0, 0, 1 << PortAdded})
	b = appendProperty(b, requestForward, []byte{0, 0, 0, groupMod})
	// A connection to a bridge's own socket gets no such reports before it has set a miss_send_len (Open vSwitch, ofconn_receives_async_msg).
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

// CTTuple is one direction of a connection. Invalid addresses and zero ports match everything.
type CTTuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

// CTFlush selects the connections to flush.
type CTFlush struct {
	// Zone limits it to a zone; nil: all zones.
	Zone *uint16
	// Proto limits it to an IP protocol; 0: all.
	Proto uint8
	// Orig and Reply limit it to connections with these tuples.
	Orig, Reply CTTuple
}

// FlushCT removes connections from the connection tracker of the bridge's datapath. The userspace datapath has its own tracker, not the
// kernel's. FlushCT needs Open vSwitch 3.1 unless only a zone is given.
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

// appendWire appends the tuple as a nested property, whose contents begin at byte 8. It appends nothing for a tuple that matches
// everything.
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

// PacketOut sends a packet through actions, as if the packet had come in by port.
func (c *Conn) PacketOut(ctx context.Context, port uint32, actions Actions, packet []byte) error {
	encoded := actions.appendWire(nil)
	b := binary.BigEndian.AppendUint32(nil, noBuffer)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(encoded))), 0, 0) //nolint:gosec // exchange checks the whole
	b = NewMatch(InPort(port)).appendWire(b)
	b = append(append(b, encoded...), packet...)
	_, err := c.exchange(ctx, "packet-out", message{kind: msgPacketOut, body: b}, message{kind: msgBarrierRequest})
	return err
}

// SetMissSendLen makes the switch send packet-ins and port changes to this connection. A connection to a bridge's own socket does not get
// them otherwise.
func (c *Conn) SetMissSendLen(ctx context.Context, n uint16) error {
	b := binary.BigEndian.AppendUint16([]byte{0, 0}, n)
	_, err := c.exchange(ctx, "configuration", message{kind: msgSetConfig, body: b}, message{kind: msgBarrierRequest})
	return err
}
