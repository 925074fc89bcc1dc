package ovsdb

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"weft.dev/weft/internal/ovsdb/confdb"
)

// Limits of accepted values. Values come from objects that tenants write, and the database keeps every byte in the memory of two daemons.
const (
	maxName     = 15    // IFNAMSIZ - 1, linux/if.h
	maxOFPort   = 65279 // 0xfeff, the highest port number that Interface.ofport_request takes
	maxKey      = 128   // longest key of a map column
	maxValue    = 1024  // longest value of a map column
	maxEntries  = 64    // most entries of a map column
	minMTU      = 68    // RFC 791
	maxMTU      = 65535
	maxPolicing = 1 << 40 // kbit/s or kbit; keeps sums within an OVSDB integer
)

// ValidName returns an error unless name is valid for a link, a port or a bridge: 1 to 15 letters, digits, dots, dashes and underscores,
// beginning with a letter or a digit. That is stricter than the kernel and the switch, so that no tool mistakes a name for an option, a
// path or a wildcard.
func ValidName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%w: name %.32q has %d bytes, want 1 to %d", ErrInvalid, name, len(name), maxName)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !alnum && (i == 0 || !strings.ContainsRune(".-_", rune(c))) {
			return fmt.Errorf("%w: name %q has %q at byte %d", ErrInvalid, name, c, i)
		}
	}
	return nil
}

// Validate implements Row.
func (b *Bridge) Validate() error {
	if err := ValidName(b.Name); err != nil {
		return err
	}
	if err := oneOf("datapath_type", b.DatapathType, "", DatapathSystem, DatapathNetdev); err != nil {
		return err
	}
	if err := oneOf("fail_mode", b.FailMode, "", "secure", "standalone"); err != nil {
		return err
	}
	if b.Controllers != 0 {
		return fmt.Errorf("controllers: %d: a bridge of Weft's has none", b.Controllers)
	}
	for _, p := range b.Protocols {
		if err := oneOf("protocols", p, "OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14",
			"OpenFlow15"); err != nil {
			return err
		}
	}
	if mac, ok := b.OtherConfig["hwaddr"]; ok {
		if err := validMAC("other_config:hwaddr", mac); err != nil {
			return err
		}
	}
	if err := validMap("other_config", b.OtherConfig); err != nil {
		return err
	}
	return validMap("external_ids", b.ExternalIDs)
}

// Validate implements Row.
func (p *Port) Validate() error {
	if err := ValidName(p.Name); err != nil {
		return err
	}
	if err := ValidName(p.Bridge); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if p.Name == p.Bridge {
		return fmt.Errorf("%w: %q is the local port of its bridge, which is made with the bridge", ErrInvalid, p.Name)
	}
	if err := oneOf("type", p.Type, TypeLink, TypeInternal, TypeVXLAN, TypeGeneve, TypePatch); err != nil {
		return err
	}
	if p.OFPort > maxOFPort {
		return fmt.Errorf("%w: ofport_request %d is over %d", ErrInvalid, p.OFPort, maxOFPort)
	}
	if p.MAC != "" {
		if err := validMAC("mac", p.MAC); err != nil {
			return err
		}
	}
	if p.MTURequest != 0 && (p.MTURequest < minMTU || p.MTURequest > maxMTU) {
		return fmt.Errorf("%w: mtu_request %d, want %d to %d", ErrInvalid, p.MTURequest, minMTU, maxMTU)
	}
	for _, v := range []int{p.IngressRate, p.IngressBurst} {
		if v < 0 || v > maxPolicing {
			return fmt.Errorf("%w: ingress policing of %d, want 0 to %d", ErrInvalid, v, maxPolicing)
		}
	}
	if err := validMap("options", p.Options); err != nil {
		return err
	}
	return validMap("external_ids", p.ExternalIDs)
}

func oneOf(column, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%w: %s %.64q is none of %q", ErrInvalid, column, value, allowed)
}

// validMAC accepts only the form that the switch reads and writes, so that the value read back compares equal.
func validMAC(column, value string) error {
	mac, err := net.ParseMAC(value)
	if err != nil || len(mac) != 6 || mac.String() != value {
		return fmt.Errorf("%w: %s %.64q is not of the form 0a:58:0a:80:00:01", ErrInvalid, column, value)
	}
	if mac[0]&1 != 0 {
		return fmt.Errorf("%w: %s %q is a multicast address", ErrInvalid, column, value)
	}
	return nil
}

func validMap(column string, m map[string]string) error {
	if len(m) > maxEntries {
		return fmt.Errorf("%w: %s has %d entries, at most %d", ErrInvalid, column, len(m), maxEntries)
	}
	for k, v := range m {
		switch {
		case k == "" || len(k) > maxKey || !printable(k):
			return fmt.Errorf("%w: %s has the key %.64q", ErrInvalid, column, k)
		case len(v) > maxValue || !printable(v):
			return fmt.Errorf("%w: %s:%s has the value %.64q", ErrInvalid, column, k, v)
		case column == "external_ids" && confdb.KeptByOVN(k):
			return fmt.Errorf("%w: external_ids:%s is for OVN to write", ErrInvalid, k)
		}
	}
	return nil
}

func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
