package nft

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// namePattern is the form of an identifier in nft's grammar, without the slash and dots that would need quoting.
//
//nolint:gochecknoglobals // a constant pattern
var namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// nameMax limits an identifier. As a length in the pattern it would take half a millisecond to compile, at each start of each command.
const nameMax = 128

func validName(name string) bool { return len(name) <= nameMax && namePattern.MatchString(name) }

// commentMax is the maximum length of a comment in nft, in bytes (NFTNL_UDATA_COMMENT_MAXLEN is 128 with the final zero).
const commentMax = 127

// Validate rejects text that could end one operation and begin another in nft's input, and what nft would reject with a less clear message.
func Validate(item Item) error {
	key := item.Key()
	if !validName(key.Table) {
		return fmt.Errorf("invalid table name %q", key.Table)
	}
	switch item := item.(type) {
	case *Chain:
		if item.Hook == "" && (item.Type != "" || item.Device != "" || item.Policy != "") {
			return fmt.Errorf("type, device and policy are for base chains")
		}
		return validNames(item.Name)
	case *ChainRules:
		return validRules(item)
	case *Set:
		return validNames(item.Name)
	case *Map:
		return validNames(item.Name)
	case *Element:
		return validElement(item)
	case *ForeignJump:
		return validJump(item)
	}
	return nil
}

func validRules(item *ChainRules) error {
	for i, rule := range item.Rules {
		if err := validText(rule.Text); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
		if err := validComment(rule.Owner); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return validNames(item.Chain)
}

func validElement(item *Element) error {
	for _, text := range slices.Concat(item.Match, item.Value) {
		if err := validText(text); err != nil || strings.ContainsAny(text, `"{},`) {
			return fmt.Errorf("invalid element %q", text)
		}
	}
	if err := validComment(item.Owner); err != nil {
		return err
	}
	return validNames(item.Set)
}

func validJump(item *ForeignJump) error {
	if item.Empty() {
		return fmt.Errorf("neither a device nor a range nor a port is given")
	}
	for _, r := range []netip.Prefix{item.Source, item.Destination} {
		if r.IsValid() && (r != r.Masked() || r.Bits() == 0 || !familyHas(item.Family, r)) {
			return fmt.Errorf("range %s does not fit a chain of family %s", r, item.Family)
		}
	}
	for _, device := range []string{item.InDevice, item.OutDevice} {
		if len(device) > 15 || strings.ContainsAny(device, "\"\\ \t\n*/") {
			return fmt.Errorf("invalid device name %q", device)
		}
	}
	if err := validComment(Mark + " " + item.Owner); err != nil {
		return err
	}
	return validNames(item.Chain)
}

// familyHas reports whether packets with such addresses reach chains of a family.
func familyHas(family Family, r netip.Prefix) bool {
	return family == FamilyInet || (family == FamilyIPv4) == r.Addr().Is4()
}

func validNames(name string) error {
	if !validName(name) {
		return fmt.Errorf("invalid name %q", name)
	}
	if name == StateSet {
		return fmt.Errorf("%q is the engine's own", name)
	}
	return nil
}

func validText(text string) error {
	if text == "" || strings.ContainsAny(text, "\n\r;#\x00") {
		return fmt.Errorf("%q is empty or has a line break, semicolon or hash", text)
	}
	return nil
}

func validComment(text string) error {
	if len(text) > commentMax || strings.ContainsAny(text, "\"\\\n\r\x00") {
		return fmt.Errorf("comment %q is longer than %d bytes or has quotes, backslashes or line breaks", text, commentMax)
	}
	for _, r := range text {
		if r < ' ' || r > '~' {
			return fmt.Errorf("comment %q has characters other than printable ASCII", text)
		}
	}
	return nil
}
