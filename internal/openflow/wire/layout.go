package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed is a decoder's error for bytes that are not OpenFlow: too short, or with inconsistent lengths.
var ErrMalformed = errors.New("malformed OpenFlow")

// Malformed returns ErrMalformed for a structure.
func Malformed(what string) error { return fmt.Errorf("%s: %w", what, ErrMalformed) }

// VendorNicira is the experimenter of Open vSwitch's extensions.
const VendorNicira = 0x00002320

// MaxMessage is the longest OpenFlow message: its length is a 16-bit number.
const MaxMessage = 0xffff

// DefaultPriority is the priority of a flow for which ovs-ofctl is given none, and which it does not print.
const DefaultPriority = 0x8000

// Pad appends zeros until b's length from start is a multiple of 8, the alignment of most OpenFlow structures.
func Pad(b []byte, start int) []byte {
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// RoundUp8 rounds a length up to a multiple of 8.
func RoundUp8(n int) int { return (n + 7) &^ 7 }

// Zeros appends n zeros.
func Zeros(b []byte, n int) []byte { return append(b, make([]byte, n)...) }

// SplitTLV returns the first structure of a list. Each structure begins with type and length; the length is a multiple of 8.
func SplitTLV(b []byte, what string) ([]byte, error) {
	if len(b) < 4 {
		return nil, Malformed(what + " header")
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < 8 || n%8 != 0 || n > len(b) {
		return nil, Malformed(what)
	}
	return b[:n], nil
}

// AppendProperty appends an OpenFlow property: type, length without padding, value, padding.
func AppendProperty(b []byte, kind uint16, value []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value))) //nolint:gosec // properties are short
	return Pad(append(b, value...), start)
}

// NextProperty splits off the first property. Inconsistent lengths are an error.
func NextProperty(b []byte) (kind uint16, value, rest []byte, err error) {
	if len(b) < 4 {
		return 0, nil, nil, Malformed("property header")
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < 4 || n > len(b) {
		return 0, nil, nil, Malformed("property")
	}
	return binary.BigEndian.Uint16(b), b[4:n], b[min(RoundUp8(n), len(b)):], nil
}
