package clusternetwork

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// parser collects errors while fields are parsed; an invalid field results in a zero value.
type parser struct {
	errs field.ErrorList
}

// prefix parses an IPv4 range in canonical form.
func (p *parser) prefix(path *field.Path, text string) netip.Prefix {
	prefix, err := ParsePrefix(text)
	if err != nil {
		p.errs = append(p.errs, field.Invalid(path, bounded(text), err.Error()))
	}
	return prefix
}

// address parses an IPv4 address that can be the source of packets on the network.
func (p *parser) address(path *field.Path, text string) netip.Addr {
	addr, err := netip.ParseAddr(text)
	switch {
	case text == "":
		p.errs = append(p.errs, field.Required(path, "give an IPv4 address, such as 192.0.2.10"))
	case err != nil || !addr.Is4():
		p.errs = append(p.errs, field.Invalid(path, bounded(text), "must be an IPv4 address, such as 192.0.2.10, without leading zeros"))
	case !addr.IsGlobalUnicast():
		p.errs = append(p.errs, field.Invalid(path, text, "must be an address that other nodes can reach"))
	default:
		return addr
	}
	return netip.Addr{}
}

// hostBits checks the number of host bits of the subnets of a range.
func (p *parser) hostBits(path *field.Path, cidr string, bits uint32) int {
	const least, most = 2, 30
	limit := uint32(most)
	if prefix, err := netip.ParsePrefix(cidr); err == nil && prefix.Addr().Is4() {
		limit = min(most, uint32(32-prefix.Bits())) //nolint:gosec // 0..32
	}
	switch {
	case limit < least:
		p.errs = append(p.errs, field.Invalid(path, bits, "range "+bounded(cidr)+" is too small for any subnet: give a /30 or larger"))
	case bits < least || bits > limit:
		p.errs = append(p.errs, field.Invalid(path, bits,
			fmt.Sprintf("must be %d to %d: subnets with fewer hold no pod, with more do not fit in %s", least, limit, bounded(cidr))))
	default:
		return int(bits)
	}
	return 0
}

// ParsePrefix parses an IPv4 range in canonical form: no leading zeros, no bits set to the right of the prefix. Its errors describe a valid
// value.
func ParsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case text == "":
		return netip.Prefix{}, errors.New("must be an IPv4 range, such as 10.128.0.0/14")
	case err != nil || !prefix.Addr().Is4():
		return netip.Prefix{}, errors.New("must be an IPv4 range, such as 10.128.0.0/14, without leading zeros")
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("has bits set after its prefix: write %s", prefix.Masked())
	}
	return prefix, nil
}

// bounded returns text short enough for an error message: objects may be hostile.
func bounded(text string) string {
	const longest = 64
	if len(text) > longest {
		return text[:longest] + "…"
	}
	return text
}

// FirstNames returns the first names, and the number of the others, as text.
func FirstNames(names []string, most int) string {
	text := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
