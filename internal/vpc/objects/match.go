package objects

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Limits of a match.
const (
	maxMatch = 4096
	maxDepth = 32
)

// kind is the kind of constant that a field of OVN's language is compared with.
type kind int

const (
	predicate kind = iota // compared with nothing
	number
	ip4Address
	ip6Address
	macAddress
	portName
)

// CheckMatch returns why the text is not a match in OVN's language (ovn-sb(5), Logical_Flow, match) that ovn-controller can compile, nil if
// it is. A flow that ovn-controller cannot compile is not installed, so that a dropping rule would not drop. Allowed fields are those of
// packets and of conntrack; registers, address sets, port groups and functions are refused.
func CheckMatch(text string) error {
	if len(text) > maxMatch {
		return fmt.Errorf("a match has at most %d characters", maxMatch)
	}
	tokens, err := lex(text)
	if err != nil {
		return err
	}
	p := &parser{tokens: tokens}
	if err := p.expression(0); err != nil {
		return err
	}
	if !p.done() {
		return fmt.Errorf("%s is not expected", quote(p.peek()))
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
func (p *parser) expression(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("parentheses are more than %d deep", maxDepth)
	}
	if err := p.term(depth); err != nil {
		return err
	}
	operator := p.peek()
	if operator != "&&" && operator != "||" {
		return nil
	}
	for p.take(operator) {
		if err := p.term(depth); err != nil {
			return err
		}
	}
	if next := p.peek(); next == "&&" || next == "||" {
		return errors.New("&& and || need parentheses when they are used together")
	}
	return nil
}

func (p *parser) term(depth int) error {
	switch {
	case p.done():
		return errors.New("ends where a comparison is expected")
	case p.take("!"):
		if p.peek() != "(" {
			if k, ok := field(p.peek()); !ok || k != predicate {
				return errors.New("! needs parentheses, or a name such as tcp, after it")
			}
		}
		return p.term(depth)
	case p.take("("):
		if err := p.expression(depth + 1); err != nil {
			return err
		}
		if !p.take(")") {
			return errors.New("a parenthesis is not closed")
		}
		return nil
	case p.take("0"), p.take("1"):
		return nil
	default:
		return p.comparison()
	}
}

// comparison reads "field", or "field operator constant".
func (p *parser) comparison() error {
	name := p.peek()
	k, ok := field(name)
	if !ok {
		return fmt.Errorf("%s is not a field; write one such as ip4.src, tcp.dst or inport", quote(name))
	}
	p.at++
	if k == predicate {
		return nil
	}
	operator := p.peek()
	switch operator {
	case "==", "!=":
	case "<", "<=", ">", ">=":
		if k != number {
			return fmt.Errorf("%s can be compared with == and != only", name)
		}
	default:
		return fmt.Errorf("%s needs a comparison, such as %s == value", name, name)
	}
	p.at++
	if !p.take("{") {
		return p.constant(name, k)
	}
	if operator != "==" && operator != "!=" {
		return fmt.Errorf("a set can be compared with == and != only, not with %s", operator)
	}
	for {
		if err := p.constant(name, k); err != nil {
			return err
		}
		if p.take("}") {
			return nil
		}
		if !p.take(",") {
			return errors.New("the constants of a set are separated by commas, and the set ends with }")
		}
	}
}

func (p *parser) constant(name string, k kind) error {
	text := p.peek()
	p.at = min(p.at+1, len(p.tokens))
	var ok bool
	switch k {
	case ip4Address, ip6Address:
		ok = isAddress(text, k == ip4Address)
	case macAddress:
		mac, err := net.ParseMAC(text)
		ok = err == nil && len(mac) == 6 && strings.Contains(text, ":")
	case portName:
		ok = len(text) > 2 && text[0] == '"' && !strings.Contains(text, `\`)
	case number:
		ok = isNumber(text, width(name))
	case predicate:
	}
	if !ok {
		return fmt.Errorf("%s is not a value of %s", quote(text), name)
	}
	return nil
}

// isAddress reports whether the text is an address, or a range without bits outside its prefix.
func isAddress(text string, is4 bool) bool {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix == prefix.Masked() && prefix.Addr().Is4() == is4 && !prefix.Addr().Is4In6()
	}
	addr, err := netip.ParseAddr(text)
	return err == nil && addr.Is4() == is4 && !addr.Is4In6() && addr.Zone() == ""
}

// isNumber reports whether the text is a number of that many bits, with or without a mask.
func isNumber(text string, bits int) bool {
	value, mask, masked := strings.Cut(text, "/")
	n, err := parseNumber(value, bits)
	if err != nil || !masked {
		return err == nil
	}
	m, err := parseNumber(mask, bits)
	return err == nil && n&^m == 0
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

// field returns the kind of a name in OVN's language.
func field(name string) (kind, bool) {
	switch name {
	case "ip", "ip4", "ip6", "icmp", "icmp4", "icmp6", "tcp", "udp", "sctp", "arp", "nd", "nd_ns", "nd_na", "igmp",
		"eth.bcast", "eth.mcast", "ip4.mcast", "ip6.mcast", "ip.is_frag", "ip.later_frag", "ip.first_frag", "vlan.present",
		"ct.trk", "ct.new", "ct.est", "ct.rel", "ct.rpl", "ct.inv":
		return predicate, true
	case "ip4.src", "ip4.dst", "arp.spa", "arp.tpa":
		return ip4Address, true
	case "ip6.src", "ip6.dst", "nd.target":
		return ip6Address, true
	case "eth.src", "eth.dst", "arp.sha", "arp.tha", "nd.sll", "nd.tll":
		return macAddress, true
	case "inport", "outport":
		return portName, true
	}
	if width(name) > 0 {
		return number, true
	}
	return predicate, false
}

// width returns the number of bits of a field that is a number, 0 for other names.
func width(name string) int {
	switch name {
	case "eth.type", "arp.op", "tcp.src", "tcp.dst", "udp.src", "udp.dst", "sctp.src", "sctp.dst":
		return 16
	case "tcp.flags", "vlan.vid":
		return 12
	case "ip.proto", "ip.ttl", "icmp4.type", "icmp4.code", "icmp6.type", "icmp6.code":
		return 8
	case "ip.dscp":
		return 6
	case "vlan.pcp":
		return 3
	case "ip.ecn":
		return 2
	default:
		return 0
	}
}
