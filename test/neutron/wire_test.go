//go:build lab

package neutron

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of KubeStack's interface encoded and decoded by hand, from its field table, without the generated code: a
// message is a list of numbered fields.

// field is a field of a message: its number with a string, a bool, an int32 or a message.
type field struct {
	number protowire.Number
	value  any
}

type message []field

func (m message) encode() []byte {
	var out []byte
	for _, f := range m {
		switch v := f.value.(type) {
		case string:
			out = protowire.AppendString(protowire.AppendTag(out, f.number, protowire.BytesType), v)
		case int32:
			out = protowire.AppendVarint(protowire.AppendTag(out, f.number, protowire.VarintType), uint64(v)) //nolint:gosec // positive
		case message:
			out = protowire.AppendBytes(protowire.AppendTag(out, f.number, protowire.BytesType), v.encode())
		default:
			panic(fmt.Sprintf("field %d has type %T", f.number, f.value))
		}
	}
	return out
}

// decoded is a message that came back, by field numbers, in order.
type decoded map[protowire.Number][]any

func decode(raw []byte) (decoded, error) {
	out := decoded{}
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		raw = raw[n:]
		switch kind {
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(raw)
			if n < 0 {
				return nil, protowire.ParseError(n)
			}
			out[number], raw = append(out[number], string(v)), raw[n:]
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(raw)
			if n < 0 {
				return nil, protowire.ParseError(n)
			}
			out[number], raw = append(out[number], v), raw[n:]
		default:
			return nil, fmt.Errorf("field %d has wire type %d", number, kind)
		}
	}
	return out, nil
}

// text is a field that is a string; "" where it is left out, as proto3 does with empty ones.
func (d decoded) text(number protowire.Number) string {
	if len(d[number]) == 0 {
		return ""
	}
	s, _ := d[number][0].(string)
	return s
}

// number is a field that is a bool or an integer.
func (d decoded) number(number protowire.Number) uint64 {
	if len(d[number]) == 0 {
		return 0
	}
	n, _ := d[number][0].(uint64)
	return n
}

// raw is gRPC's codec for messages that are bytes already.
type raw struct{}

// Name is what goes into the content type.
func (raw) Name() string { return "proto" }

// Marshal takes a *[]byte.
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal fills a *[]byte.
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
