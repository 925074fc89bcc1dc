package objects

import (
	"fmt"
	"net/netip"
	"strings"
)

// maxQuoted limits how much of a field's value an error quotes.
const maxQuoted = 64

// Problem is an invalid field.
type Problem struct {
	// Field is the path of the field, such as spec.staticRoutes[2].nextHopIP.
	Field string
	// Text says what is wrong, and what would be valid.
	Text string
}

// Error implements error.
func (p Problem) Error() string { return p.Field + ": " + p.Text }

// Problems are those of one object.
type Problems []Problem

// Error implements error: all problems, the first ten in words.
func (p Problems) Error() string {
	const most = 10
	words := make([]string, 0, most)
	for i, problem := range p {
		if i == most {
			words = append(words, fmt.Sprintf("and %d more", len(p)-most))
			break
		}
		words = append(words, problem.Error())
	}
	return strings.Join(words, "; ")
}

// Err returns the problems as an error, nil if there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

func (p *Problems) add(field, format string, args ...any) {
	*p = append(*p, Problem{Field: field, Text: fmt.Sprintf(format, args...)})
}

// quote returns a user's text for an error: quoted, with unprintable characters escaped, and limited in length.
func quote(text string) string {
	if len(text) > maxQuoted {
		return fmt.Sprintf("%q...", text[:maxQuoted])
	}
	return fmt.Sprintf("%q", text)
}

// addr4 reads an IPv4 address.
func (p *Problems) addr4(field, text, example string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(strings.TrimSpace(text))
	switch {
	case err != nil:
		p.add(field, "%s is not an address; write one such as %s", quote(text), example)
	case !addr.Is4():
		p.add(field, "%s is not an IPv4 address, and IPv6 is not served; write one such as %s", quote(text), example)
	default:
		return addr, true
	}
	return netip.Addr{}, false
}

// prefix4 reads an IPv4 range, or an address as a range of one address. The range's host bits are cleared.
func (p *Problems) prefix4(field, text, example string) (netip.Prefix, bool) {
	text = strings.TrimSpace(text)
	if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() {
		return netip.PrefixFrom(addr, 32), true
	}
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		p.add(field, "%s is not a range; write one such as %s", quote(text), example)
	case !prefix.Addr().Is4():
		p.add(field, "%s is not an IPv4 range, and IPv6 is not served; write one such as %s", quote(text), example)
	default:
		return prefix.Masked(), true
	}
	return netip.Prefix{}, false
}
