package wire

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"strconv"
)

// U128 is a field's value or mask, right-aligned. No OpenFlow field that Weft uses is wider than 128 bits.
type U128 struct{ Hi, Lo uint64 }

// U64 returns a value of 64 bits.
func U64(v uint64) U128 { return U128{Lo: v} }

// Ones returns the lowest n bits set, n at most 128.
func Ones(n uint16) U128 {
	switch {
	case n == 0:
		return U128{}
	case n <= 64:
		return U128{Lo: ^uint64(0) >> (64 - n)}
	default:
		return U128{Hi: ^uint64(0) >> (128 - n), Lo: ^uint64(0)}
	}
}

// And returns the bits that both have.
func (v U128) And(o U128) U128 { return U128{v.Hi & o.Hi, v.Lo & o.Lo} }

// Or returns the bits that either has.
func (v U128) Or(o U128) U128 { return U128{v.Hi | o.Hi, v.Lo | o.Lo} }

// AndNot returns the bits that o lacks.
func (v U128) AndNot(o U128) U128 { return U128{v.Hi &^ o.Hi, v.Lo &^ o.Lo} }

// IsZero reports whether no bit is set.
func (v U128) IsZero() bool { return v.Hi == 0 && v.Lo == 0 }

// Shl shifts to the left.
func (v U128) Shl(n uint16) U128 {
	if n >= 64 {
		return U128{Hi: v.Lo << (n - 64)}
	}
	return U128{Hi: v.Hi<<n | v.Lo>>(64-n), Lo: v.Lo << n}
}

// Shr shifts to the right.
func (v U128) Shr(n uint16) U128 {
	if n >= 64 {
		return U128{Lo: v.Hi >> (n - 64)}
	}
	return U128{Hi: v.Hi >> n, Lo: v.Lo>>n | v.Hi<<(64-n)}
}

// Put appends the lowest n bytes in network byte order.
func (v U128) Put(b []byte, n int) []byte {
	var full [16]byte
	binary.BigEndian.PutUint64(full[:8], v.Hi)
	binary.BigEndian.PutUint64(full[8:], v.Lo)
	return append(b, full[16-n:]...)
}

// GetU128 reads a value of at most 16 bytes.
func GetU128(b []byte) U128 {
	var full [16]byte
	copy(full[16-len(b):], b)
	return U128{binary.BigEndian.Uint64(full[:8]), binary.BigEndian.Uint64(full[8:])}
}

// AppendHex prints like C's %#x: "0" for zero, else 0x without leading zeros.
func (v U128) AppendHex(b []byte) []byte {
	if v.IsZero() {
		return append(b, '0')
	}
	b = append(b, "0x"...)
	if v.Hi == 0 {
		return strconv.AppendUint(b, v.Lo, 16)
	}
	b = strconv.AppendUint(b, v.Hi, 16)
	return AppendHexPadded(b, v.Lo, 16)
}

// PrefixLen returns the length of a mask that is a prefix (all ones, then all zeros) of width bits, and whether it is one.
func (v U128) PrefixLen(width uint16) (int, bool) {
	inverted := Ones(width).AndNot(v)
	trailing := 128 - leadingZeros(inverted)
	if inverted != Ones(uint16(trailing)) { //nolint:gosec // 0 to 128
		return 0, false
	}
	return int(width) - trailing, true
}

func leadingZeros(v U128) int {
	if v.Hi != 0 {
		return bits.LeadingZeros64(v.Hi)
	}
	return 64 + bits.LeadingZeros64(v.Lo)
}

// IP4 returns the lowest 32 bits as an address.
func (v U128) IP4() netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(v.Lo)) //nolint:gosec // IPv4 fields hold 32 bits
	return netip.AddrFrom4(a)
}

// IP6 returns the value as an address.
func (v U128) IP6() netip.Addr {
	var a [16]byte
	copy(a[:], v.Put(nil, 16))
	return netip.AddrFrom16(a)
}

// FromAddr returns an address as a value.
func FromAddr(a netip.Addr) U128 { return GetU128(a.AsSlice()) }

// PrefixMask returns the mask of the first n of width bits.
func PrefixMask(n int, width uint16) U128 {
	return Ones(width).AndNot(Ones(width - uint16(n))) //nolint:gosec // a netip prefix length fits
}
