package openflow

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"weft.dev/weft/internal/openflow/wire"
)

// Nicira's messages.
const (
	nxtCTFlushZone = 29
	nxtPacketIn2   = 30
	nxtCTFlush     = 32
)

func niciraMessage(subtype uint32, body []byte) Message {
	b := binary.BigEndian.AppendUint32(nil, wire.VendorNicira)
	return Message{Kind: MsgExperimenter, Body: append(binary.BigEndian.AppendUint32(b, subtype), body...)}
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

// Message returns the request to remove the connections. It needs Open vSwitch 3.1 unless only a zone is given.
func (f CTFlush) Message() Message {
	if f.onlyZone() {
		return niciraMessage(nxtCTFlushZone, binary.BigEndian.AppendUint16(make([]byte, 6), *f.Zone))
	}
	return niciraMessage(nxtCTFlush, f.body())
}

func (f CTFlush) onlyZone() bool { return f.Zone != nil && f == (CTFlush{Zone: f.Zone}) }

// String describes the request in errors.
func (f CTFlush) String() string {
	if f.onlyZone() {
		return fmt.Sprintf("flush of conntrack zone %d", *f.Zone)
	}
	return "flush of conntrack"
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
			b = wire.AppendProperty(b, uint16(i), mapped[:]) //nolint:gosec // 0 or 1
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
