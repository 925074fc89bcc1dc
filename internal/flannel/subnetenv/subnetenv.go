// Package subnetenv reads and writes flannel's subnet.env, which gives the node's subnet to the CNI plugin and to scripts: lines of
// KEY=value, without quotes, in a fixed order.
package subnetenv

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// DefaultPath is flannel's path of the file.
const DefaultPath = "/run/flannel/subnet.env"

// Env is the content of the file.
type Env struct {
	// Networks and Networks6 are the ranges of all pods, masked. A line of the file may have several, separated by commas.
	Networks, Networks6 []netip.Prefix
	// Subnet and Subnet6 are this node's, masked; invalid if absent. The file has the first host's address before the slash.
	Subnet, Subnet6 netip.Prefix
	// MTU is the MTU of pods' interfaces.
	MTU int
	// IPMasq reports that the daemon masquerades, so that the plugin does not.
	IPMasq bool

	hasMTU, hasIPMasq bool
}

const (
	keyNetwork  = "FLANNEL_NETWORK"
	keySubnet   = "FLANNEL_SUBNET"
	keyNetwork6 = "FLANNEL_IPV6_NETWORK"
	keySubnet6  = "FLANNEL_IPV6_SUBNET"
	keyMTU      = "FLANNEL_MTU"
	keyIPMasq   = "FLANNEL_IPMASQ"
)

// Format returns the file's bytes.
func (e *Env) Format() []byte {
	var b bytes.Buffer
	family := func(networkKey, subnetKey string, networks []netip.Prefix, subnet netip.Prefix) {
		if !subnet.IsValid() {
			return
		}
		texts := make([]string, len(networks))
		for i, network := range networks {
			texts[i] = network.Masked().String()
		}
		host := netip.PrefixFrom(subnet.Masked().Addr().Next(), subnet.Bits())
		fmt.Fprintf(&b, "%s=%s\n%s=%s\n", networkKey, strings.Join(texts, ","), subnetKey, host)
	}
	family(keyNetwork, keySubnet, e.Networks, e.Subnet)
	family(keyNetwork6, keySubnet6, e.Networks6, e.Subnet6)
	fmt.Fprintf(&b, "%s=%d\n%s=%t\n", keyMTU, e.MTU, keyIPMasq, e.IPMasq)
	return b.Bytes()
}

// Parse parses the file's text. It ignores lines with other keys. The error has the invalid lines; Complete reports what is missing.
func Parse(text []byte) (Env, error) {
	var e Env
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		if err := e.line(strings.TrimSpace(lines.Text())); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", number, err))
		}
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, err)
	}
	return e, errors.Join(errs...)
}

func (e *Env) line(line string) error {
	key, value, found := strings.Cut(line, "=")
	known := []string{keyNetwork, keySubnet, keyNetwork6, keySubnet6, keyMTU, keyIPMasq}
	switch {
	case !found && slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(line, k) }):
		return fmt.Errorf("%q: %s=VALUE is expected", line, key)
	case !found || !slices.Contains(known, key):
		return nil
	}
	var err error
	switch key {
	case keyNetwork:
		e.Networks, err = networks(value, true)
	case keyNetwork6:
		e.Networks6, err = networks(value, false)
	case keySubnet:
		e.Subnet, err = prefix(value, true)
	case keySubnet6:
		e.Subnet6, err = prefix(value, false)
	case keyMTU:
		var mtu uint64
		if mtu, err = strconv.ParseUint(value, 10, 16); err != nil || mtu == 0 {
			err = fmt.Errorf("%q is not an MTU: a whole number from 1 to 65535", value)
		} else {
			e.MTU, e.hasMTU = int(mtu), true
		}
	case keyIPMasq: // flannel treats every other text as false
		e.IPMasq, e.hasIPMasq = value == "true", true
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func networks(value string, v4 bool) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for text := range strings.SplitSeq(value, ",") {
		p, err := prefix(text, v4)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out, nil
}

func prefix(text string, v4 bool) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4() != v4 || p.Addr().Is4In6() {
		if v4 {
			return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 range such as 10.244.1.1/24", text)
		}
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv6 range such as 2001:db8:42:1::1/64", text)
	}
	return p.Masked(), nil
}

// Complete returns an error that names the keys that the plugin needs and the file lacks.
func (e *Env) Complete() error {
	var missing []string
	if len(e.Networks) == 0 && len(e.Networks6) == 0 {
		missing = append(missing, keyNetwork+" or "+keyNetwork6)
	}
	if !e.Subnet.IsValid() && !e.Subnet6.IsValid() {
		missing = append(missing, keySubnet+" or "+keySubnet6)
	}
	if !e.hasMTU {
		missing = append(missing, keyMTU)
	}
	if !e.hasIPMasq {
		missing = append(missing, keyIPMasq)
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing %s", strings.Join(missing, ", "))
	}
	return nil
}

// Read reads a complete file. An error names the file and says where to look for the cause.
func Read(path string) (Env, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Env{}, fmt.Errorf("%w: flanneld writes it once it has a subnet; its log says what it waits for", err)
	}
	if err != nil {
		return Env{}, err
	}
	e, err := Parse(text)
	if err == nil {
		err = e.Complete()
	}
	if err != nil {
		return Env{}, fmt.Errorf("%s: %w", path, err)
	}
	return e, nil
}

// Write replaces the file atomically.
func Write(path string, e *Env) error {
	const dirMode, fileMode = 0o755, 0o644 // flannel's; other programs read it
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	temporary, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = temporary.Write(e.Format())
	err = errors.Join(err, temporary.Chmod(fileMode), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}
