package losses

import "strings"

// Scope says which pairs must lose no packet in a fault. Pairs have the names of their nodes, as in "n1 to n2".
type Scope string

// Scopes.
const (
	All      Scope = "all"
	Far      Scope = "n2 to n2" // events on n1 must not affect pods that talk on n2
	Local    Scope = "within nodes"
	None     Scope = "none"
	Untested Scope = ""
)

// Covers reports whether a pair must lose nothing.
func (s Scope) Covers(pair string) bool {
	switch s {
	case All:
		return true
	case Far:
		return pair == "n2 to n2"
	case Local:
		from, to, _ := strings.Cut(pair, " to ")
		return from == to
	}
	return false
}
