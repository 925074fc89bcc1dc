package netconf

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Parse parses a configuration. The error has all problems, one per line.
func Parse(text []byte) (Config, error) {
	o, err := parseObject("", text)
	if err != nil {
		return Config{}, err
	}
	c := Config{EnableIPv4: true}
	o.boolean("EnableIPv4", &c.EnableIPv4)
	o.boolean("EnableIPv6", &c.EnableIPv6)
	o.boolean("EnableNFTables", &c.EnableNFTables)
	o.prefix("Network", bits4, &c.Network)
	o.prefix("IPv6Network", bits6, &c.IPv6Network)
	o.number("SubnetLen", 0, bits4, &c.Subnets4.Len)
	o.number("IPv6SubnetLen", 0, bits6, &c.Subnets6.Len)
	o.address("SubnetMin", bits4, &c.Subnets4.Min)
	o.address("SubnetMax", bits4, &c.Subnets4.Max)
	o.address("IPv6SubnetMin", bits6, &c.Subnets6.Min)
	o.address("IPv6SubnetMax", bits6, &c.Subnets6.Max)
	if !c.EnableIPv4 && !c.EnableIPv6 {
		o.fail("EnableIPv4", "false, and EnableIPv6 is not true: at least one family is needed")
	}
	raw, given := o.fields["backend"]
	if !given {
		c.Backend, c.BackendDefaulted = VXLAN{VNI: defaultVNI}, true
	} else if c.Backend, err = parseBackend(raw); err != nil {
		o.errs = append(o.errs, err)
	} else if err := c.fits(); err != nil {
		o.errs = append(o.errs, err)
	}
	if err := errors.Join(o.errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// Devices of VXLAN have names of at most 15 characters (IFNAMSIZ-1 of linux/if.h): flannel.9999999, and with IPv6 flannel-v6.9999.
const (
	maxNamedVNI  = 9_999_999
	maxNamedVNI6 = 9_999
)

// fits returns an error if the backend cannot serve the network's families.
func (c *Config) fits() error {
	switch b := c.Backend.(type) {
	case VXLAN:
		if most := map[bool]uint32{false: maxNamedVNI, true: maxNamedVNI6}[c.EnableIPv6]; b.VNI > most {
			return fmt.Errorf("Backend.VNI: %d: the name of its device would be too long: at most %d with these families", b.VNI, most) //nolint:revive,staticcheck // begins with a key
		}
	case IPIP:
		if c.EnableIPv6 {
			return errors.New("Backend.Type: ipip carries IPv4 only: set EnableIPv6 to false, or use vxlan or wireguard") //nolint:revive,staticcheck // begins with a key
		}
	case WireGuard:
		if b.Mode == ModeIPv4 && !c.EnableIPv4 || b.Mode == ModeIPv6 && !c.EnableIPv6 {
			return fmt.Errorf("Backend.Mode: %q needs that family to be enabled: use %q", b.Mode, ModeSeparate) //nolint:revive,staticcheck // begins with a key
		}
	}
	return nil
}

func parseBackend(raw json.RawMessage) (Backend, error) {
	o, err := parseObject("Backend.", raw)
	if err != nil {
		return nil, err
	}
	var kind string
	o.text("Type", &kind)
	var backend Backend
	switch strings.ToLower(kind) {
	case "vxlan":
		backend = o.vxlan()
	case "host-gw":
		backend = HostGW{}
	case "wireguard":
		backend = o.wireguard()
	case "ipip":
		b := IPIP{}
		o.boolean("DirectRouting", &b.DirectRouting)
		backend = b
	case "alloc":
		backend = Alloc{}
	case "extension":
		backend = o.extension()
	default:
		o.errs = append(o.errs, unknownBackend(kind))
	}
	return backend, errors.Join(o.errs...)
}

// unknownBackend returns an error that says which backend to use instead of one that is not supported.
func unknownBackend(kind string) error {
	switch strings.ToLower(kind) {
	case "":
		return errors.New("Backend.Type is missing: use vxlan, host-gw, wireguard, ipip, alloc or extension") //nolint:revive,staticcheck // begins with a key
	case "udp":
		return fmt.Errorf("Backend.Type %q is not supported: use vxlan, which needs no process on the packets' way", kind)
	case "ipsec":
		return fmt.Errorf("Backend.Type %q is not supported: use wireguard, which encrypts as well", kind)
	case "tencent-vpc":
		return fmt.Errorf("Backend.Type %q is not supported: use alloc, and routes by the cloud's controller", kind)
	default:
		return fmt.Errorf("Backend.Type %q is unknown: use vxlan, host-gw, wireguard, ipip, alloc or extension", kind)
	}
}

func (o *object) vxlan() VXLAN {
	b, vni, port := VXLAN{}, defaultVNI, 0
	o.number("VNI", 0, maxVNI, &vni)
	o.number("Port", 0, 65535, &port)
	o.mtu(&b.MTU)
	o.boolean("GBP", &b.GBP)
	o.boolean("Learning", &b.Learning)
	o.boolean("DirectRouting", &b.DirectRouting)
	b.VNI, b.Port = uint32(vni), uint16(port) //nolint:gosec // checked
	return b
}

func (o *object) wireguard() WireGuard {
	b, port, port6, mode := WireGuard{}, defaultListenPort, defaultListenPort6, string(ModeSeparate)
	o.number("ListenPort", 1, 65535, &port)
	o.number("ListenPortV6", 1, 65535, &port6)
	o.mtu(&b.MTU)
	o.number("PersistentKeepaliveInterval", 0, maxKeepalive, &b.Keepalive)
	o.text("PSK", &b.PSK)
	if key, err := base64.StdEncoding.DecodeString(b.PSK); b.PSK != "" && (err != nil || len(key) != 32) {
		o.fail("PSK", "not a key: 32 bytes in base64, as `wg genpsk` prints them") // the value is a secret
	}
	o.text("Mode", &mode)
	modes := []WireGuardMode{ModeSeparate, ModeAuto, ModeIPv4, ModeIPv6}
	if b.Mode = WireGuardMode(mode); !slices.Contains(modes, b.Mode) {
		o.fail("Mode", fmt.Sprintf("%q is unknown: use separate, auto, ipv4 or ipv6", mode))
	}
	b.ListenPort, b.ListenPort6 = uint16(port), uint16(port6) //nolint:gosec // checked
	return b
}

// shellWords are characters that only a shell interprets; flannel executes commands without one.
const shellWords = "|;&<>`'\"\\*?()\n"

func (o *object) extension() Extension {
	b := Extension{}
	for _, command := range []struct {
		key string
		to  *string
	}{
		{"PreStartupCommand", &b.PreStartup},
		{"PostStartupCommand", &b.PostStartup},
		{"SubnetAddCommand", &b.SubnetAdd},
		{"SubnetRemoveCommand", &b.SubnetRemove},
	} {
		o.text(command.key, command.to)
		*command.to = strings.TrimSpace(*command.to) // white space alone is no command
		if i := strings.IndexAny(*command.to, shellWords); i >= 0 {
			o.fail(command.key, fmt.Sprintf("%q needs a shell, and commands run without one: put them into a script and name it here",
				(*command.to)[i:i+1]))
		}
	}
	return b
}

// object is a JSON object that is being decoded. Its errors are collected.
type object struct {
	path   string
	fields map[string]json.RawMessage // by the key in lower case; null counts as absent
	errs   []error
}

func parseObject(path string, text []byte) (*object, error) {
	name := "the configuration"
	if path != "" {
		name = strings.TrimSuffix(path, ".")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	open, err := decoder.Token()
	if err != nil {
		return nil, fmt.Errorf("%s is not JSON: %w", name, err)
	}
	if open != json.Delim('{') {
		return nil, fmt.Errorf("%s is not a JSON object: write {...}", name)
	}
	o := &object{path: path, fields: map[string]json.RawMessage{}}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, fmt.Errorf("%s is not JSON: %w", name, err)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, fmt.Errorf("%s is not JSON after the key %v: %w", name, key, err)
		}
		if folded := strings.ToLower(key.(string)); string(value) != "null" { //nolint:forcetypeassert // the decoder's contract
			o.fields[folded] = value
		}
	}
	if _, err := decoder.Token(); err != nil {
		return nil, fmt.Errorf("%s is not JSON: %w", name, err)
	}
	if decoder.More() {
		return nil, fmt.Errorf("%s is not one JSON object: something follows it", name)
	}
	return o, nil
}

func (o *object) fail(key, problem string) {
	o.errs = append(o.errs, fmt.Errorf("%s%s: %s", o.path, key, problem))
}

// take decodes a key's value, if present.
func (o *object) take(key string, to any, want string) bool {
	raw, ok := o.fields[strings.ToLower(key)]
	if !ok {
		return false
	}
	if err := json.Unmarshal(raw, to); err != nil {
		o.fail(key, fmt.Sprintf("%s is not %s", brief(raw), want))
		return false
	}
	return true
}

func brief(raw []byte) string {
	const most = 60
	if len(raw) > most {
		return string(raw[:most]) + "..."
	}
	return string(raw)
}

func (o *object) boolean(key string, to *bool) {
	var v bool
	if o.take(key, &v, "true or false, without quotes") {
		*to = v
	}
}

func (o *object) text(key string, to *string) {
	var v string
	if o.take(key, &v, "a text in quotes") {
		*to = v
	}
}

func (o *object) number(key string, least, most int, to *int) {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	var v int
	if !o.take(key, &v, want) {
		return
	}
	if v < least || v > most {
		o.fail(key, fmt.Sprintf("%d is not %s", v, want))
		return
	}
	*to = v
}

func (o *object) mtu(to *int) {
	o.number("MTU", 0, maxMTU, to)
	if *to != 0 && *to < minMTU {
		o.fail("MTU", fmt.Sprintf("%d is too small: at least %d, or 0 for the external interface's", *to, minMTU))
	}
}

func (o *object) prefix(key string, bits int, to *netip.Prefix) {
	var v string
	want := fmt.Sprintf("an IPv%d range such as %s", version(bits), example(bits))
	if !o.take(key, &v, want) || v == "" {
		return
	}
	p, err := netip.ParsePrefix(v)
	if err != nil || p.Addr().BitLen() != bits || p.Addr().Is4In6() {
		o.fail(key, fmt.Sprintf("%q is not %s", v, want))
		return
	}
	*to = p.Masked()
}

func (o *object) address(key string, bits int, to *netip.Addr) {
	var v string
	want := fmt.Sprintf("an IPv%d address", version(bits))
	if !o.take(key, &v, want) || v == "" {
		return
	}
	a, err := netip.ParseAddr(v)
	if err != nil || a.BitLen() != bits || a.Is4In6() || a.Zone() != "" {
		o.fail(key, fmt.Sprintf("%q is not %s", v, want))
		return
	}
	*to = a
}

func version(bits int) int {
	if bits == bits4 {
		return 4
	}
	return 6
}

func example(bits int) string {
	if bits == bits4 {
		return "10.244.0.0/16"
	}
	return "2001:db8:42::/56"
}
