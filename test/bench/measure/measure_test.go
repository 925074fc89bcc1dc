package measure_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/test/bench/measure"
)

func TestStatistics(t *testing.T) {
	for _, c := range []struct {
		name                  string
		values                []float64
		q25, median, q75, max float64
	}{
		{"none", nil, 0, 0, 0, 0},
		{"one", []float64{4}, 4, 4, 4, 4},
		{"two", []float64{3, 1}, 1.5, 2, 2.5, 3},
		{"odd, unsorted", []float64{9, 1, 5, 3, 7}, 3, 5, 7, 9},
		{"even", []float64{4, 3, 2, 1}, 1.75, 2.5, 3.25, 4},
		{"an outlier moves no quartile", []float64{1, 2, 3, 4, 1000}, 2, 3, 4, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := append([]float64(nil), c.values...)
			got := []float64{
				measure.Quantile(c.values, 0.25), measure.Median(c.values), measure.Quantile(c.values, 0.75), measure.Quantile(c.values, 1),
			}
			if want := []float64{c.q25, c.median, c.q75, c.max}; !cmp.Equal(got, want) {
				t.Errorf("quartiles and maximum are %v, not %v", got, want)
			}
			if got := measure.Spread(c.values); got != c.q75-c.q25 {
				t.Errorf("spread is %v, not %v", got, c.q75-c.q25)
			}
			if !cmp.Equal(before, c.values) {
				t.Error("the caller's values were sorted")
			}
		})
	}
}

