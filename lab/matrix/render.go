package matrix

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"
)

// Table writes the report as a table.
func (r *Report) Table(out io.Writer) error {
	var cells, lines strings.Builder
	cells.WriteString("REACHABILITY\tFROM\tTO\tMUST\tDOES\tSOURCE SEEN\tDNS\tHTTP\tPING\tRESULT\n")
	right := 0
	for _, way := range r.Ways {
		fmt.Fprintf(&cells, "%s\t%s\t%s\tyes\t%s\t%s\t%s\t%s\t%s\t%s\n",
			way.Kind, way.From, way.To, yesNo(way.Reached), address(way.Seen), way.DNS, way.HTTP, way.Ping, verdict(way.AsItMust))
		right += count(way.AsItMust)
	}
	right += judgedCells(&cells, r.Judged)
	cells.WriteString("\t\t\t\t\t\t\t\t\t\nWHAT MUST GO NOWHERE\tFROM\tFRAMES\tMUST\tDOES\tARRIVED\tHONEST\t\t\tRESULT\n")
	for _, t := range r.Tricks {
		fmt.Fprintf(&cells, "%s\t%s\t%d\tno\t%s\t%d\t%s\t\t\t%s\n",
			t.Kind, t.From, t.Sent, yesNo(t.Arrived > 0), t.Arrived, arrived(t.Control), verdict(t.AsItMust))
		right += count(t.AsItMust)
	}
	w := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(w, cells.String()); err != nil {
		return fmt.Errorf("lay the matrix out: %w", err)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("lay the matrix out: %w", err)
	}
	var text strings.Builder
	for line := range strings.Lines(lines.String()) {
		text.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	fmt.Fprintf(&text, "\n%d of %d rows are as they must be.\n%s", right, len(r.Ways)+len(r.Judged)+len(r.Tricks), r.problems())
	if _, err := io.WriteString(out, text.String()); err != nil {
		return fmt.Errorf("write the matrix: %w", err)
	}
	return nil
}

// problems explains the rows that are not as expected.
func (r *Report) problems() string {
	var b strings.Builder
	for _, way := range r.Ways {
		if way.AsItMust {
			continue
		}
		fmt.Fprintf(&b, "WRONG: %s, %s to %s:", way.Kind, way.From, way.To)
		if way.Seen != way.Source {
			fmt.Fprintf(&b, " the source seen is %s, not %s;", address(way.Seen), way.Source)
		}
		if way.Name != "" {
			fmt.Fprintf(&b, " DNS %s;", way.DNS.tally())
		}
		fmt.Fprintf(&b, " HTTP %s", way.HTTP.tally())
		if way.To.kind != service {
			fmt.Fprintf(&b, "; ICMP %s", way.Ping.tally())
		}
		b.WriteString("\n")
	}
	for i := range r.Judged {
		b.WriteString(r.Judged[i].problem())
	}
	for _, t := range r.Tricks {
		if t.AsItMust {
			continue
		}
		fmt.Fprintf(&b, "WRONG: %s, from %s: %d of %d frames arrived; the honest frame after them (%s): %s\n",
			t.Kind, t.From, t.Arrived, t.Sent, t.ControlName, arrived(t.Control))
		for _, e := range t.Examples {
			fmt.Fprintf(&b, "       %s\n", e)
		}
	}
	return b.String()
}

// String returns the party as text for tables.
func (p Party) String() string {
	if p.kind == pod {
		return fmt.Sprintf("%s %s (%s)", p.Name, p.IP, p.Node)
	}
	return fmt.Sprintf("%s %s", p.Name, p.IP)
}

// String returns the median, or the number of answered exchanges if some were not.
func (m Measured) String() string {
	switch {
	case m.Answered == 0:
		return "-"
	case m.Answered < m.Sent:
		return fmt.Sprintf("%d of %d", m.Answered, m.Sent)
	}
	return fmt.Sprintf("%.2f ms", float64(m.Median)/float64(time.Millisecond))
}

// tally returns the number of answered exchanges, and the error of the first that was not.
func (m Measured) tally() string {
	text := fmt.Sprintf("%d of %d", m.Answered, m.Sent)
	if m.Problem != "" {
		text += " (" + m.Problem + ")"
	}
	return text
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
	return "lost"
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
