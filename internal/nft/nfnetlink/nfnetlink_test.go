package nfnetlink

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// attribute encodes an attribute with its padding.
func attribute(kind uint16, value ...byte) []byte {
	raw := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(value)))
	raw = append(binary.NativeEndian.AppendUint16(raw, kind), value...)
	for len(raw)%unix.NLA_ALIGNTO != 0 {
		raw = append(raw, 0)
	}
	return raw
}

func text(kind uint16, words string) []byte { return attribute(kind, append([]byte(words), 0)...) }

func numeric(kind uint16, n uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, n)...)
}

func nest(kind uint16, inner ...[]byte) []byte {
	return attribute(kind|unix.NLA_F_NESTED, join(inner...)...)
}

func join(parts ...[]byte) []byte {
	var all []byte
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

// chainMessage is a chain "c" of table "t" with these attributes.
func chainMessage(family byte, attrs ...[]byte) []byte {
	return join([]byte{family, 0, 0, 0}, text(unix.NFTA_CHAIN_TABLE, "t"), text(unix.NFTA_CHAIN_NAME, "c"), join(attrs...))
}

func TestParseChain(t *testing.T) {
	const priority = -450
	negative := int32(priority)
	raw := numeric(unix.NFTA_HOOK_PRIORITY, uint32(negative))
	filter := text(unix.NFTA_CHAIN_TYPE, "filter")
	for name, test := range map[string]struct {
		message []byte
		want    Chain
		binding bool
	}{
		"a regular chain": {chainMessage(unix.NFPROTO_INET), Chain{Family: unix.NFPROTO_INET, Table: "t", Name: "c"}, false},
		"a chain in a rule": {
			chainMessage(unix.NFPROTO_INET, numeric(attributeChainFlags, flagBinding)), Chain{Family: unix.NFPROTO_INET, Table: "t", Name: "c"}, true,
		},
		"policy drop": {
			chainMessage(unix.NFPROTO_IPV4, nest(unix.NFTA_CHAIN_HOOK, numeric(unix.NFTA_HOOK_HOOKNUM, 2), raw), numeric(unix.NFTA_CHAIN_POLICY, 0), filter),
			Chain{unix.NFPROTO_IPV4, "t", "c", &Hook{Type: "filter", Number: 2, Priority: priority, Drop: true}},
			false,
		},
		"policy accept": {
			chainMessage(unix.NFPROTO_IPV4, nest(unix.NFTA_CHAIN_HOOK, numeric(unix.NFTA_HOOK_HOOKNUM, 0), raw), numeric(unix.NFTA_CHAIN_POLICY, 1), filter),
			Chain{unix.NFPROTO_IPV4, "t", "c", &Hook{Type: "filter", Priority: priority}},
			false,
		},
		"one device": {
			chainMessage(unix.NFPROTO_NETDEV, nest(unix.NFTA_CHAIN_HOOK,
				text(unix.NFTA_HOOK_DEV, "a"), nest(attributeHookDevs, text(attributeDeviceName, "a"))), filter),
			Chain{unix.NFPROTO_NETDEV, "t", "c", &Hook{Type: "filter", Devices: []string{"a"}}},
			false,
		},
		"one device, before Linux 5.5": {
			chainMessage(unix.NFPROTO_NETDEV, nest(unix.NFTA_CHAIN_HOOK, text(unix.NFTA_HOOK_DEV, "a")), filter),
			Chain{unix.NFPROTO_NETDEV, "t", "c", &Hook{Type: "filter", Devices: []string{"a"}}},
			false,
		},
		"two devices": {
			chainMessage(unix.NFPROTO_NETDEV, nest(unix.NFTA_CHAIN_HOOK,
				nest(attributeHookDevs, text(attributeDeviceName, "a"), text(attributeDeviceName, "b"))), filter),
			Chain{unix.NFPROTO_NETDEV, "t", "c", &Hook{Type: "filter", Devices: []string{"a", "b"}}},
			false,
		},
	} {
		got, binding, err := parseChain(test.message)
		if err != nil || binding != test.binding || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v (hook %+v), binding %v, %v", name, got, got.Hook, binding, err)
		}
	}
}

func TestParseChainOfWrongLength(t *testing.T) {
	tooLong := attribute(unix.NFTA_CHAIN_NAME, 'c', 0)
	binary.NativeEndian.PutUint16(tooLong, 100)
	for name, message := range map[string][]byte{
		"no header":              {unix.NFPROTO_INET},
		"an attribute":           join([]byte{unix.NFPROTO_INET, 0, 0, 0}, tooLong),
		"an attribute of a hook": chainMessage(unix.NFPROTO_INET, nest(unix.NFTA_CHAIN_HOOK, tooLong)),
		"a device":               chainMessage(unix.NFPROTO_INET, nest(unix.NFTA_CHAIN_HOOK, nest(attributeHookDevs, tooLong))),
	} {
		if _, _, err := parseChain(message); !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseChain(f *testing.F) {
	f.Add(chainMessage(unix.NFPROTO_NETDEV, nest(unix.NFTA_CHAIN_HOOK, nest(attributeHookDevs, text(attributeDeviceName, "a")))))
	f.Fuzz(func(_ *testing.T, message []byte) { _, _, _ = parseChain(message) })
}
