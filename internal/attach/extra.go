package attach

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/rootdir"
)

// extraSuffix ends the name of the folder with what records have beyond those of the first version. It stands beside theirs: in there,
// an agent that does not know of it would set the files aside.
const extraSuffix = "-extra"

// extraFile is what a file in it holds. Fields of later versions are left alone.
type extraFile struct {
	Version     int            `json:"version"`
	ContainerID string         `json:"containerID"`
	IfName      string         `json:"ifName"`
	HostPorts   []cni.HostPort `json:"hostPorts"`
}

// extraFiles keep the host ports of attachments that have any: one file each, named as the record's. A file counts only beside its
// record.
type extraFiles struct {
	disk disk

	mu sync.Mutex
	// there is what the files hold.
	there map[Key][]cni.HostPort
}

// openExtra opens the folder of host ports, and gives the records theirs. Files without a record are removed: an agent that is rolled
// back removes records and leaves them, and so does one that ends in between.
func (s *Store) openExtra() error {
	dir := s.path + extraSuffix
	lock, err := rootdir.Open(dir)
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Join(fmt.Errorf("host ports: %w", err), lock.Close())
	}
	closeRecords := s.close
	s.close = func() error { return errors.Join(root.Close(), lock.Close(), closeRecords()) }
	s.extra.disk = rootDisk{root: root}
	return s.loadExtra(root, s.extra.disk.remove)
}

// lookAtExtra is openExtra for a store that is only looked at.
func (s *Store) lookAtExtra() error {
	s.extra.disk = lookDisk{}
	root, err := os.OpenRoot(s.path + extraSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	defer root.Close() //nolint:errcheck // nothing was written
	return s.loadExtra(root, func(string) error { return nil })
}

// loadExtra gives the records their host ports. What is of no record, remove is called with. A file that cannot be understood is
// Broken; it stays until its record goes.
func (s *Store) loadExtra(root *os.Root, remove func(name string) error) error {
	s.extra.there = map[Key][]cni.HostPort{}
	named := make(map[string]Key, len(s.records))
	for key := range s.records {
		named[fileName(key)] = key
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		key, known := named[name]
		if !known {
			if err := ignoreMissing(remove(name)); err != nil {
				return fmt.Errorf("host ports of no pod: %w", err)
			}
			continue
		}
		data, err := rootDisk{root: root}.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var ports []cni.HostPort
		if err == nil {
			ports, err = parseExtra(data, key)
		}
		if err != nil && !errors.Is(err, errContent) {
			return fmt.Errorf("host ports: %s: %w", name, err)
		}
		if err != nil {
			s.broken = append(s.broken, Broken{Path: s.path + extraSuffix + "/" + name, Err: fmt.Errorf("host ports of attachment %s: %w", key, err)})
		}
		s.extra.there[key] = ports
		rec := s.records[key]
		rec.HostPorts = ports
		s.records[key] = rec
	}
	return nil
}

// parseExtra reads the host ports of an attachment.
func parseExtra(data []byte, key Key) ([]cni.HostPort, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var file extraFile
	if err := decoder.Decode(&file); err != nil {
		return nil, fmt.Errorf("%w: %w", errContent, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the JSON object", errContent)
	}
	if is := (Key{file.ContainerID, file.IfName}); file.Version != Version || is != key || !cni.ValidHostPorts(file.HostPorts) {
		return nil, fmt.Errorf("%w: version %d, of attachment %s, host ports %v", errContent, file.Version, is, file.HostPorts)
	}
	return file.HostPorts, nil
}

// get returns the host ports that are on disk for an attachment.
func (p *extraFiles) get(key Key) []cni.HostPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.there[key])
}

func (p *extraFiles) set(key Key, ports []cni.HostPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.there == nil {
		p.there = map[Key][]cni.HostPort{}
	}
	p.there[key] = ports
}

// put writes a record's host ports, unless that is done. The caller holds the record's lock.
func (p *extraFiles) put(rec *Record, temporary string) error {
	key := rec.Key()
	if slices.Equal(p.get(key), rec.HostPorts) {
		return nil
	}
	if len(rec.HostPorts) == 0 {
		return p.remove(key)
	}
	data, err := json.Marshal(extraFile{Version: Version, ContainerID: key.ContainerID, IfName: key.IfName, HostPorts: rec.HostPorts})
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	p.set(key, nil) // whatever comes of it, there may be a file
	if err := writeFile(p.disk, fileName(key), temporary, data); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	p.set(key, slices.Clone(rec.HostPorts))
	return nil
}

// remove removes an attachment's file, if there may be one. The caller holds the record's lock.
func (p *extraFiles) remove(key Key) error {
	p.mu.Lock()
	_, there := p.there[key]
	p.mu.Unlock()
	if !there {
		return nil
	}
	if err := ignoreMissing(p.disk.remove(fileName(key))); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.there, key)
	return nil
}

// portConflict returns a port of the node that both attachments claim. One that is closing, or is of another boot, has none any
// more: its rules are gone before its record says so.
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
