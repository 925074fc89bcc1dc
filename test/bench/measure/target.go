package measure

import "fmt"

// Target is a row's target: a limit for the ratio or for our own figure. The zero Target is no limit.
type Target struct {
	kind  string // "", ratio or ours
	op    string // <= or >=
	limit float64
	goal  float64 // stricter than the limit; 0: none
}

// RatioAtMost requires ours to be at most limit times the peer's, for metrics where less is better.
func RatioAtMost(limit float64) Target { return Target{kind: "ratio", op: "<=", limit: limit} }

// RatioAtLeast requires ours to be at least limit times the peer's, for metrics where more is better.
func RatioAtLeast(limit float64) Target { return Target{kind: "ratio", op: ">=", limit: limit} }

// AtMost limits our own figure.
func AtMost(limit float64) Target { return Target{kind: "ours", op: "<=", limit: limit} }

// Goal sets a goal that is stricter than the limit. It is printed, and missing it is no failure.
func (t Target) Goal(goal float64) Target {
	t.goal = goal
	return t
}

// String returns the target as text, such as "ratio <= 1 (goal 0.6)".
func (t Target) String() string {
	if t.kind == "" {
		return ""
	}
	text := fmt.Sprintf("%s %s %g", t.kind, t.op, t.limit)
	if t.goal != 0 {
		text += fmt.Sprintf(" (goal %g)", t.goal)
	}
	return text
}

func (t Target) met(r Result) bool {
	value := r.Ratio
	if t.kind == "ours" {
		value = r.Ours
	}
	switch t.op {
	case "<=":
		return value <= t.limit
	case ">=":
		return value >= t.limit
	}
	return true
}
