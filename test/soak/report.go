package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"weft.dev/weft/test/traffic"
)

// verdict is the result of a row.
type verdict string

// Verdicts. Only the first passes.
const (
	passed   verdict = "ok"
	failed   verdict = "FAILED"
	busy     verdict = "machine too busy" // the same traffic lost packets without a fault
	unjudged verdict = "loss not judged"
	refused  verdict = "refused"
)

// row is a line of the table: a part, or a fault.
type row struct {
	Part string `json:"part"`
	Name string `json:"name"`
	// Count is the number of restarts, kills, pods or faults.
	Count int `json:"count"`
	// Sent and Lost count the datagrams of the pairs that must lose nothing; Spared names these pairs.
	Spared string `json:"spared"`
	Sent   uint64 `json:"sent"`
	Lost   uint64 `json:"lost"`
	// Others counts the losses of the other pairs, which are no failure.
	Others uint64 `json:"othersLost"`
	// Leaks counts leftovers; Holes counts packets received where they must not arrive.
	Leaks int `json:"leaks"`
	Holes int `json:"holes"`
	// Repairs counts the labs that were rebuilt because Weft did not recover by itself.
	Repairs int `json:"repairs"`
	// Back is the longest time until everything was as before.
	Back time.Duration `json:"backNanoseconds"`
	Took time.Duration `json:"tookNanoseconds"`
	// Note says what was observed, Wrong what must not have happened.
	Note    string   `json:"note,omitempty"`
	Wrong   []string `json:"wrong,omitempty"`
	Verdict verdict  `json:"verdict"`

	// pairs are the counts of each pair's datagrams.
	pairs map[string]traffic.Tally
}

// wrong adds an error, if there is one.
func (r *row) wrong(err error) {
	if err != nil {
		r.Wrong = append(r.Wrong, err.Error())
	}
}

// settle gives the row its verdict, unless it has one.
func (r *row) settle() {
	if r.Verdict == "" || r.Verdict == unjudged {
		if len(r.Wrong) > 0 || r.Leaks > 0 || r.Holes > 0 || r.Repairs > 0 {
			r.Verdict = failed
		}
	}
	if r.Verdict == "" {
		r.Verdict = passed
	}
}

// report is the result of a run.
type report struct {
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"tookNanoseconds"`
	Seed  uint64        `json:"seed"`
	// Load is the machine's load before the run, per processor.
	Load       float64 `json:"loadPerProcessor"`
	Processors int     `json:"processors"`
	// Whole says that every part was selected, in full size.
	Whole bool  `json:"whole"`
	Rows  []row `json:"rows"`
	// Hostile is the number of hostile packets sent.
	Hostile int    `json:"hostileSent"`
	Error   string `json:"error,omitempty"`
	Passed  bool   `json:"passed"`
}

// sums returns the totals that decide about a run.
func (r *report) sums() (all row) {
	for i := range r.Rows {
		x := &r.Rows[i]
		all.Sent, all.Lost, all.Leaks, all.Holes, all.Repairs = all.Sent+x.Sent, all.Lost+x.Lost, all.Leaks+x.Leaks, all.Holes+x.Holes, all.Repairs+x.Repairs
		all.Back = max(all.Back, x.Back)
		if x.Verdict != passed {
			all.Count++
		}
	}
	return all
}

// finish prints the table and writes the file.
func (r *report) finish(w io.Writer, path string) error {
	r.Took = time.Since(r.Began)
	all := r.sums()
	r.Passed = r.Error == "" && all.Count == 0 && len(r.Rows) > 0
	if err := r.print(w, all); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

func (r *report) print(out io.Writer, all row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) } // Flush returns errors
	line("", "", "", "", "", "", "", "", "")
	line("part", "what", "times", "lost of spared", "leaks", "holes", "repairs", "back after", "verdict")
	for i := range r.Rows {
		x := &r.Rows[i]
		line(x.Part, x.Name, strconv.Itoa(x.Count), lossOf(x), strconv.Itoa(x.Leaks), strconv.Itoa(x.Holes), strconv.Itoa(x.Repairs),
			x.Back.Round(time.Millisecond).String(), string(x.Verdict))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.Rows {
		x := &r.Rows[i]
		if x.Verdict == passed || len(x.Wrong) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(out, "\n%s: %s: %s\n", x.Part, x.Name, x.Verdict)
		for _, wrong := range x.Wrong {
			_, _ = fmt.Fprintf(out, "    %s\n", strings.ReplaceAll(strings.TrimSpace(wrong), "\n", "\n    "))
		}
	}
	word := "not passed"
	if r.Passed {
		word = "passed"
	}
	if r.Error != "" {
		_, _ = fmt.Fprintf(out, "\nended early: %s\n", r.Error)
	}
	_, err := fmt.Fprintf(out, "\n%s: %d rows, %d not ok; %d of %d packets lost, %d leaks, %d isolation holes, %d manual repairs; "+
		"%d hostile packets; whole: %v; %s; seed %d\n", word, len(r.Rows), all.Count, all.Lost, all.Sent, all.Leaks, all.Holes, all.Repairs,
		r.Hostile, r.Whole, r.Took.Round(time.Second), r.Seed)
	return err
}

func lossOf(x *row) string {
	if x.Spared == "" {
		return "-"
	}
	return fmt.Sprintf("%d of %d (%s)", x.Lost, x.Sent, x.Spared)
}
