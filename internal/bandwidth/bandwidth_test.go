package bandwidth

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		ingress, egress string
		want            Limits
		wrong           []string
	}{
		{"10M", "", Limits{Ingress: 10_000_000}, nil},
		{"", "1k", Limits{Egress: 1000}, nil},
		{"1P", "1Ki", Limits{Max, 1024}, nil},
		{"1.5M", "12345", Limits{1_500_000, 12345}, nil},
		{"1e6", "1e3", Limits{1_000_000, 1000}, nil},
		{"999", "", Limits{}, []string{AnnotationIngress, "out of range", "1k to 1P"}},
		{"", "1001T", Limits{}, []string{AnnotationEgress, "out of range"}},
		{"0", "-10M", Limits{}, []string{AnnotationIngress, AnnotationEgress}},
		{"10 M", "10M", Limits{}, []string{AnnotationIngress, `"10 M"`}},
		{"10Mbit", "", Limits{}, []string{AnnotationIngress}},
		{"1e400", "", Limits{}, []string{AnnotationIngress}},
		{strings.Repeat("1", 65), "", Limits{}, []string{AnnotationIngress, "65 bytes"}},
		{"", "", Limits{}, nil},
	} {
		annotations := map[string]string{"other": "x"}
		for name, value := range map[string]string{AnnotationIngress: test.ingress, AnnotationEgress: test.egress} {
			if value != "" {
				annotations[name] = value
			}
		}
		got, err := Parse(annotations)
		if got != test.want || (err != nil) != (test.wrong != nil) {
			t.Errorf("%q %q: %+v, %v", test.ingress, test.egress, got, err)
			continue
		}
		for _, word := range test.wrong {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q %q: %v does not say %q", test.ingress, test.egress, err, word)
			}
		}
	}
	if _, err := Parse(map[string]string{AnnotationIngress: ""}); err == nil {
		t.Error("an empty annotation is no error")
	}
}

// Whatever an annotation holds, it is within the range or an error that names it.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"10M", "1k", "1P", "999", "1e3", "-1", "", "1e999999999", "0x10", "1.0000000000000001k", "١k"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(map[string]string{AnnotationEgress: text})
		switch {
		case err != nil && (got != Limits{} || !strings.Contains(err.Error(), AnnotationEgress)):
			t.Errorf("%q: %+v, %v", text, got, err)
		case err == nil && (got.Egress < Min || got.Egress > Max || got.Ingress != 0):
			t.Errorf("%q: %+v", text, got)
		}
	})
}
