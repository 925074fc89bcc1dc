package objects

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Limits of a match.
const (
	maxMatch = 4096
	maxDepth = 32
	// maxFlows is more flows than a match of maxMatch characters that lists values can need, and enough to exclude the three private
	// ranges of IPv4 with != (8*12*16).
	maxFlows = 2048
)

// CheckMatch returns why the text is not a match in OVN's language (ovn-sb(5), Logical_Flow, match) that ovn-controller can compile, nil if
// it is. A flow that ovn-controller cannot compile is not installed, so that a dropping rule would not drop. Allowed fields are those of
// packets and of conntrack; registers, address sets, port groups and functions are refused. So is a match that ovn-controller compiles to
// more than maxFlows flows, because every node of the VPC would do that.
func CheckMatch(text string) error {
	if len(text) > maxMatch {
		return fmt.Errorf("a match has at most %d characters", maxMatch)
	}
	tokens, err := lex(text)
	if err != nil {
		return err
	}
	p := &parser{tokens: tokens}
	e, err := p.expression(0)
	if err != nil {
		return err
	}
	if !p.done() {
		return fmt.Errorf("%s is not expected", quote(p.peek()))
	}
	return e.check()
}

// CheckPorts returns why a valid match is without effect: it names a port that cannot exist. Names of logical ports have a slash. example is a
// port that can exist.
func CheckPorts(text, example string) error {
	tokens, err := lex(text)
	if err != nil {
		return err
	}
	for _, token := range tokens {
		if token[0] == '"' && !strings.Contains(token, "/") {
			return fmt.Errorf(`there is no logical port %s; write one such as %q`, token, example)
		}
	}
	return nil
}

// lex splits a match into tokens. A string is one token with its quotes.
func lex(text string) ([]string, error) {
	var tokens []string
	for at := 0; at < len(text); {
		c := text[at]
		switch {
		case c == ' ' || c == '\t':
			at++
			continue
		case c < ' ' || c > '~':
			return nil, fmt.Errorf("the character %q is not allowed", text[at:at+1])
		}
		end := at + tokenLength(text[at:])
		if end == at {
			return nil, fmt.Errorf("%q is not expected", text[at:at+1])
		}
		tokens = append(tokens, text[at:end])
		at = end
	}
	if len(tokens) == 0 {
		return nil, errors.New("is empty; write one such as ip4.src == 10.0.1.0/24")
	}
	return tokens, nil
}

