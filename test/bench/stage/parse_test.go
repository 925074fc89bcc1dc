package stage

import (
	"strings"
	"testing"
	"time"
)

func TestParseChildrenTime(t *testing.T) {
	const tail = " S 1 2 3 0 -1 4194560 7 8 0 0 11 12 130 14 20 0 1 0 100"
	for _, c := range []struct {
		name, line string
		want       time.Duration
	}{
		{"plain", "42 (weft-lab)" + tail, 1440 * time.Millisecond},
		{"a name with spaces and parentheses", "42 (a) b (c)" + tail, 1440 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := parseChildrenTime([]byte(c.line)); err != nil || got != c.want {
				t.Errorf("%s, %v, not %s", got, err, c.want)
			}
		})
	}
	for _, bad := range []string{"", "42 (x) S 1", "42 (x)" + strings.Replace(tail, "130", "x", 1)} {
		if got, err := parseChildrenTime([]byte(bad)); err == nil {
			t.Errorf("%q is %s", bad, got)
		}
	}
}

func TestParseStat(t *testing.T) {
	busy, all, err := parseStat("cpu  10 20 30 400 50 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	if err != nil || busy != 10+20+30+6+7+8 || all != 10+20+30+400+50+6+7+8 {
		t.Errorf("%d of %d, %v", busy, all, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu 1 2 3 4 5 6 7 x", "intr 1 2 3 4 5 6 7 8"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
