package wire

import (
	"strconv"
)

// Reserved ports (OpenFlow 1.5.1, 7.2.1).
const (
	PortMax        uint32 = 0xffffff00
	PortUnset      uint32 = 0xfffffff7
	PortInPort     uint32 = 0xfffffff8
	PortTable      uint32 = 0xfffffff9
	PortNormal     uint32 = 0xfffffffa
	PortFlood      uint32 = 0xfffffffb
	PortAll        uint32 = 0xfffffffc
	PortController uint32 = 0xfffffffd
	PortLocal      uint32 = 0xfffffffe
	// PortAny matches any port; for a bucket it means that the bucket watches no port.
	PortAny uint32 = 0xffffffff
)

// WidenPort converts a 16-bit port of OpenFlow 1.0, which Nicira's actions use, to 32 bits. The reserved ports have other numbers there.
func WidenPort(p uint16) uint32 {
	if p >= 0xff00 {
		return 0xffff0000 | uint32(p)
	}
	return uint32(p)
}

// NarrowPort converts a port to 16 bits.
func NarrowPort(p uint32) uint16 { return uint16(p) } //nolint:gosec // Open vSwitch has 16-bit ports

// AppendPort prints a port as ovs-ofctl does.
func AppendPort(b []byte, p uint32) []byte {
	names := [...]string{"UNSET", "IN_PORT", "TABLE", "NORMAL", "FLOOD", "ALL", "CONTROLLER", "LOCAL", "ANY"}
	if p >= PortUnset {
		return append(b, names[p-PortUnset]...)
	}
	if p >= PortMax { // reserved without a name: inside the switch ports have 16 bits
		p &= 0xffff
	}
	return strconv.AppendUint(b, uint64(p), 10)
}