// tokenLength returns the length of the token that the text begins with, 0 if it begins with none.
func tokenLength(text string) int {
	for _, operator := range []string{"&&", "||", "==", "!=", "<=", ">=", "<", ">", "(", ")", "{", "}", ",", "!"} {
		if strings.HasPrefix(text, operator) {
			return len(operator)
		}
	}
	if text[0] == '"' {
		return strings.IndexByte(text[1:], '"') + 2 // without a second quote, the first one alone
	}
	for i := range len(text) {
		if c := text[i]; c != '.' && c != ':' && c != '/' && c != '_' && !isAlphanumeric(c) {
			return i
		}
	}
	return len(text)
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

type parser struct {
	tokens []string
	at     int
	not    bool // inside an odd number of !
}

func (p *parser) done() bool { return p.at == len(p.tokens) }

// peek returns the next token, empty at the end.
func (p *parser) peek() string {
	if p.done() {
		return ""
	}
	return p.tokens[p.at]
}

// take consumes the next token if it is the one given.
func (p *parser) take(token string) bool {
	if p.done() || p.tokens[p.at] != token {
		return false
	}
	p.at++
	return true
}

// expression parses terms joined by one operator. OVN allows && and || together only with parentheses.
func (p *parser) expression(depth int) (expansion, error) {
	if depth > maxDepth {
		return expansion{}, fmt.Errorf("parentheses are more than %d deep", maxDepth)
	}
	first, err := p.term(depth)
	operator := p.peek()
	if err != nil || operator != "&&" && operator != "||" {
		return first, err
	}
	parts := []expansion{first}
	for p.take(operator) {
		part, err := p.term(depth)
		if err != nil {
			return expansion{}, err
		}
		parts = append(parts, part)
	}
	if next := p.peek(); next == "&&" || next == "||" {
		return expansion{}, errors.New("&& and || need parentheses when they are used together")
	}
	if (operator == "&&") != p.not {
		return allOf(parts), nil
	}
	return anyOf(parts), nil
}

func (p *parser) term(depth int) (expansion, error) {
	switch {
	case p.done():
		return expansion{}, errors.New("ends where a comparison is expected")
	case p.take("!"):
		if s, ok := symbolOf(p.peek()); p.peek() != "(" && (!ok || s.kind != predicate) {
			return expansion{}, errors.New("! needs parentheses, or a name such as ct.est, after it")
		}
		p.not = !p.not
		e, err := p.term(depth)
		p.not = !p.not
		return e, err
	case p.take("("):
		e, err := p.expression(depth + 1)
		if err == nil && !p.take(")") {
			err = errors.New("a parenthesis is not closed")
		}
		return e, err
	case p.take("0"):
		return constantly(p.not), nil
	case p.take("1"):
		return constantly(!p.not), nil
	default:
		return p.comparison()
	}
}

// comparison reads "field", or "field operator constant".
func (p *parser) comparison() (expansion, error) {
	name := p.peek()
	s, ok := symbolOf(name)
	if !ok {
		return expansion{}, fmt.Errorf("%s is not a field; write one such as ip4.src, tcp.dst or inport", quote(name))
	}
	p.at++
	if s.kind == predicate {
		if s.nominal && p.not {
			return expansion{}, fmt.Errorf("%s cannot be negated in OVN; name what matches instead, as in udp || icmp, "+
				"or except it by a rule of higher priority", name)
		}
		return predicateFlows(name, p.not), nil
	}
	operator := p.peek()
	if err := p.checkOperator(name, s, operator); err != nil {
		return expansion{}, err
	}
	p.at++
	values, err := p.values(name, s, operator)
	if err != nil {
		return expansion{}, err
	}
	if p.not {
		operator = inverse(operator)
	}
	return comparisonFlows(name, s, operator, values), nil
}

// checkOperator checks the operator of a comparison. OVN tests a nominal field for equality only: != is allowed where a ! turns it into ==.
func (p *parser) checkOperator(name string, s symbol, operator string) error {
	switch {
	case operator != "==" && operator != "!=" && !s.ordered(operator):
		return fmt.Errorf("%s needs a comparison, such as %s == value", name, name)
	case s.nominal && s.ordered(operator):
		return fmt.Errorf("%s has no order in OVN; list the values that match, as in %s == {..., ...}", name, name)
	case s.nominal && (operator == "!=") != p.not:
		return fmt.Errorf("%s can be tested for equality only in OVN, taking ! into account; list the values that match, as in "+
			"%s == {..., ...}, or except the others by a rule of higher priority", name, name)
	case s.kind != number && s.ordered(operator):
		return fmt.Errorf("%s can be compared with == and != only", name)
	}
	return nil
}

// values reads what follows an operator: a constant, or a set.
func (p *parser) values(name string, s symbol, operator string) ([]constant, error) {
	set := p.take("{")
	if set && s.ordered(operator) {
		return nil, fmt.Errorf("a set can be compared with == and != only, not with %s", operator)
	}
	if set {
		return p.set(name, s)
	}
	value, err := p.constant(name, s)
	if err == nil && value.masked && s.ordered(operator) {
		err = fmt.Errorf("a value with a mask can be compared with == and != only, not with %s", operator)
	}
	return []constant{value}, err
}

// set reads the constants of a set whose first brace has been read.
func (p *parser) set(name string, s symbol) ([]constant, error) {
	var values []constant
	for {
		value, err := p.constant(name, s)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
		if p.take("}") {
			return values, nil
		}
		if !p.take(",") {
			return nil, errors.New("the constants of a set are separated by commas, and the set ends with }")
		}
	}
}

// constant is a value that a field is compared with.
type constant struct {
	number uint64 // of a number
	bits   int    // how many bits of the field are compared
	masked bool
}

func (p *parser) constant(name string, s symbol) (constant, error) {
	text := p.peek()
	p.at = min(p.at+1, len(p.tokens))
	value := constant{bits: s.bits}
	var ok bool
	switch s.kind {
	case ip4Address, ip6Address:
		value, ok = address(text, s)
	case macAddress:
		mac, err := net.ParseMAC(text)
		ok = err == nil && len(mac) == 6 && strings.Contains(text, ":")
	case portName:
		ok = len(text) > 2 && text[0] == '"' && !strings.Contains(text, `\`)
	case number:
		value, ok = integer(text, s.bits)
		switch {
		case ok && value.masked && s.nominal:
			return value, fmt.Errorf("%s takes no mask in OVN; list the values that match, as in %s == {..., ...}", name, name)
		case ok && value.masked && !sameFormat(text):
			return value, fmt.Errorf("%s: write value and mask both in decimal or both in hexadecimal, as in 0x2/0x12", quote(text))
		}
	case predicate:
	}
	if !ok {
		return value, fmt.Errorf("%s is not a value of %s", quote(text), name)
	}
	return value, nil
}

// address parses an address, or a range without bits outside its prefix.
func address(text string, s symbol) (constant, bool) {
	prefix, err := netip.ParsePrefix(text)
	masked := err == nil
	if !masked {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return constant{}, false
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	ok := prefix == prefix.Masked() && prefix.Addr().Is4() == (s.kind == ip4Address) && !prefix.Addr().Is4In6()
	return constant{bits: prefix.Bits(), masked: masked}, ok
}

// integer parses a number of that many bits, with or without a mask.
func integer(text string, width int) (constant, bool) {
	value, mask, masked := strings.Cut(text, "/")
	n, err := parseNumber(value, width)
	if err != nil || !masked {
		return constant{number: n, bits: width}, err == nil
	}
	m, err := parseNumber(mask, width)
	return constant{number: n, bits: bits.OnesCount64(m), masked: true}, err == nil && n&^m == 0
}

// sameFormat reports whether OVN takes the number with its mask: both in one format, or 0 with a hexadecimal mask.
func sameFormat(text string) bool {
	value, mask, _ := strings.Cut(text, "/")
	return strings.HasPrefix(value, "0x") == strings.HasPrefix(mask, "0x") || value == "0"
}

// parseNumber parses a decimal or hexadecimal number. OVN does not allow leading zeros.
func parseNumber(text string, bits int) (uint64, error) {
	if hex, ok := strings.CutPrefix(text, "0x"); ok {
		return strconv.ParseUint(hex, 16, bits)
	}
	if len(text) > 1 && text[0] == '0' {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(text, 10, bits)
}
