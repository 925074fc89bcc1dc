package matrix

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"
)

// Table writes the report for people.
func (r *Report) Table(out io.Writer) error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "WHO REACHES WHOM\tFROM\tTO\tMUST\tDOES\tSOURCE SEEN\tHTTP\tPING\tRESULT\n")
	right := 0
	for _, way := range r.Ways {
		fmt.Fprintf(w, "%s\t%s\t%s\tyes\t%s\t%s\t%s\t%s\t%s\n",
			way.Kind, way.From, way.To, yesNo(way.Reached), address(way.Seen), way.HTTP, way.Ping, verdict(way.AsItMust))
		right += count(way.AsItMust)
	}
	fmt.Fprint(w, "\t\t\t\t\t\t\t\t\nWHAT MUST GO NOWHERE\tFROM\tFRAMES\tMUST\tDOES\tARRIVED\tHONEST FRAME\t\tRESULT\n")
	for _, t := range r.Tricks {
		fmt.Fprintf(w, "%s\t%s\t%d\tno\t%s\t%d\t%s\t\t%s\n",
			t.Kind, t.From, t.Sent, yesNo(t.Arrived > 0), t.Arrived, arrived(t.Control), verdict(t.AsItMust))
		right += count(t.AsItMust)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the matrix: %w", err)
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " \n")); err != nil {
			return fmt.Errorf("write the matrix: %w", err)
		}
	}
	_, err := fmt.Fprintf(out, "\n%d of %d rows are as they must be.%s\n", right, len(r.Ways)+len(r.Tricks), r.problems())
	return err
}

// problems explains the rows that are not as they must be.
func (r *Report) problems() string {
	var b strings.Builder
	for _, way := range r.Ways {
		if way.AsItMust {
			continue
		}
		fmt.Fprintf(&b, "\nWRONG: %s, %s to %s:", way.Kind, way.From, way.To)
		if way.Seen != way.Source {
			fmt.Fprintf(&b, " the source seen is %s, not %s;", address(way.Seen), way.Source)
		}
		fmt.Fprintf(&b, " HTTP %d of %d %s; ICMP %d of %d %s",
			way.HTTP.Answered, way.HTTP.Sent, way.HTTP.Problem, way.Ping.Answered, way.Ping.Sent, way.Ping.Problem)
	}
	for _, t := range r.Tricks {
		if t.AsItMust {
			continue
		}
		fmt.Fprintf(&b, "\nWRONG: %s, from %s: %d of %d frames arrived; the honest frame after them (%s): %s",
			t.Kind, t.From, t.Arrived, t.Sent, t.ControlName, arrived(t.Control))
		for _, e := range t.Examples {
			fmt.Fprintf(&b, "\n       %s", e)
		}
	}
	return b.String()
}

// String is the party as tables have it.
func (p Party) String() string {
	if p.kind == pod {
		return fmt.Sprintf("%s %s (%s)", p.Name, p.IP, p.Node)
	}
	return fmt.Sprintf("%s %s", p.Name, p.IP)
}

// String is the median, or how many exchanges were answered when not all were.
func (m Measured) String() string {
	switch {
	case m.Answered == 0:
		return "-"
	case m.Answered < m.Sent:
		return fmt.Sprintf("%d of %d", m.Answered, m.Sent)
	}
	return fmt.Sprintf("%.2f ms", float64(m.Median)/float64(time.Millisecond))
}

func address(a netip.Addr) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func arrived(b bool) string {
	if b {
		return "arrived"
	}
	return "did not arrive"
}

func verdict(asItMust bool) string {
	if asItMust {
		return "ok"
	}
	return "WRONG"
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
