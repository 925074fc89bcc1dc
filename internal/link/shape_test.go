package link

import "testing"

// Parsing neither fails nor panics on what the kernel sends, and never panics on other input.
func FuzzParseShaper(f *testing.F) {
	good := setShaper(1, Shaper{Rate: 1_250_000, Burst: 31_250, Queue: 125_000}).Serialize()
	f.Add(good[36:]) // after the headers of netlink and tc
	f.Add([]byte{})
	f.Add([]byte{8, 0, 1, 0, 't', 'b', 'f', 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := parseShaper(data); err != nil && s != (Shaper{}) {
			t.Errorf("%s, %v", s, err)
		}
	})
}

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
