package openflow

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"strconv"
)

// u128 is a field's value or mask, right-aligned. No OpenFlow field of this package is wider than 128 bits.
type u128 struct{ hi, lo uint64 }

func u64(v uint64) u128 { return u128{lo: v} }

// onesU128 returns the lowest n bits set, n at most 128.
func onesU128(n uint16) u128 {
	switch {
	case n == 0:
		return u128{}
	case n <= 64:
		return u128{lo: ^uint64(0) >> (64 - n)}
	default:
		return u128{hi: ^uint64(0) >> (128 - n), lo: ^uint64(0)}
	}
}

func (v u128) and(o u128) u128    { return u128{v.hi & o.hi, v.lo & o.lo} }
func (v u128) or(o u128) u128     { return u128{v.hi | o.hi, v.lo | o.lo} }
func (v u128) andNot(o u128) u128 { return u128{v.hi &^ o.hi, v.lo &^ o.lo} }
func (v u128) isZero() bool       { return v.hi == 0 && v.lo == 0 }

func (v u128) shl(n uint16) u128 {
	if n >= 64 {
		return u128{hi: v.lo << (n - 64)}
	}
	return u128{hi: v.hi<<n | v.lo>>(64-n), lo: v.lo << n}
}

func (v u128) shr(n uint16) u128 {
	if n >= 64 {
		return u128{lo: v.hi >> (n - 64)}
	}
	return u128{hi: v.hi >> n, lo: v.lo>>n | v.hi<<(64-n)}
}

// put appends the lowest n bytes in network byte order.
func (v u128) put(b []byte, n int) []byte {
	var full [16]byte
	binary.BigEndian.PutUint64(full[:8], v.hi)
	binary.BigEndian.PutUint64(full[8:], v.lo)
	return append(b, full[16-n:]...)
}

// getU128 reads a value of at most 16 bytes.
func getU128(b []byte) u128 {
	var full [16]byte
	copy(full[16-len(b):], b)
	return u128{binary.BigEndian.Uint64(full[:8]), binary.BigEndian.Uint64(full[8:])}
}

// appendHex prints like C's %#x: "0" for zero, else 0x without leading zeros.
func (v u128) appendHex(b []byte) []byte {
	if v.isZero() {
		return append(b, '0')
	}
	b = append(b, "0x"...)
	if v.hi == 0 {
		return strconv.AppendUint(b, v.lo, 16)
	}
	b = strconv.AppendUint(b, v.hi, 16)
	return appendHexPadded(b, v.lo, 16)
}

// appendHexPadded prints v with leading zeros to width digits.
func appendHexPadded(b []byte, v uint64, width int) []byte {
	const digits = "0123456789abcdef"
	for i := width - 1; i >= 0; i-- {
		b = append(b, digits[v>>(4*i)&0xf])
	}
	return b
}

// prefixLen returns the length of a mask that is a prefix (all ones, then all zeros) of width bits, and whether it is one.
func (v u128) prefixLen(width uint16) (int, bool) {
	inverted := onesU128(width).andNot(v)
	trailing := 128 - leadingZeros(inverted)
	if inverted != onesU128(uint16(trailing)) { //nolint:gosec // 0 to 128
		return 0, false
	}
	return int(width) - trailing, true
}

func leadingZeros(v u128) int {
	if v.hi != 0 {
		return bits.LeadingZeros64(v.hi)
	}
	return 64 + bits.LeadingZeros64(v.lo)
}

func (v u128) ip4() netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(v.lo)) //nolint:gosec // IPv4 fields hold 32 bits
	return netip.AddrFrom4(a)
}

func (v u128) ip6() netip.Addr {
	var a [16]byte
	copy(a[:], v.put(nil, 16))
	return netip.AddrFrom16(a)
}

func u128FromAddr(a netip.Addr) u128 { return getU128(a.AsSlice()) }

// prefixMask returns the mask of the first n of width bits.
func prefixMask(n int, width uint16) u128 {
	return onesU128(width).andNot(onesU128(width - uint16(n))) //nolint:gosec // a netip prefix length fits
}

// pad appends zeros until b's length from start is a multiple of 8, the alignment of most OpenFlow structures.
func pad(b []byte, start int) []byte {
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

func roundUp8(n int) int { return (n + 7) &^ 7 }
