package address

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	fileVersion = 1
	dirMode     = 0o700
	fileMode    = 0o600
	// maxKept is the maximum number of entries of a Book: with more, the one that expires first goes.
	maxKept = 1024
)

// Name is the name by which the next pod gets the addresses: of an interface of a pod.
type Name struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Interface string `json:"interface"`
}

// String returns the name as in errors.
func (n Name) String() string { return n.Namespace + "/" + n.Pod }

// entry is what a Book has for a name.
type entry struct {
	Name

	Addresses []netip.Addr `json:"addresses"`
	Until     time.Time    `json:"until"`
}

// file is the content of a Book's file.
type file struct {
	Version int     `json:"version"`
	Kept    []entry `json:"kept"`
}

// Book keeps the addresses of former pods for the next pods of their names, in a file. Each entry expires. An entry remains while the next
// pod has its addresses, so whether an address is in use has to be found out elsewhere.
type Book struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	kept []entry // in the order in which they expire
}

// Open reads a Book from its file; a file that does not exist is empty. With an error the Book is empty, and the file is replaced when
// addresses are kept. now is the clock, nil for the time of day.
func Open(path string, now func() time.Time) (*Book, error) {
	if now == nil {
		now = time.Now
	}
	b := &Book{path: path, now: now}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	var content file
	if err == nil {
		err = json.Unmarshal(raw, &content)
	}
	if err == nil && content.Version != fileVersion {
		err = fmt.Errorf("it has version %d, and %d is read", content.Version, fileVersion)
	}
	if err != nil {
		return b, fmt.Errorf("kept addresses, file %s: %w", path, err)
	}
	for _, e := range content.Kept {
		b.add(e)
	}
	return b, nil
}

// add adds an entry in the place of one of the same name.
func (b *Book) add(e entry) {
	now := b.now()
	b.kept = slices.DeleteFunc(b.kept, func(other entry) bool { return other.Name == e.Name || !other.Until.After(now) })
	if !e.Until.After(now) || len(e.Addresses) == 0 {
		return
	}
	e.Until = e.Until.UTC().Round(0)
	at, _ := slices.BinarySearchFunc(b.kept, e, func(x, y entry) int { return x.Until.Compare(y.Until) })
	b.kept = slices.Insert(b.kept, at, e)
	if len(b.kept) > maxKept {
		b.kept = slices.Delete(b.kept, 0, len(b.kept)-maxKept)
	}
}

// Keep keeps addresses for the next pod of a name from now on for a time. With an error they are kept until this process ends.
func (b *Book) Keep(name Name, addresses []netip.Addr, long time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(entry{Name: name, Addresses: slices.Clone(addresses), Until: b.now().Add(long)})
	if err := b.write(); err != nil {
		return fmt.Errorf("kept addresses: %w", err)
	}
	return nil
}

// write replaces the file.
func (b *Book) write() error {
	raw, err := json.Marshal(file{Version: fileVersion, Kept: b.kept})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(b.path), dirMode); err != nil {
		return err
	}
	temporary := b.path + ".new"
	if err := os.WriteFile(temporary, raw, fileMode); err != nil {
		return err
	}
	return os.Rename(temporary, b.path)
}

// For returns the addresses that are kept for a name.
func (b *Book) For(name Name) []netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, e := range b.kept {
		if e.Name == name && e.Until.After(now) {
			return slices.Clone(e.Addresses)
		}
	}
	return nil
}

// Holder returns for which other name than this one an address is kept.
func (b *Book) Holder(addr netip.Addr, than Name) (of Name, kept bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, e := range b.kept {
		if e.Name != than && e.Until.After(now) && slices.Contains(e.Addresses, addr) {
			return e.Name, true
		}
	}
	return Name{}, false
}

// Kept returns the kept addresses of a range, in the order in which they expire.
func (b *Book) Kept(subnet netip.Prefix) []netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []netip.Addr
	for _, e := range b.kept {
		for _, addr := range e.Addresses {
			if subnet.Contains(addr) {
				out = append(out, addr)
			}
		}
	}
	return out
}
