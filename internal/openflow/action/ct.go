package action

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// CTAction sends the packet through the connection tracker.
type CTAction struct {
	// Commit keeps the connection beyond this packet. Force replaces a connection that began in the other direction.
	Commit, Force bool
	// Zone is the connection tracking zone.
	Zone uint16
	// ZoneField, if not nil, is the field that has the zone; Zone is then not used.
	ZoneField *oxm.Subfield
	// Table is the table where the tracked packet goes on; nil: none. The actions after this one are executed in both cases.
	Table *uint8
	// NAT translates addresses; nil: no translation. An empty NAT applies the translation that was committed for the connection.
	NAT *NAT
	// Exec writes ct_mark and ct_label of a committed connection.
	Exec Actions
	// ALG is the well-known port of an application layer gateway (21: FTP, 69: TFTP); 0: none.
	ALG uint16
}

// NATKind is which address of a connection is translated.
type NATKind uint16

// The kinds of translation: as committed, source, destination.
const (
	NATExisting NATKind = 0
	NATSource   NATKind = 1
	NATDest     NATKind = 2
)

// NAT says how a connection's addresses are translated. The switch refuses source and destination in one ct action.
type NAT struct {
	Kind NATKind
	// Min and Max are the range of addresses. For one address, Max may be invalid. For a translation of ports only, both are invalid.
	Min, Max netip.Addr
	// PortMin and PortMax are the range of ports; 0: any. They need Min.
	PortMin, PortMax uint16
	// Persistent always maps a client to the same address. Hash and Random choose how a port is picked.
	Persistent, Hash, Random bool
}

// SNAT translates the source to one address.
func SNAT(a netip.Addr) *NAT { return &NAT{Kind: NATSource, Min: a} }

// DNAT translates the destination to an address and, unless 0, a port.
func DNAT(a netip.Addr, port uint16) *NAT { return &NAT{Kind: NATDest, Min: a, PortMin: port} }

// CT sends the packet through the connection tracker.
func CT(a CTAction) Action { return ct{a} }

type ct struct{ CTAction }

const (
	ctFlagCommit   = 1
	ctFlagForce    = 2
	natPersistent  = 1 << 2
	natHash        = 1 << 3
	natRandom      = 1 << 4
	natKnown       = natPersistent | natHash | natRandom | 3
	natRange4Min   = 1 << 0
	natRange4Max   = 1 << 1
	natRange6Min   = 1 << 2
	natRange6Max   = 1 << 3
	natRangePort   = 1 << 4
	natRangePortTo = 1 << 5
)

func (a ct) String() string { return string(a.appendText(nil)) }

func (a ct) appendText(b []byte) []byte {
	b = append(b, "ct("...)
	start := len(b)
	if a.Commit {
		b = append(b, "commit,"...)
	}
	if a.Force {
		b = append(b, "force,"...)
	}
	if a.Table != nil {
		b = append(strconv.AppendUint(append(b, "table="...), uint64(*a.Table), 10), ',')
	}
	switch {
	case a.ZoneField != nil:
		b = append(a.ZoneField.AppendText(append(b, "zone="...)), ',')
	case a.Zone != 0:
		b = append(strconv.AppendUint(append(b, "zone="...), uint64(a.Zone), 10), ',')
	}
	if a.NAT != nil {
		b = append(a.NAT.appendText(b), ',')
	}
	if len(a.Exec) > 0 {
		b = append(a.Exec.AppendText(append(b, "exec("...)), "),"...)
	}
	if a.ALG != 0 {
		b = append(append(append(b, "alg="...), algName(a.ALG)...), ',')
	}
	if len(b) > start {
		b = b[:len(b)-1]
	}
	return append(b, ')')
}

func algName(port uint16) string {
	switch port {
	case 21:
		return "ftp"
	case 69:
		return "tftp"
	default:
		return strconv.Itoa(int(port))
	}
}

func (a ct) appendWire(b []byte) []byte {
	start := len(b)
	flags := uint16(0)
	if a.Commit {
		flags |= ctFlagCommit
	}
	if a.Force {
		flags |= ctFlagForce
	}
	b = binary.BigEndian.AppendUint16(beginNicira(b, nxCT), flags)
	if a.ZoneField != nil {
		b = binary.BigEndian.AppendUint16(a.ZoneField.AppendNXM(b), a.ZoneField.OffsetBits())
	} else {
		b = binary.BigEndian.AppendUint16(wire.Zeros(b, 4), a.Zone)
	}
	table := uint8(tableCurrent)
	if a.Table != nil {
		table = *a.Table
	}
	b = binary.BigEndian.AppendUint16(append(b, table, 0, 0, 0), a.ALG)
	if a.NAT != nil {
		b = a.NAT.appendWire(b)
	}
	return endAction(a.Exec.AppendWire(b), start)
}

func (n *NAT) appendText(b []byte) []byte {
	b = append(b, "nat"...)
	switch n.Kind {
	case NATSource:
		b = append(b, "(src"...)
	case NATDest:
		b = append(b, "(dst"...)
	default:
		return b
	}
	if n.Min.IsValid() {
		b = n.appendRange(append(b, '='))
		for _, option := range [...]struct {
			on   bool
			name string
		}{{n.Persistent, ",persistent"}, {n.Hash, ",hash"}, {n.Random, ",random"}} {
			if option.on {
				b = append(b, option.name...)
			}
		}
	}
	return append(b, ')')
}

func (n *NAT) appendRange(b []byte) []byte {
	addr := func(a netip.Addr) {
		if a.Is6() && n.PortMin != 0 {
			b = append(wire.AppendIP(append(b, '['), a), ']')
			return
		}
		b = wire.AppendIP(b, a)
	}
	addr(n.Min)
	if n.Max.IsValid() && n.Max != n.Min {
		b = append(b, '-')
		addr(n.Max)
	}
	if n.PortMin != 0 {
		b = strconv.AppendUint(append(b, ':'), uint64(n.PortMin), 10)
		if n.PortMax != 0 && n.PortMax != n.PortMin {
			b = strconv.AppendUint(append(b, '-'), uint64(n.PortMax), 10)
		}
	}
	return b
}

func (n *NAT) flags() uint16 {
	flags := uint16(n.Kind)
	if n.Persistent {
		flags |= natPersistent
	}
	if n.Hash {
		flags |= natHash
	}
	if n.Random {
		flags |= natRandom
	}
	return flags
}

func (n *NAT) appendWire(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(wire.Zeros(beginNicira(b, nxNAT), 2), n.flags())
	b = wire.Zeros(b, 2)
	present := uint16(0)
	put := func(have bool, bit uint16, value []byte) {
		if have {
			present |= bit
			b = append(b, value...)
		}
	}
	minBit, maxBit := uint16(natRange4Min), uint16(natRange4Max)
	if n.Min.Is6() {
		minBit, maxBit = natRange6Min, natRange6Max
	}
	put(n.Min.IsValid(), minBit, n.Min.AsSlice())
	put(n.Min.IsValid() && n.Max.IsValid(), maxBit, n.Max.AsSlice())
	put(n.Min.IsValid() && n.PortMin != 0, natRangePort, binary.BigEndian.AppendUint16(nil, n.PortMin))
	put(n.Min.IsValid() && n.PortMax != 0, natRangePortTo, binary.BigEndian.AppendUint16(nil, n.PortMax))
	binary.BigEndian.PutUint16(b[start+14:], present)
	return endAction(b, start)
}
