package shaping

import (
	"testing"

	"weft.dev/weft/internal/link/podlink"
)

// Parsing neither fails nor panics on what the kernel sends, and never panics on other input.
func FuzzParseShaper(f *testing.F) {
	good := setShaper(1, podlink.Shaper{Rate: 1_250_000, Burst: 31_250, Queue: 125_000}).Serialize()
	f.Add(good[36:]) // after the headers of netlink and tc
	f.Add([]byte{})
	f.Add([]byte{8, 0, 1, 0, 't', 'b', 'f', 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := parseShaper(data); err != nil && s != (podlink.Shaper{}) {
			t.Errorf("%s, %v", s, err)
		}
	})
}
