package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

// Missed lists the rows that do not reach their target.
func Missed(results []Result) []string {
	var missed []string
	for _, r := range results {
		if !r.Met {
			missed = append(missed, r.Row)
		}
	}
	return missed
}

// WriteTable prints the results as a table.
func WriteTable(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "row\tunit\tours\tpeer\tratio\tspread\ttarget\tmet")
	for _, r := range results {
		peer, ratio := "-", "-"
		if r.Peer != 0 {
			peer, ratio = short(r.Peer), strconv.FormatFloat(r.Ratio, 'f', 2, 64)
		}
		target, met := "(printed)", "-"
		if r.Target != "" {
			target, met = r.Target, "yes"
		}
		if !r.Met {
			met = "NO"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Row, r.Unit, short(r.Ours), peer, ratio, short(r.Spread), target, met)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}

// short prints three significant digits.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100 || v <= -100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// WriteJSON writes the results as JSON: an array of Result.
func WriteJSON(w io.Writer, results []Result) error {
	if results == nil {
		results = []Result{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(results); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
