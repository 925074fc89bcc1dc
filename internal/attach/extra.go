package attach

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/rootdir"
)

// extraSuffix ends the name of the directory of extra files, with the fields of records that the first version lacks. The directory is
// beside that of the records: in the same directory, an older agent would set the files aside.
const extraSuffix = "-extra"

// extraFile is the content of an extra file. Fields of later versions are kept.
type extraFile struct {
	Version     int            `json:"version"`
	ContainerID string         `json:"containerID"`
	IfName      string         `json:"ifName"`
	HostPorts   []cni.HostPort `json:"hostPorts,omitempty"`
	Macvlan     *Macvlan       `json:"macvlan,omitempty"`
	Bandwidth   cni.Bandwidth  `json:"bandwidth,omitzero"`
	Secondary   bool           `json:"secondary,omitempty"`
	// MoreHostPorts are host ports that the first version with host ports refuses, with all of the file: see laterForm.
	MoreHostPorts []cni.HostPort `json:"moreHostPorts,omitempty"`

	Claims  []string        `json:"claims,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`

	// unknown are the fields of later versions, which remain in the file as long as it exists.
	unknown map[string]json.RawMessage
}

// fields are the names of this version's fields.
func (extraFile) fields() []string {
	return []string{"version", "containerID", "ifName", "hostPorts", "macvlan", "bandwidth", "secondary", "moreHostPorts", "claims", "details"}
}

// extraFields is extraFile without its methods.
type extraFields extraFile

