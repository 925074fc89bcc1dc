package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/flannel/delegate"
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
	for i, address := range rec.Addresses {
		if err := f.reserve(f.addressFile(address.Addr()), reservation(rec)); err != nil {
			return errors.Join(err, f.release(rec, rec.Addresses[:i], false)) // the next plan need not have these addresses
		}
	}
	return os.WriteFile(f.cacheFile(rec), delegate.CacheFile(f.Delegate), fileMode)
}

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
	if err = errors.Join(err, file.Close()); err != nil { // a full disk, for example: an empty file would reserve the address for ever
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Remove removes the files of an attachment; the file of an address of another container stays.
func (f *Files) Remove(rec *attach.Record) error {
	err := f.release(rec, rec.Addresses, true)
	if wrong := os.Remove(f.cacheFile(rec)); wrong != nil && !errors.Is(wrong, fs.ErrNotExist) {
		err = errors.Join(err, wrong)
	}
	return err
}

// release removes the files of addresses of an attachment. With torn, it removes empty ones too: an agent that was killed while it wrote a
// file has left it.
func (f *Files) release(rec *attach.Record, addresses []netip.Prefix, torn bool) error {
	var errs []error
	for _, address := range addresses {
		path := f.addressFile(address.Addr())
		have, err := os.ReadFile(path)
		text := strings.TrimSpace(string(have))
		if err == nil && (text == strings.TrimSpace(reservation(rec)) || torn && text == "") {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}
