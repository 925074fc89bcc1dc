package wire

import (
	"net/netip"
)

// AppendHexPadded prints v with leading zeros to width digits.
func AppendHexPadded(b []byte, v uint64, width int) []byte {
	const digits = "0123456789abcdef"
	for i := width - 1; i >= 0; i-- {
		b = append(b, digits[v>>(4*i)&0xf])
	}
	return b
}

// AppendBytesHex prints bytes as ovs-ofctl does userdata and notes: pairs of digits with dots between.
func AppendBytesHex(b, data []byte) []byte {
	for i, v := range data {
		if i > 0 {
			b = append(b, '.')
		}
		b = AppendHexPadded(b, uint64(v), 2)
	}
	return b
}

// AppendIP prints an address as inet_ntop(3) does: unlike netip it shows the last four bytes of an IPv4-compatible
// address (RFC 4291, 2.5.5.1) in decimal.
func AppendIP(b []byte, a netip.Addr) []byte {
	if a.Is6() {
		v := FromAddr(a)
		if v.Hi == 0 && v.Lo>>32 == 0 && v.Lo>>16 != 0 {
			return v.IP4().AppendTo(append(b, "::"...))
		}
	}
	return a.AppendTo(b)
}