// UnmarshalJSON implements json.Unmarshaler.
func (e *extraFile) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*extraFields)(e)); err != nil {
		return err
	}
	e.unknown = nil
	if err := json.Unmarshal(data, &e.unknown); err != nil {
		return err
	}
	for _, field := range e.fields() {
		delete(e.unknown, field)
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (e extraFile) MarshalJSON() ([]byte, error) {
	data, err := json.Marshal(extraFields(e))
	if err != nil || len(e.unknown) == 0 {
		return data, err
	}
	all := maps.Clone(e.unknown)
	var own map[string]json.RawMessage
	if err := json.Unmarshal(data, &own); err != nil {
		return nil, err
	}
	maps.Copy(all, own)
	return json.Marshal(all)
}

// Macvlan is the second interface of a pod. It is in the node's own network.
type Macvlan struct {
	// Parent is the node's device below the macvlan; MTU is that device's MTU.
	Parent string `json:"parent"`
	MTU    int    `json:"mtu"`
	// Addresses are the device's addresses, which the pod reaches only by its own interface.
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

func (m *Macvlan) clone() *Macvlan {
	if m == nil {
		return nil
	}
	return &Macvlan{Parent: m.Parent, MTU: m.MTU, Addresses: append([]netip.Addr(nil), m.Addresses...)}
}

func (m *Macvlan) valid() bool {
	return m == nil || isInterfaceName(m.Parent) && m.MTU > 0 && !slices.ContainsFunc(m.Addresses, func(a netip.Addr) bool { return !a.Is4() })
}

// laterForm reports whether the first version with host ports refuses one: it has only those without an address and at an IPv4 address.
func laterForm(port cni.HostPort) bool {
	return port.Address.IsValid() && (port.Address.IsUnspecified() || !port.Address.Is4())
}

// extraOf returns the extra fields of a record.
func extraOf(rec *Record) extraFile {
	extra := extraFile{
		Version: Version, ContainerID: rec.ContainerID, IfName: rec.IfName,
		Macvlan: rec.Macvlan, Bandwidth: rec.Bandwidth, Secondary: rec.Secondary,
		Claims: rec.Claims, Details: rec.Details,
	}
	for _, port := range rec.HostPorts {
		if laterForm(port) {
			extra.MoreHostPorts = append(extra.MoreHostPorts, port)
		} else {
			extra.HostPorts = append(extra.HostPorts, port)
		}
	}
	return extra
}

// ports returns all host ports.
func (e extraFile) ports() []cni.HostPort { return slices.Concat(e.HostPorts, e.MoreHostPorts) }

// give sets the extra fields of a record.
func (e extraFile) give(rec *Record) {
	rec.HostPorts, rec.Macvlan, rec.Bandwidth = e.ports(), e.Macvlan.clone(), e.Bandwidth
	rec.Secondary = e.Secondary
	rec.Claims, rec.Details = append([]string(nil), e.Claims...), append(json.RawMessage(nil), e.Details...)
}

func (e extraFile) empty() bool {
	return len(e.ports()) == 0 && e.Macvlan == nil && !e.Bandwidth.Limited() && !e.Secondary && len(e.Claims) == 0 && len(e.Details) == 0 && len(e.unknown) == 0
}

func (e extraFile) equal(o extraFile) bool {
	if !slices.Equal(e.Claims, o.Claims) || !bytes.Equal(e.Details, o.Details) || !maps.EqualFunc(e.unknown, o.unknown, slices.Equal[json.RawMessage]) {
		return false
	}
	if e.Bandwidth != o.Bandwidth || e.Secondary != o.Secondary || (e.Macvlan == nil) != (o.Macvlan == nil) {
		return false
	}
	if !slices.Equal(e.HostPorts, o.HostPorts) || !slices.Equal(e.MoreHostPorts, o.MoreHostPorts) {
		return false
	}
	return e.Macvlan == nil || e.Macvlan.Parent == o.Macvlan.Parent && e.Macvlan.MTU == o.Macvlan.MTU && slices.Equal(e.Macvlan.Addresses, o.Macvlan.Addresses)
}

// extraFiles are the extra files: one for each attachment with extra fields, with the same name as the record's file. A file counts only
// if its record exists.
type extraFiles struct {
	disk disk

	mu sync.Mutex
	// there is the content of the files.
	there map[Key]extraFile
}

// openExtra opens the directory and sets the records' extra fields. It removes files without a record: an older agent after a rollback
// leaves them when it removes records, and so does an agent that ends between the two removals.
func (s *Store) openExtra() error {
	dir := s.path + extraSuffix
	lock, err := rootdir.Open(dir)
	if err != nil {
		return fmt.Errorf("extra files of attachments: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Join(fmt.Errorf("extra files of attachments: %w", err), lock.Close())
	}
	closeRecords := s.close
	s.close = func() error { return errors.Join(root.Close(), lock.Close(), closeRecords()) }
	s.extra.disk = rootDisk{root: root}
	return s.loadExtra(root, s.extra.disk.remove)
}

// lookAtExtra is openExtra for a read-only store.
func (s *Store) lookAtExtra() error {
	s.extra.disk = lookDisk{}
	root, err := os.OpenRoot(s.path + extraSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("extra files of attachments: %w", err)
	}
	defer root.Close() //nolint:errcheck // nothing was written
	return s.loadExtra(root, func(string) error { return nil })
}

// loadExtra sets the records' extra fields. It calls remove for files without a record. A file that cannot be removed is Broken. A file
// that cannot be parsed is Broken too, and remains until its record is deleted.
func (s *Store) loadExtra(root *os.Root, remove func(name string) error) error {
	s.extra.there = map[Key]extraFile{}
	named := make(map[string]Key, len(s.records))
	for key := range s.records {
		named[fileName(key)] = key
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("extra files of attachments: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		key, known := named[name]
		if !known && slices.ContainsFunc(s.broken, func(b Broken) bool { return strings.HasPrefix(filepath.Base(b.Path), name) }) {
			continue // its record may be rebuilt
		}
		if !known {
			if err := ignoreMissing(remove(name)); err != nil {
				s.broken = append(s.broken, Broken{Path: s.path + extraSuffix + "/" + name, Err: fmt.Errorf("it belongs to no attachment, and is kept: %w", err)})
			}
			continue
		}
		data, err := rootDisk{root: root}.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var extra extraFile
		if err == nil {
			extra, err = parseExtra(data, key)
		}
		if err != nil && !errors.Is(err, errContent) {
			return fmt.Errorf("extra files of attachments: %s: %w", name, err)
		}
		if err != nil {
			s.broken = append(s.broken, Broken{Path: s.path + extraSuffix + "/" + name, Err: fmt.Errorf("extra file of attachment %s: %w", key, err)})
		}
		s.extra.there[key] = extra
		rec := s.records[key]
		extra.give(&rec)
		s.records[key] = rec
	}
	return nil
}

// parseExtra decodes an attachment's extra file.
func parseExtra(data []byte, key Key) (extraFile, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var file extraFile
	if err := decoder.Decode(&file); err != nil {
		return extraFile{}, fmt.Errorf("%w: %w", errContent, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return extraFile{}, fmt.Errorf("%w: data after the JSON object", errContent)
	}
	is, valid := Key{file.ContainerID, file.IfName}, cni.ValidHostPorts(file.ports()) && file.Macvlan.valid() && file.Bandwidth.Valid()
	valid = valid && validClaims(file.Claims) && validDetails(file.Details)
	if file.Version != Version || is != key || !valid {
		return extraFile{}, fmt.Errorf("%w: version %d, of attachment %s, host ports %v, macvlan %+v, bandwidth %+v, claims %q, details %s",
			errContent, file.Version, is, file.ports(), file.Macvlan, file.Bandwidth, file.Claims, file.Details)
	}
	return file, nil
}

// get returns the attachment's fields on disk.
func (p *extraFiles) get(key Key) extraFile {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there[key]
}

func (p *extraFiles) set(key Key, extra extraFile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.there == nil {
		p.there = map[Key]extraFile{}
	}
	p.there[key] = extra
}

// put writes the extra fields of a record, unless they are written already. The caller holds the record's lock.
func (p *extraFiles) put(rec *Record, temporary string) error {
	key, extra := rec.Key(), extraOf(rec)
	have := p.get(key)
	extra.unknown = have.unknown
	switch {
	case have.equal(extra):
		return nil
	case extra.empty():
		return p.remove(key)
	}
	data, err := json.Marshal(extra)
	if err != nil {
		return err
	}
	p.set(key, extraFile{unknown: have.unknown}) // whatever the result is, there may be a file
	if err := writeFile(p.disk, fileName(key), temporary, data); err != nil {
		return err
	}
	p.set(key, extra)
	return nil
}

// remove removes an attachment's extra file, if there may be one. The caller holds the record's lock.
func (p *extraFiles) remove(key Key) error {
	p.mu.Lock()
	_, there := p.there[key]
	p.mu.Unlock()
	if !there {
		return nil
	}
	if err := ignoreMissing(p.disk.remove(fileName(key))); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.there, key)
	return nil
}

// portConflict returns a port of the node that both attachments claim. An attachment that is closing, or is of another boot, has none any
// more: its rules are removed before its record says so.
func portConflict(a, b *Record) (cni.HostPort, bool) {
	if b.State == Closing || a.State == Closing || a.BootID != b.BootID {
		return cni.HostPort{}, false
	}
	for _, port := range a.HostPorts {
		if slices.ContainsFunc(b.HostPorts, port.Overlaps) {
			return port, true
		}
	}
	return cni.HostPort{}, false
}
