package devconf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
)

// sysctlRoot is the directory with the settings of the calling thread's network namespace: the kernel resolves this path by the thread's
// namespace, not the process's.
const sysctlRoot = "/proc/sys/net"

// settingPath is the file of a device's setting.
func settingPath(e link.SysctlEntry, device string) string {
	return filepath.Join(sysctlRoot, e.Family, "conf", device, e.Name)
}

// withoutIPv6 is the value of an ipv6 setting where there is no IPv6: disabled, and everything else off.
func withoutIPv6(e link.SysctlEntry) link.Toggle {
	if e.Name == "disable_ipv6" {
		return link.On
	}
	return link.Off
}

// readSetting returns a setting in the calling thread's namespace. A device without IPv6 has the settings of withoutIPv6.
func readSetting(e link.SysctlEntry, device string) (link.Toggle, error) {
	text, err := readFile(settingPath(e, device))
	if errors.Is(err, fs.ErrNotExist) && e.Family == "ipv6" && lacksIPv6(device) {
		return withoutIPv6(e), nil
	}
	if err != nil {
		return link.Leave, fmt.Errorf("reading %s of %s: %w", e.Name, device, err)
	}
	if strings.TrimSpace(text) == "0" {
		return link.Off, nil
	}
	return link.On, nil
}

func readFile(path string) (string, error) {
	file, err := openSetting(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer file.close()
	return file.read()
}

func writeFile(path, text string) error {
	file, err := openSetting(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer file.close()
	return file.write(text)
}

func digitOf(value link.Toggle) string {
	if value == link.On {
		return "1"
	}
	return "0"
}

// writeSetting changes a setting in the calling thread's namespace.
func writeSetting(e link.SysctlEntry, device string, value link.Toggle) error {
	digit := digitOf(value)
	err := writeFile(settingPath(e, device), digit)
	if errors.Is(err, fs.ErrNotExist) && e.Family == "ipv6" {
		switch {
		case noIPv6() || lacksIPv6(device) && value == withoutIPv6(e):
			return nil
		case lacksIPv6(device):
			return fmt.Errorf("setting %s of %s to %s: %w", e.Name, device, digit, errNoIPv6)
		}
	}
	if err != nil {
		return fmt.Errorf("setting %s of %s to %s: %w", e.Name, device, digit, err)
	}
	return nil
}

// SwapDefaults makes these settings the initial ones of links that are created in the calling thread's namespace from now on, and returns a
// function that restores the former ones in that namespace, which has to be called.
func SwapDefaults(want link.Sysctls) (restore func() error, err error) {
	type former struct {
		*setting
		text string
	}
	var was []former
	restore = func() error {
		var errs []error
		for _, file := range was {
			errs = append(errs, file.write(file.text))
			file.close()
		}
		return errors.Join(errs...)
	}
	for _, entry := range link.SysctlEntries() {
		value := *entry.Get(&want)
		if value == link.Leave {
			continue
		}
		file, text, err := swap(settingPath(entry, defaults), digitOf(value))
		switch {
		case errors.Is(err, fs.ErrNotExist) && entry.Family == "ipv6" && noIPv6():
		case err != nil:
			return nil, errors.Join(fmt.Errorf("%s of new links: %w", entry.Name, err), restore())
		case file != nil:
			was = append(was, former{file, text})
		}
	}
	return restore, nil
}

// swap changes a setting, and returns the open file with the former text; nil if it has the value already.
func swap(path, value string) (file *setting, was string, err error) {
	if file, err = openSetting(path, unix.O_RDWR); err != nil {
		return nil, "", err
	}
	was, err = file.read()
	if err == nil && strings.TrimSpace(was) != value {
		if err = file.write(value); err == nil {
			return file, was, nil
		}
	}
	file.close()
	return nil, "", err
}

// defaults is the directory from which new links get their settings (Documentation/networking/ip-sysctl.rst of Linux, conf/default).
const defaults = "default"

// noIPv6 reports whether the kernel has no IPv6 at all.
func noIPv6() bool {
	_, err := os.Stat(filepath.Join(sysctlRoot, "ipv6"))
	return errors.Is(err, fs.ErrNotExist)
}

// MinIPv6MTU is the least MTU of a device with IPv6 (RFC 8200, section 5). When the MTU falls below it, the kernel removes IPv6 from the
// device, together with its settings; later it restores IPv6 with the namespace's defaults (addrconf_notify in net/ipv6/addrconf.c).
const MinIPv6MTU = 1280

// errNoIPv6 is why a device cannot have an IPv6 setting.
var errNoIPv6 = fmt.Errorf("the device has no IPv6: raise its MTU to %d or more", MinIPv6MTU)

// lacksIPv6 reports whether a device exists and has no IPv6: its MTU is below MinIPv6MTU, or the kernel has no IPv6.
func lacksIPv6(device string) bool {
	_, v4 := os.Stat(filepath.Join(sysctlRoot, "ipv4", "conf", device))
	_, v6 := os.Stat(filepath.Join(sysctlRoot, "ipv6", "conf", device))
	return v4 == nil && errors.Is(v6, fs.ErrNotExist)
}

// ReadSysctls reads the fields that are set in want.
func ReadSysctls(device string, want link.Sysctls) (link.Sysctls, error) {
	var have link.Sysctls
	for _, entry := range link.SysctlEntries() {
		if *entry.Get(&want) == link.Leave {
			continue
		}
		value, err := readSetting(entry, device)
		if err != nil {
			return have, err
		}
		*entry.Get(&have) = value
	}
	return have, nil
}

// WriteSysctls writes the fields that are set in want.
func WriteSysctls(device string, want link.Sysctls) error {
	for _, entry := range link.SysctlEntries() {
		value := *entry.Get(&want)
		if value == link.Leave {
			continue
		}
		if err := writeSetting(entry, device, value); err != nil {
			return err
		}
	}
	return nil
}
