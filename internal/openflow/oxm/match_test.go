package oxm

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
)

var sampleMAC = net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5} //nolint:gochecknoglobals // a constant

func TestAMatchIsCanonical(t *testing.T) {
	prefix := netip.MustParsePrefix("10.1.0.0/16")
	for name, pair := range map[string][2]Match{
		"order":                 {NewMatch(InPort(1), EthSrc(sampleMAC)), NewMatch(EthSrc(sampleMAC), InPort(1))},
		"bits beyond the mask":  {NewMatch(RegMasked(0, 0xff, 0x0f)), NewMatch(RegMasked(0, 0x0f, 0x0f))},
		"a register in halves":  {NewMatch(RegMasked(1, 0x1200, 0xff00), RegMasked(1, 0x34, 0xff)), NewMatch(RegMasked(1, 0x1234, 0xffff))},
		"a wide register":       {NewMatch(Exact(FieldXReg0+1, 0x100000002)), NewMatch(Reg(2, 1), Reg(3, 2))},
		"what a prefix implies": {NewMatch(IPSrc(prefix)), NewMatch(EthType(EthTypeIPv4), IPSrc(prefix))},
		"an empty prefix":       {NewMatch(IPSrc(netip.MustParsePrefix("0.0.0.0/0"))), NewMatch(EthType(EthTypeIPv4))},
		"a prefix's host bits":  {NewMatch(IPDst(netip.MustParsePrefix("10.1.2.3/16"))), NewMatch(IPDst(prefix))},
		"a tag's priority":      {NewMatch(VLANPCP(3)), NewMatch(VLANAny(), VLANPCP(3))},
		"a tag as a whole":      {NewMatch(VLANTCI(0x7005, 0xffff)), NewMatch(VLANVID(5), VLANPCP(3))},
		"no tag as a whole":     {NewMatch(VLANTCI(0, 0xffff)), NewMatch(VLANNone())},
		"type of service":       {NewMatch(EthType(EthTypeIPv4), Exact(FieldIPTOS, 0x28)), NewMatch(EthType(EthTypeIPv4), IPDSCP(10))},
	} {
		a, b := pair[0], pair[1]
		if !a.Equal(b) || a.String() != b.String() || !bytes.Equal(a.AppendWire(nil), b.AppendWire(nil)) {
			t.Errorf("%s: %q and %q differ", name, a, b)
		}
	}
}

// A field that is not known is kept as it is.
func TestUnknownField(t *testing.T) {
	raw := []byte{0, 1, 0, 12, 0x12, 0x34, 0x56, 4, 1, 2, 3, 4, 0, 0, 0, 0}
	match, _, err := DecodeMatch(raw)
	if err != nil || !bytes.Equal(match.AppendWire(nil), raw) || match.String() == "" {
		t.Errorf("%v, %v", match, err)
	}
}

// FuzzMatch: decoding never panics, and a decoded match encodes to bytes that decode to the same match.
func FuzzMatch(f *testing.F) {
	f.Add(NewMatch(IPSrc(netip.MustParsePrefix("10.0.0.0/8")), TCPDst(80), Reg(1, 2), CTState(CTNew|CTTrk, CTInv)).AppendWire(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		match, _, err := DecodeMatch(b)
		if err != nil {
			return
		}
		again, rest, err := DecodeMatch(match.AppendWire(nil))
		if err != nil || len(rest) != 0 || !again.Equal(match) || again.String() != match.String() {
			t.Fatalf("%s decodes again as %s: %v", match, again, err)
		}
	})
}
