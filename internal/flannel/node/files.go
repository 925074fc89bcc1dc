package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"weft.dev/weft/internal/attach"
)

// Files of host-local and of flannel's plugin. They are written in addition to the records, so that both can take over the node at any
// time, and no address is assigned twice while a delegate still runs for another network of the same name.
const (
	dirMode  = 0o755
	fileMode = 0o600
	// usual is the interface whose cache file is named after the container alone, as in flannel's plugin.
	usual = "eth0"
)

// reservation is the content of host-local's file of an address: the container's id, a line break, the interface.
func reservation(rec *attach.Record) string { return rec.ContainerID + "\r\n" + rec.IfName }

// addressFile is host-local's file of an address.
func (d *details) addressFile(addr netip.Addr) string {
	return filepath.Join(d.DataDir, d.Network, addr.String())
}

func (d *details) cacheFile(rec *attach.Record) string {
	if rec.IfName == usual {
		return filepath.Join(d.CacheDir, rec.ContainerID)
	}
	return filepath.Join(d.CacheDir, rec.ContainerID+"@"+rec.IfName)
}

// reserved returns the addresses that host-local has assigned, to any container.
func reserved(b *bridge) (map[netip.Addr]bool, error) {
	entries, err := os.ReadDir(filepath.Join(b.dataDir, b.network))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("addresses that host-local has given out: %w", err)
	}
	out := make(map[netip.Addr]bool, len(entries))
	for _, entry := range entries {
		if addr, err := netip.ParseAddr(entry.Name()); err == nil {
			out[addr] = true
		}
	}
	return out, nil
}

// errReserved reports that host-local has assigned the address to another container.
var errReserved = errors.New("host-local has given the address to another container")

// write writes the files of an attachment. Repeating it changes nothing.
func (d *details) write(rec *attach.Record) error {
	if err := errors.Join(os.MkdirAll(filepath.Join(d.DataDir, d.Network), dirMode), os.MkdirAll(d.CacheDir, 0o700)); err != nil {
		return err
	}
	for _, address := range rec.Addresses {
		if err := d.reserve(d.addressFile(address.Addr()), reservation(rec)); err != nil {
			return err
		}
	}
	return os.WriteFile(d.cacheFile(rec), d.Delegate, fileMode)
}

func (d *details) reserve(path, content string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, fs.ErrExist) {
		have, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(have)) == strings.TrimSpace(content) {
			return err
		}
		return fmt.Errorf("%s: %w", path, errReserved)
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}

// remove removes the files of an attachment; the file of an address of another container stays.
func (d *details) remove(rec *attach.Record) error {
	var errs []error
	for _, address := range rec.Addresses {
		path := d.addressFile(address.Addr())
		have, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(have)) == strings.TrimSpace(reservation(rec)) {
			errs = append(errs, os.Remove(path))
		}
	}
	if err := os.Remove(d.cacheFile(rec)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
