package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weft.dev/weft/internal/attach"
)

const (
	dirMode  = 0o755
	fileMode = 0o600
)

// Usual is the interface whose cache file is named after the container alone, as in flannel's plugin.
const Usual = "eth0"

// Files are the files of host-local and of flannel's plugin. They are written in addition to the records, so that both can take over the node
// at any time, and no address is assigned twice while a delegate still runs for another network of the same name.
type Files struct {
	// Network and DataDir are host-local's, and CacheDir the plugin's.
	Network  string `json:"network"`
	DataDir  string `json:"dataDir"`
	CacheDir string `json:"cacheDir"`
	// Delegate is the configuration that flannel's plugin would have passed on.
	Delegate json.RawMessage `json:"delegate,omitempty"`
}

// reservation is the content of host-local's file of an address: the container's id, a line break, the interface.
func reservation(rec *attach.Record) string { return rec.ContainerID + "\r\n" + rec.IfName }

// addressFile is host-local's file of an address.
func (f *Files) addressFile(addr netip.Addr) string {
	return filepath.Join(f.DataDir, f.Network, addr.String())
}

func (f *Files) cacheFile(rec *attach.Record) string {
	if rec.IfName == Usual {
		return filepath.Join(f.CacheDir, rec.ContainerID)
	}
	return filepath.Join(f.CacheDir, rec.ContainerID+"@"+rec.IfName)
}

// Assigned returns the addresses that host-local has assigned, to any container.
func (f *Files) Assigned() (map[netip.Addr]bool, error) {
	entries, err := os.ReadDir(filepath.Join(f.DataDir, f.Network))
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

// ErrReserved reports that host-local has assigned the address to another container.
var ErrReserved = errors.New("host-local has given the address to another container")

// Write writes the files of an attachment. Repeating it changes nothing. With ErrReserved in the chain of the error, host-local has assigned
// an address to another container.
func (f *Files) Write(rec *attach.Record) error {
	if err := errors.Join(os.MkdirAll(filepath.Join(f.DataDir, f.Network), dirMode), os.MkdirAll(f.CacheDir, 0o700)); err != nil {
		return err
	}
	for _, address := range rec.Addresses {
		if err := f.reserve(f.addressFile(address.Addr()), reservation(rec)); err != nil {
			return err
		}
	}
	return os.WriteFile(f.cacheFile(rec), CacheFile(f.Delegate), fileMode)
}

// CacheFile returns the content of the plugin's file for a delegate's configuration. Its end distinguishes it from a file of flannel's plugin,
// which may be that of any interface of its container.
func CacheFile(delegate []byte) []byte { return append(slices.Clone(bytes.TrimSpace(delegate)), '\n') }

// OfWeft reports whether CacheFile has made this content of a file.
func OfWeft(content []byte) bool { return bytes.HasSuffix(content, []byte("\n")) }

func (f *Files) reserve(path, content string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, fs.ErrExist) {
		have, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(have)) == strings.TrimSpace(content) {
			return err
		}
		return fmt.Errorf("%s: %w", path, ErrReserved)
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}

// Remove removes the files of an attachment; the file of an address of another container stays.
func (f *Files) Remove(rec *attach.Record) error {
	var errs []error
	for _, address := range rec.Addresses {
		path := f.addressFile(address.Addr())
		have, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(have)) == strings.TrimSpace(reservation(rec)) {
			errs = append(errs, os.Remove(path))
		}
	}
	if err := os.Remove(f.cacheFile(rec)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
