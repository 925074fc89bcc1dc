package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
)

// scope is the namespaces whose pods a set may contain.
type scope struct {
	scopeKey
	// selector selects the namespaces, if the scope has a selector. needsLabel says that the selector requires a label to exist.
	selector   Selector
	needsLabel bool
	sets       seekers[*set]
}

// scopeKey identifies a scope: the name of one namespace, or the text of a namespace selector.
type scopeKey struct {
	kind scopeKind
	name string
}

type scopeKind uint8

const (
	oneNamespace scopeKind = iota
	someNamespaces
	// allNamespaces includes namespaces without an object.
	allNamespaces
)

// set is a set of pods that rules name.
type set struct {
	name  string
	scope *scope
	pods  Selector
	// within limits it to the addresses in these prefixes; nil: no limit.
	within []netip.Prefix
	// plain counts the rules that name the set whole; splits are its parts by a named port.
	plain  int
	splits map[NamedPort]*split
	// isolates counts the policies that isolate the set's pods, per Direction.
	isolates [directions]int
	// keeps counts those of them that keep established connections.
	keeps [directions]int
	// policies are those that isolate the set's pods, in any direction.
	policies map[Key]struct{}
}

// split is the parts of a set by the numbers that a named port has in its pods.
type split struct {
	set  *set
	port NamedPort
	// numbers counts the pods that have each.
	numbers map[uint16]int
	// users counts for each policy the rules that name parts.
	users map[Key]int
}

// view is what the name of a set means: the whole set, or with a number the part that has this number for the named port.
type view struct {
	set    *set
	port   NamedPort
	number uint16
}

func (v view) name() SetName {
	if v.number == 0 {
		return shorten(v.set.name)
	}
	return shorten(v.set.name + " port " + v.port.String() + "=" + decimal(v.number))
}

// longestName is the length beyond which names are cut and distinguished by a hash: selectors may be as long as an object.
const longestName = 200

func shorten(name string) SetName {
	if len(name) <= longestName {
		return SetName(name)
	}
	sum := sha256.Sum256([]byte(name))
	return SetName(name[:longestName/2] + "... #" + hex.EncodeToString(sum[:16])) // no label has a #
}

func setName(scope scopeKey, pods Selector, within []netip.Prefix) string {
	name := "pods " + scope.name + "/" + pods.String()
	if within == nil {
		return name
	}
	texts := make([]string, len(within))
	for i, p := range within {
		texts[i] = p.String()
	}
	return name + " in " + strings.Join(texts, ",")
}

// covers reports whether pods of a namespace may be in the scope.
func (c *scope) covers(s *space) bool {
	switch c.kind {
	case oneNamespace:
		return c.name == s.name
	case someNamespaces:
		return s.known && c.selector.Matches(s.labels)
	default:
		return true
	}
}

// has reports whether the set includes the pod address ip.
func (s *set) has(ip netip.Addr) bool {
	if s.within == nil {
		return true
	}
	// Prefixes are sorted and disjoint: only the last one that does not begin after ip can contain it.
	i, found := slices.BinarySearchFunc(s.within, ip, func(p netip.Prefix, ip netip.Addr) int { return p.Addr().Compare(ip) })
	return found || i > 0 && s.within[i-1].Contains(ip)
}

// holds reports whether a selected pod is in the set: always, unless only some addresses count. A node is not in a set whose scope
// requires no label: traffic from nodes may be from outside.
func (s *set) holds(p *Pod) bool {
	if p.IsNode && !s.scope.needsLabel {
		return false
	}
	return s.within == nil || slices.ContainsFunc(p.Addresses, s.has)
}

// has reports whether a pod that the set selects is in the view.
func (v view) has(p *Pod) bool {
	return v.set.holds(p) && (v.number == 0 || slices.Contains(v.port.numbers(p), v.number))
}

// numbers returns the numbers of a named port in a pod, sorted; several if containers disagree. A pod without an address has none: it
// would only split sets.
func (n NamedPort) numbers(p *Pod) []uint16 {
	var list []uint16
	if len(p.Addresses) == 0 {
		return nil
	}
	for _, c := range p.Ports {
		if c.NamedPort == n {
			list = append(list, c.Number)
		}
	}
	return list
}
