package podlink

import (
	"testing"
)

func TestShaperMatches(t *testing.T) {
	want := Shaper{Rate: 1_250_000, Burst: 31_250, Queue: 125_000}
	for _, have := range []Shaper{want, {want.Rate, want.Burst + 100, want.Queue}} {
		if !want.matches(have) || !(Shape{Send: want}).Matches(Shape{Send: have}) {
			t.Errorf("%s is not %s", have, want)
		}
	}
	for _, have := range []Shaper{{}, {want.Rate + 1, want.Burst, want.Queue}, {want.Rate, want.Burst * 2, want.Queue}, {want.Rate, want.Burst, want.Queue - 1}} {
		if want.matches(have) || have.matches(want) {
			t.Errorf("%s is taken for %s", have, want)
		}
	}
	if want := (Shape{Send: want}); want.Matches(Shape{Receive: want.Send}) {
		t.Error("what is received is taken for what is sent")
	}
}
