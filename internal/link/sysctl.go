package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sysctlRoot is the directory with the settings of the calling thread's network namespace: the kernel resolves this path by the thread's
// namespace, not the process's.
const sysctlRoot = "/proc/sys/net"

// sysctlEntry maps a field of Sysctls to its file.
type sysctlEntry struct {
	name   string
	family string // ipv4 or ipv6
	get    func(*Sysctls) *Toggle
}

//nolint:gochecknoglobals // a constant table
var sysctlTable = []sysctlEntry{
	{"disable_ipv6", "ipv6", func(s *Sysctls) *Toggle { return &s.DisableIPv6 }},
	{"accept_ra", "ipv6", func(s *Sysctls) *Toggle { return &s.AcceptRA }},
	{"forwarding", "ipv4", func(s *Sysctls) *Toggle { return &s.Forwarding4 }},
	{"forwarding", "ipv6", func(s *Sysctls) *Toggle { return &s.Forwarding6 }},
	{"route_localnet", "ipv4", func(s *Sysctls) *Toggle { return &s.RouteLocalnet }},
	{"proxy_arp", "ipv4", func(s *Sysctls) *Toggle { return &s.ProxyARP }},
	{"send_redirects", "ipv4", func(s *Sysctls) *Toggle { return &s.SendRedirects }},
	{"rp_filter", "ipv4", func(s *Sysctls) *Toggle { return &s.RPFilter }},
	{"arp_notify", "ipv4", func(s *Sysctls) *Toggle { return &s.ARPNotify }},
	{"ndisc_notify", "ipv6", func(s *Sysctls) *Toggle { return &s.NDiscNotify }},
}

func (e sysctlEntry) path(device string) string {
	return filepath.Join(sysctlRoot, e.family, "conf", device, e.name)
}

// withoutIPv6 is the value of an ipv6 setting where there is no IPv6: disabled, and everything else off.
func (e sysctlEntry) withoutIPv6() Toggle {
	if e.name == "disable_ipv6" {
		return On
	}
	return Off
}

// read returns the setting in the calling thread's namespace. A device without IPv6 has the settings of withoutIPv6.
func (e sysctlEntry) read(device string) (Toggle, error) {
	text, err := os.ReadFile(e.path(device))
	if errors.Is(err, fs.ErrNotExist) && e.family == "ipv6" && lacksIPv6(device) {
		return e.withoutIPv6(), nil
	}
	if err != nil {
		return Leave, fmt.Errorf("reading %s of %s: %w", e.name, device, err)
	}
	if strings.TrimSpace(string(text)) == "0" {
		return Off, nil
	}
	return On, nil
}

// write changes the setting in the calling thread's namespace.
func (e sysctlEntry) write(device string, value Toggle) error {
	digit := "0"
	if value == On {
		digit = "1"
	}
	err := os.WriteFile(e.path(device), []byte(digit), 0)
	if errors.Is(err, fs.ErrNotExist) && e.family == "ipv6" {
		switch {
		case noIPv6() || lacksIPv6(device) && value == e.withoutIPv6():
			return nil
		case lacksIPv6(device):
			return fmt.Errorf("setting %s of %s to %s: %w", e.name, device, digit, errNoIPv6)
		}
	}
	if err != nil {
		return fmt.Errorf("setting %s of %s to %s: %w", e.name, device, digit, err)
	}
	return nil
}

// swapDefaults makes these settings the initial ones of links that are created in the calling thread's namespace from now on, and returns a
// function that restores the former ones in the same namespace.
func swapDefaults(want Sysctls) (restore func() error, err error) {
	was := map[string][]byte{}
	restore = func() error {
		var errs []error
		for path, text := range was {
			errs = append(errs, os.WriteFile(path, text, 0))
		}
		return errors.Join(errs...)
	}
	for _, entry := range sysctlTable {
		value := *entry.get(&want)
		if value == Leave {
			continue
		}
		path := entry.path(defaults)
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && entry.family == "ipv6" && noIPv6() {
			continue
		}
		if err == nil {
			was[path] = text
			err = entry.write(defaults, value)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s of new links: %w", entry.name, err), restore())
		}
	}
	return restore, nil
}

// defaults is the directory from which new links get their settings (Documentation/networking/ip-sysctl.rst of Linux, conf/default).
const defaults = "default"

// noIPv6 reports whether the kernel has no IPv6 at all.
func noIPv6() bool {
	_, err := os.Stat(filepath.Join(sysctlRoot, "ipv6"))
	return errors.Is(err, fs.ErrNotExist)
}

// minIPv6MTU is the least MTU of a device with IPv6 (RFC 8200, section 5). When the MTU falls below it, the kernel removes IPv6 from the
// device, together with its settings; later it restores IPv6 with the namespace's defaults (addrconf_notify in net/ipv6/addrconf.c).
const minIPv6MTU = 1280

// errNoIPv6 is why a device cannot have an IPv6 setting.
var errNoIPv6 = fmt.Errorf("the device has no IPv6: raise its MTU to %d or more", minIPv6MTU)

// lacksIPv6 reports whether a device exists and has no IPv6: its MTU is below minIPv6MTU, or the kernel has no IPv6.
func lacksIPv6(device string) bool {
	_, v4 := os.Stat(filepath.Join(sysctlRoot, "ipv4", "conf", device))
	_, v6 := os.Stat(filepath.Join(sysctlRoot, "ipv6", "conf", device))
	return v4 == nil && errors.Is(v6, fs.ErrNotExist)
}

// readSysctls reads the fields that are set in want.
func readSysctls(device string, want Sysctls) (Sysctls, error) {
	var have Sysctls
	for _, entry := range sysctlTable {
		if *entry.get(&want) == Leave {
			continue
		}
		value, err := entry.read(device)
		if err != nil {
			return have, err
		}
		*entry.get(&have) = value
	}
	return have, nil
}

// writeSysctls writes the fields that are set in want.
func writeSysctls(device string, want Sysctls) error {
	for _, entry := range sysctlTable {
		value := *entry.get(&want)
		if value == Leave {
			continue
		}
		if err := entry.write(device, value); err != nil {
			return err
		}
	}
	return nil
}
