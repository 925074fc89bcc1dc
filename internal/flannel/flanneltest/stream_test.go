package flanneltest

import (
	"fmt"
	"strings"
	"testing"
)

// Only packets without an answer before the last answer are lost; sequence numbers continue beyond the 16 bits that ping prints.
func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		name       string
		without    []int
		count      int
		last, lost int
	}{
		{"no answer", nil, 0, 0, 0},
		{"all", nil, 70000, 70000, 0},
		{"the last under way", []int{9, 10}, 10, 8, 0},
		{"two in between", []int{3, 65540}, 70000, 70000, 2},
		{"the first", []int{1}, 5, 5, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			missing := map[int]bool{}
			for _, i := range test.without {
				missing[i] = true
			}
			var log strings.Builder
			log.WriteString("PING 10.0.0.1 (10.0.0.1) 56(84) bytes of data.\n")
			for i := 1; i <= test.count; i++ {
				if missing[i] {
					fmt.Fprintf(&log, "From 10.0.0.2 icmp_seq=%d Destination Host Unreachable\n", uint16(i)) //nolint:gosec // as ping prints it
					continue
				}
				fmt.Fprintf(&log, "64 bytes from 10.0.0.1: icmp_seq=%d ttl=64 time=0.048 ms\n", uint16(i)) //nolint:gosec // as ping prints it
			}
			if last, lost := answers(log.String()); last != test.last || lost != test.lost {
				t.Errorf("last %d, lost %d, want %d and %d", last, lost, test.last, test.lost)
			}
		})
	}
}
