package nfnetlink

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/nftables"
)

func TestIntervals(t *testing.T) {
	start := func(key ...byte) nftables.SetElement { return nftables.SetElement{Key: key} }
	end := func(key ...byte) nftables.SetElement { return nftables.SetElement{Key: key, IntervalEnd: true} }
	var have []string
	// In the kernel's order: from the last to the first. The second interval begins where the first ends.
	for _, element := range Intervals([]nftables.SetElement{start(0xff, 0), end(2, 0), start(1, 0), end(1, 0), start(0, 7), end(0, 0)}) {
		parts, err := decodeParts([]string{"inet_service"}, element.Key, element.KeyEnd)
		if err != nil {
			t.Fatal(err)
		}
		have = append(have, parts...)
	}
	if want := []string{"7-255", "256-511", "65280-65535"}; !slices.Equal(have, want) {
		t.Errorf("intervals are %v, want %v", have, want)
	}
}

func FuzzParts(f *testing.F) {
	types := []string{"ipv4_addr", "ipv6_addr", "inet_proto", "inet_service", "mark", "ether_addr", "ifname", "verdict"}
	f.Add(byte(0), byte(3), []byte{10, 0, 0, 1, 0, 80, 0, 0}, []byte{10, 0, 0, 255, 0, 90, 0, 0})
	f.Fuzz(func(t *testing.T, one, two byte, from, to []byte) {
		list := []string{types[int(one)%len(types)], types[int(two)%len(types)]}
		if parts, err := decodeParts(list, from, to); err == nil && len(parts) != len(list) || err != nil && !errors.Is(err, ErrUndecoded) {
			t.Errorf("%v: %v, %v", list, parts, err)
		}
	})
}
