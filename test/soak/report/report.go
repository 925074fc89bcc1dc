// Package report is what a run of the soak reports: lines of progress while it runs, and at its end a table, and the same data as JSON.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Verdict is the result of a row.
type Verdict string

// Verdicts. Only the first passes.
const (
	Passed   Verdict = "ok"
	Failed   Verdict = "FAILED"
	Busy     Verdict = "machine too busy" // the same traffic lost packets without a fault
	Unjudged Verdict = "loss not judged"
	Refused  Verdict = "refused"
)

// Row is a line of the table: a part, or a fault.
type Row struct {
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
	Verdict Verdict  `json:"verdict"`
}

// Fail adds an error, if there is one.
func (r *Row) Fail(err error) {
	if err != nil {
		r.Wrong = append(r.Wrong, err.Error())
	}
}

// Breached counts packets that were received where they must not arrive, and quotes some of them.
func (r *Row) Breached(found []string) {
	r.Holes += len(found)
	slices.Sort(found)
	found = slices.Compact(found)
	for _, f := range found[:min(5, len(found))] {
		r.Fail(errors.New(f))
	}
}

// settle gives the row its verdict, unless it has one.
func (r *Row) settle() {
	if r.Verdict == "" || r.Verdict == Unjudged {
		if len(r.Wrong) > 0 || r.Leaks > 0 || r.Holes > 0 || r.Repairs > 0 {
			r.Verdict = Failed
		}
	}
	if r.Verdict == "" {
		r.Verdict = Passed
	}
}

// Report is the result of a run.
type Report struct {
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"tookNanoseconds"`
	Seed  uint64        `json:"seed"`
	// Load is the machine's load before the run, per processor.
	Load       float64 `json:"loadPerProcessor"`
	Processors int     `json:"processors"`
	// Whole says that every part was selected, in full size.
	Whole bool  `json:"whole"`
	Rows  []Row `json:"rows"`
	// Hostile is the number of hostile packets sent.
	Hostile int    `json:"hostileSent"`
	Error   string `json:"error,omitempty"`
	Passed  bool   `json:"passed"`

	// mu keeps lines of output whole.
	mu  sync.Mutex
	out io.Writer
}

// New begins a report, which is printed to out.
func New(seed uint64, out io.Writer) *Report {
	return &Report{Began: time.Now(), Seed: seed, Processors: runtime.NumCPU(), out: out}
}

// Say prints a line of progress.
func (r *Report) Say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.out, "%7.1fs  %s\n", time.Since(r.Began).Seconds(), fmt.Sprintf(format, args...))
}

// Add finishes a row.
func (r *Report) Add(x Row) {
	x.settle()
	r.Rows = append(r.Rows, x)
	r.Say("%s: %s: %s (%s) %s", x.Part, x.Name, x.Verdict, x.Took.Round(time.Millisecond), x.Note)
	for _, wrong := range x.Wrong {
		r.Say("    %s", wrong)
	}
}

// sums returns the totals that decide about a run.
func (r *Report) sums() (all Row) {
	for i := range r.Rows {
		x := &r.Rows[i]
		all.Sent, all.Lost, all.Leaks, all.Holes, all.Repairs = all.Sent+x.Sent, all.Lost+x.Lost, all.Leaks+x.Leaks, all.Holes+x.Holes, all.Repairs+x.Repairs
		all.Back = max(all.Back, x.Back)
		if x.Verdict != Passed {
			all.Count++
		}
	}
	return all
}

// Finish prints the table and writes the file.
func (r *Report) Finish(path string) error {
	r.Took = time.Since(r.Began)
	all := r.sums()
	r.Passed = r.Error == "" && all.Count == 0 && len(r.Rows) > 0
	if err := r.print(all); err != nil {
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

func (r *Report) print(all Row) error {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
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
		if x.Verdict == Passed || len(x.Wrong) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(r.out, "\n%s: %s: %s\n", x.Part, x.Name, x.Verdict)
		for _, wrong := range x.Wrong {
			_, _ = fmt.Fprintf(r.out, "    %s\n", strings.ReplaceAll(strings.TrimSpace(wrong), "\n", "\n    "))
		}
	}
	word := "not passed"
	if r.Passed {
		word = "passed"
	}
	if r.Error != "" {
		_, _ = fmt.Fprintf(r.out, "\nended early: %s\n", r.Error)
	}
	_, err := fmt.Fprintf(r.out, "\n%s: %d rows, %d not ok; %d of %d packets lost, %d leaks, %d isolation holes, %d manual repairs; "+
		"%d hostile packets; whole: %v; %s; seed %d\n", word, len(r.Rows), all.Count, all.Lost, all.Sent, all.Leaks, all.Holes, all.Repairs,
		r.Hostile, r.Whole, r.Took.Round(time.Second), r.Seed)
	return err
}

func lossOf(x *Row) string {
	if x.Spared == "" {
		return "-"
	}
	return fmt.Sprintf("%d of %d (%s)", x.Lost, x.Sent, x.Spared)
}
