package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sysctlRoot is where the settings of the calling thread's network namespace are: the kernel resolves this path by
// the thread's namespace, not the process's.
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
}

func (e sysctlEntry) path(device string) string {
	return filepath.Join(sysctlRoot, e.family, "conf", device, e.name)
}

// read returns the setting in the calling thread's namespace. On a kernel without IPv6 an ipv6 setting reads as Off,
// except disable_ipv6, which reads as On.
func (e sysctlEntry) read(device string) (Toggle, error) {
	text, err := os.ReadFile(e.path(device))
	if errors.Is(err, fs.ErrNotExist) && e.family == "ipv6" && noIPv6() {
		if e.name == "disable_ipv6" {
			return On, nil
		}
		return Off, nil
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
	if errors.Is(err, fs.ErrNotExist) && e.family == "ipv6" && noIPv6() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("setting %s of %s to %s: %w", e.name, device, digit, err)
	}
	return nil
}

// swapDefaults has links that are made in the calling thread's namespace from now on begin with these settings, and returns
// what puts back, in the same namespace, what was there.
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

// defaults is where new links have their settings from (Documentation/networking/ip-sysctl.rst of Linux, conf/default).
const defaults = "default"

// noIPv6 reports whether the kernel has no IPv6 at all.
func noIPv6() bool {
	_, err := os.Stat(filepath.Join(sysctlRoot, "ipv6"))
	return errors.Is(err, fs.ErrNotExist)
}

// readSysctls reads the fields that want asks for.
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

// writeSysctls writes the fields that want asks for.
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