func rounds(pairs ...[2]float64) []measure.Round {
	var all []measure.Round
	for _, p := range pairs {
		r := measure.Round{Ours: measure.Figures{"ms": p[0]}}
		if p[1] != 0 {
			r.Peer = measure.Figures{"ms": p[1]}
		}
		all = append(all, r)
	}
	return all
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name   string
		target measure.Target
		rounds []measure.Round
		want   measure.Result
	}{
		{
			// The machine was four times slower in two rounds, for both sides.
			"the median of ratios, not the ratio of medians",
			measure.RatioAtMost(1).Goal(0.6),
			rounds([2]float64{10, 20}, [2]float64{80, 80}, [2]float64{40, 80}, [2]float64{11, 20}, [2]float64{9, 20}),
			measure.Result{Ours: 11, Peer: 20, Ratio: 0.5, Spread: 0.05, Target: "ratio <= 1 (goal 0.6)", Met: true},
		},
		{
			"a limit just missed", measure.RatioAtMost(0.8), rounds([2]float64{81, 100}),
			measure.Result{Ours: 81, Peer: 100, Ratio: 0.81, Target: "ratio <= 0.8"},
		},
		{
			"a limit just met", measure.RatioAtMost(0.8), rounds([2]float64{80, 100}),
			measure.Result{Ours: 80, Peer: 100, Ratio: 0.8, Target: "ratio <= 0.8", Met: true},
		},
		{
			"more is better", measure.RatioAtLeast(1.2).Goal(1.7), rounds([2]float64{119, 100}),
			measure.Result{Ours: 119, Peer: 100, Ratio: 1.19, Target: "ratio >= 1.2 (goal 1.7)"},
		},
		{
			"without a peer", measure.AtMost(60), rounds([2]float64{61}, [2]float64{59}, [2]float64{58}),
			measure.Result{Ours: 59, Spread: 1.5, Target: "ours <= 60", Met: true},
		},
		{
			"nothing may be sent", measure.AtMost(0), rounds([2]float64{0}, [2]float64{1}, [2]float64{2}),
			measure.Result{Ours: 1, Spread: 1, Target: "ours <= 0"},
		},
		{
			"printed only",
			measure.Target{},
			rounds([2]float64{3, 1}),
			measure.Result{Ours: 3, Peer: 1, Ratio: 3, Met: true},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := measure.Row{Name: "r", Metric: "ms", Unit: "ms", Target: c.target}.Judge(c.rounds)
			if err != nil {
				t.Fatal(err)
			}
			c.want.Row, c.want.Unit = "r", "ms"
			near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
			if diff := cmp.Diff(c.want, got, near); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestJudgeARowWithoutPeerAmongOthers(t *testing.T) {
	both := []measure.Round{{Ours: measure.Figures{"ms": 3, "lost": 0}, Peer: measure.Figures{"ms": 1}}}
	got, err := measure.Row{Name: "r", Metric: "lost", Alone: true, Target: measure.AtMost(0)}.Judge(both)
	if err != nil || !got.Met || got.Ratio != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestJudgeRefusesWhatIsMissing(t *testing.T) {
	for name, r := range map[string][]measure.Round{
		"no figure of ours":      {{Ours: measure.Figures{}, Peer: measure.Figures{"ms": 1}}},
		"no figure of the peer":  {{Ours: measure.Figures{"ms": 1}, Peer: measure.Figures{}}},
		"a peer that takes none": {{Ours: measure.Figures{"ms": 1}, Peer: measure.Figures{"ms": 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := (measure.Row{Name: "r", Metric: "ms"}).Judge(r); err == nil {
				t.Errorf("judged as %+v", got)
			}
		})
	}
}

func TestRoundsAlternate(t *testing.T) {
	var order strings.Builder
	side := func(name string) measure.Side {
		return func(context.Context) (measure.Figures, error) {
			order.WriteString(name)
			return measure.Figures{"n": float64(order.Len())}, nil
		}
	}
	reported := 0
	got, err := measure.Plan{Rounds: 1, Ours: side("o"), Peer: side("p"), Progress: func(int, int) { reported++ }}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != measure.MinRounds || reported != measure.MinRounds+1 {
		t.Errorf("%d rounds, %d reported, with 1 requested; want %d, and one more reported to warm up", len(got), reported, measure.MinRounds)
	}
	if want := "oppooppooppooppo"; order.String() != want {
		t.Errorf("order is %s, not %s", order.String(), want)
	}
	if got[0].Ours["n"] != 4 {
		t.Errorf("the first round that counts is %v: the one before was to warm up", got[0])
	}
}

func TestRoundsEndWithTheFirstError(t *testing.T) {
	broken := errors.New("broken")
	n := 0
	_, err := measure.Plan{
		Ours: func(context.Context) (measure.Figures, error) { n++; return measure.Figures{}, nil },
		Peer: func(context.Context) (measure.Figures, error) { return nil, broken },
	}.Run(t.Context())
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "peer") || n != 1 {
		t.Errorf("after %d of our rounds: %v", n, err)
	}
}

func TestReport(t *testing.T) {
	results := []measure.Result{
		{Row: "a", Unit: "ms", Ours: 8.25, Peer: 13.7, Ratio: 0.602, Spread: 0.0312, Target: "ratio <= 1", Met: true},
		{Row: "b", Unit: "MB", Ours: 61, Target: "ours <= 60"},
		{Row: "c", Unit: "flows/s", Ours: 27588.4, Peer: 30000, Ratio: 0.92, Met: true},
	}
	var table, raw bytes.Buffer
	if err := measure.WriteTable(&table, results); err != nil {
		t.Fatal(err)
	}
	want := `row  unit     ours   peer   ratio  spread  target      met
a    ms       8.25   13.7   0.60   0.0312  ratio <= 1  yes
b    MB       61     -      -      0       ours <= 60  NO
c    flows/s  27588  30000  0.92   0       (printed)   -
`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Errorf("table (-want +got)\n%s", diff)
	}
	if got := measure.Missed(results); !cmp.Equal(got, []string{"b"}) {
		t.Errorf("missed are %v, not b", got)
	}
	if err := measure.WriteJSON(&raw, results); err != nil {
		t.Fatal(err)
	}
	var read []map[string]any
	if err := json.Unmarshal(raw.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	first := map[string]any{
		"row": "a", "unit": "ms", "ours": 8.25, "peer": 13.7, "ratio": 0.602, "spread": 0.0312, "target": "ratio <= 1", "met": true,
	}
	if diff := cmp.Diff(first, read[0]); diff != "" {
		t.Errorf("json (-want +got)\n%s", diff)
	}
	raw.Reset()
	if err := measure.WriteJSON(&raw, nil); err != nil || strings.TrimSpace(raw.String()) != "[]" {
		t.Errorf("no results are %q, %v", raw.String(), err)
	}
}
