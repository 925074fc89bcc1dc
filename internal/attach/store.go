package attach

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/rootdir"
)

const (
	// fileSuffix ends the names of records.
	fileSuffix = ".json"
	// temporaryPrefix is the prefix of the names of files that are being written.
	temporaryPrefix = ".tmp-"
	// brokenDir is the directory for files that are not records. They are kept for inspection.
	brokenDir = "broken"
)

// ErrNotFound is returned by Get for an attachment without a record.
var ErrNotFound = errors.New("no record of the attachment")

// ConflictError is returned by Put if another attachment has a resource that the record claims.
type ConflictError struct {
	// What is the resource: an address, an ofport, a host interface or one of Claims.
	What string
	// Holder is the attachment that has it.
	Holder Key
}

// Error names the resource and its holder.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s belongs to attachment %s", e.What, e.Holder)
}

// HostPortError is returned by Put if a port of the node that the record claims is forwarded to another pod.
type HostPortError struct {
	// Port is the claimed port.
	Port cni.HostPort
	// Holder is the attachment that has it, and Pod its pod, as namespace/name.
	Holder Key
	Pod    string
}

// Error names the port and its holder.
func (e *HostPortError) Error() string {
	return fmt.Sprintf("host port %s leads to pod %s already (attachment %s)", e.Port, e.Pod, e.Holder)
}

// Broken is a file in the store's directory, or beside it, that is not a valid record or extra file. The store ignores its content.
type Broken struct {
	// Path is where the file is now.
	Path string
	// Err is the error in the file.
	Err error
	// Modified is the time of the last write. If it is before Store.Booted, nothing of the record exists any more.
	Modified time.Time
}

// Is reports, by the name, whether the file was the attachment's record.
func (b Broken) Is(key Key) bool {
	name := fileName(key)
	rest, ok := strings.CutPrefix(filepath.Base(b.Path), name)
	return ok && (rest == "" || rest[0] == '.')
}

// Store keeps records in a directory. Its methods may be called concurrently: those about one attachment run one after the other, those
// about different ones at the same time.
type Store struct {
	path   string
	disk   disk
	close  func() error
	broken []Broken
	keys   Keyed[Key]
	serial atomic.Uint64
	// extra has the extra fields of records: those that the first version lacks.
	extra extraFiles
	// bootID is the node's boot; "" if it is not known.
	bootID string

	// mu guards the maps. It is never held across I/O.
	mu sync.Mutex
	// records are the records on disk.
	records map[Key]Record
	// pending are the records being written; their claims are taken already.
	pending map[Key]Record
}

// Open reads the records in dir. It creates dir if needed, sets its mode to 0700, and locks it against other processes
// (rootdir.ErrInUse). It moves files that are not records to broken/, which Broken lists; they do not prevent reading others. It removes
// incompletely written files, on which nothing depends, and files of former boots without content, which a loss of power leaves.
func Open(dir string) (*Store, error) {
	lock, err := rootdir.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("attachment records: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attachment records: %w", err), lock.Close())
	}
	s := &Store{
		path:    dir,
		disk:    rootDisk{root: root},
		close:   func() error { return errors.Join(root.Close(), lock.Close()) },
		records: map[Key]Record{},
		pending: map[Key]Record{},
	}
	s.bootID, _ = ReadBootID() // without it, no record is of this boot for Booted; the agent does not start
	err = s.load(root)
	if err == nil {
		err = s.openExtra()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attachment records in %s: %w", dir, err), s.Close())
	}
	return s, nil
}

// Close closes and unlocks the directory. Calls that still run fail.
func (s *Store) Close() error { return s.close() }

// Broken returns the files that are not records: those that this Open has set aside, and earlier ones.
func (s *Store) Broken() []Broken {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.broken)
}

// Rebuild writes a record in place of a broken one, with its extra fields, and removes the broken file. check validates the whole record
// last. Rebuild returns ErrNotFound if no broken file is the attachment's.
func (s *Store) Rebuild(ctx context.Context, rec Record, check func(Record) error) error {
	key := rec.Key()
	if !slices.ContainsFunc(s.Broken(), func(b Broken) bool { return b.Is(key) }) {
		return fmt.Errorf("attachment %s: %w", key, ErrNotFound)
	}
	if data, err := s.extra.disk.read(fileName(key)); err == nil {
		extra, err := parseExtra(data, key)
		if err != nil {
			return fmt.Errorf("extra file of attachment %s: %w", key, err)
		}
		s.extra.set(key, extra)
		extra.give(&rec)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("extra file of attachment %s: %w", key, err)
	}
	err := check(rec)
	if err == nil {
		err = s.Put(ctx, rec)
	}
	if err != nil {
		return err
	}
	return s.RemoveBroken(key)
}

// RemoveBroken removes the files set aside of an attachment that is deleted or has a record again.
func (s *Store) RemoveBroken(key Key) error {
	var errs []error
	for _, b := range s.Broken() {
		if !b.Is(key) {
			continue
		}
		if err := ignoreMissing(s.disk.remove(brokenDir + "/" + filepath.Base(b.Path))); err != nil {
			errs = append(errs, err)
			continue
		}
		s.mu.Lock()
		s.broken = slices.DeleteFunc(s.broken, func(other Broken) bool { return other.Path == b.Path })
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

func (s *Store) load(root *os.Root) error {
	if err := root.Mkdir(brokenDir, rootdir.Mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := s.loadBroken(root); err != nil {
		return err
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	var void []string
	for _, entry := range entries {
		err := s.loadEntry(entry.Name())
		if errors.Is(err, errVoid) {
			void = append(void, entry.Name())
		} else if err != nil {
			return fmt.Errorf("%s: %w", entry.Name(), err)
		}
	}
	booted := s.Booted() // once all records are loaded
	for _, name := range void {
		if err := s.loadVoid(root, name, booted); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (s *Store) loadBroken(root *os.Root) error {
	entries, err := fs.ReadDir(root.FS(), brokenDir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		broken := Broken{
			Path: s.path + "/" + brokenDir + "/" + entry.Name(),
			Err:  errors.New("set aside by an earlier start"),
		}
		if info, err := entry.Info(); err == nil {
			broken.Modified = info.ModTime()
		}
		s.broken = append(s.broken, broken)
	}
	return nil
}

// loadEntry loads one entry of the directory, or removes it or sets it aside. It returns errVoid, and leaves the file, for one without
// content.
func (s *Store) loadEntry(name string) error {
	if name == brokenDir {
		return nil
	}
	if strings.HasPrefix(name, temporaryPrefix) {
		return s.disk.remove(name)
	}
	rec, err := readRecord(s.disk, name)
	switch {
	case err == nil:
		s.records[rec.Key()] = rec
		return nil
	case errors.Is(err, errVoid):
		return err
	case errors.Is(err, errContent):
		return s.setAside(name, err)
	default:
		return err
	}
}

// loadVoid removes a file without content that is older than the boot, and sets others aside: their pods may still run.
func (s *Store) loadVoid(root *os.Root, name string, booted time.Time) error {
	if info, err := root.Lstat(name); err == nil && info.ModTime().Before(booted) {
		return s.disk.remove(name)
	}
	return s.setAside(name, errVoid)
}

// readRecord reads the record in a file, and compares its key with the file's name. An error in the file's content wraps errContent.
func readRecord(d disk, name string) (Record, error) {
	data, err := d.read(name)
	if err != nil {
		return Record{}, err
	}
	if len(bytes.Trim(data, "\x00")) == 0 {
		return Record{}, errVoid
	}
	rec, err := ParseRecord(data)
	if err != nil {
		return Record{}, fmt.Errorf("%w: %w", errContent, err)
	}
	if want := fileName(rec.Key()); name != want {
		return Record{}, fmt.Errorf("%w: it is of attachment %s, whose file is %s", errContent, rec.Key(), want)
	}
	return rec, nil
}

// setAside moves a file to broken/, under a free name.
func (s *Store) setAside(name string, reason error) error {
	taken := map[string]bool{}
	for _, b := range s.broken {
		taken[b.Path] = true
	}
	aside := brokenDir + "/" + name
	for n := 1; taken[s.path+"/"+aside]; n++ {
		aside = brokenDir + "/" + name + "." + strconv.Itoa(n)
	}
	if err := s.disk.rename(name, aside); err != nil {
		return fmt.Errorf("%w; it cannot be set aside: %w", reason, err)
	}
	broken := Broken{Path: s.path + "/" + aside, Err: reason}
	if info, err := os.Lstat(broken.Path); err == nil {
		broken.Modified = info.ModTime()
	}
	s.broken = append(s.broken, broken)
	return nil
}

// Get returns the record of an attachment, or ErrNotFound.
func (s *Store) Get(key Key) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.records[key]
	if !ok {
		return Record{}, fmt.Errorf("attachment %s: %w", key, ErrNotFound)
	}
	return rec.clone(), nil
}

// List returns all records, ordered by key.
func (s *Store) List() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Record, 0, len(s.records))
	for _, rec := range s.records {
		list = append(list, rec.clone())
	}
	slices.SortFunc(list, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})
	return list
}

// Stale returns the records of other boots than the given one: their interfaces no longer exist, but their claims are taken until the
// records are deleted.
func (s *Store) Stale(bootID string) []Record {
	return slices.DeleteFunc(s.List(), func(rec Record) bool { return rec.BootID == bootID })
}

// Put writes a record, in place of the attachment's earlier one if there is one. When it returns nil, the record outlives this process,
// though not this boot of the node; no interface does either. When it fails, the store and the disk agree. It returns a *ConflictError,
// and writes nothing, if another attachment has one of the record's addresses (in the same network), its OFPort, its HostInterface or one
// of its Claims: a caller that chose them from InUse chooses again. It returns a *HostPortError, and writes nothing, if one of its
// HostPorts belongs to another attachment that is not closing.
func (s *Store) Put(ctx context.Context, rec Record) error {
	rec = rec.clone()
	rec.Version = Version
	rec.Created = rec.Created.UTC().Round(0)
	if err := rec.Validate(); err != nil {
		return err
	}
	if len(rec.Details) > 0 {
		var err error
		if rec.Details, err = json.Marshal(rec.Details); err != nil { // the form it has after reading from disk
			return err
		}
	}
	data, err := rec.encode()
	if err != nil {
		return err
	}
	key := rec.Key()
	unlock, err := s.keys.Lock(ctx, key)
	if err != nil {
		return fmt.Errorf("attachment %s: waiting for its record: %w", key, err)
	}
	defer unlock()
	if err := s.claim(rec); err != nil {
		return fmt.Errorf("attachment %s: %w", key, err)
	}
	temporary := temporaryPrefix + strconv.FormatUint(s.serial.Add(1), 10)
	err = s.extra.put(&rec, temporary) // first, so that a record never lacks it
	if err == nil {
		err = writeFile(s.disk, fileName(key), temporary, data)
	}
	if err != nil {
		if s.settle(key); !s.has(key) {
			err = errors.Join(err, s.extra.remove(key))
		}
		return fmt.Errorf("attachment %s: writing its record in %s: %w", key, s.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[key] = rec
	delete(s.pending, key)
	return nil
}

// Delete removes the record of an attachment. It returns nil when there is none.
func (s *Store) Delete(ctx context.Context, key Key) error {
	unlock, err := s.keys.Lock(ctx, key)
	if err != nil {
		return fmt.Errorf("attachment %s: waiting for its record: %w", key, err)
	}
	defer unlock()
	err = ignoreMissing(s.disk.remove(fileName(key)))
	if err == nil {
		err = s.extra.remove(key) // last: if it remains without a record, the next Open removes it
	}
	if err != nil {
		s.settle(key)
		return fmt.Errorf("attachment %s: removing its record in %s: %w", key, s.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, key)
	return nil
}

// has reports whether an attachment has a record.
func (s *Store) has(key Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.records[key]
	return ok
}

// settle makes the store agree with the disk about a key, after a failure with an unknown result. If the disk cannot be read, the store
// keeps its state, and so may claim too much.
func (s *Store) settle(key Key) {
	rec, err := readRecord(s.disk, fileName(key))
	s.extra.get(key).give(&rec)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.records[key] = rec
	case errors.Is(err, fs.ErrNotExist):
		delete(s.records, key)
	}
	delete(s.pending, key)
}

// claim marks a record as pending, unless it conflicts with another.
func (s *Store) claim(rec Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, others := range []map[Key]Record{s.records, s.pending} {
		for key, other := range others {
			if key == rec.Key() {
				continue
			}
			if what := conflict(&rec, &other); what != "" {
				return &ConflictError{What: what, Holder: key}
			}
			if port, taken := portConflict(&rec, &other); taken {
				return &HostPortError{Port: port, Holder: key, Pod: other.PodNamespace + "/" + other.PodName}
			}
		}
	}
	s.pending[rec.Key()] = rec
	return nil
}

// conflict returns a resource that both attachments claim; empty if there is none.
func conflict(a, b *Record) string {
	if a.OFPort != 0 && a.OFPort == b.OFPort {
		return fmt.Sprintf("ofport %d", a.OFPort)
	}
	if a.HostInterface != "" && a.HostInterface == b.HostInterface {
		return "host interface " + a.HostInterface
	}
	for _, claim := range a.Claims {
		if slices.Contains(b.Claims, claim) {
			return claim
		}
	}
	if a.Network != b.Network {
		return ""
	}
	for _, p := range a.Addresses {
		if slices.ContainsFunc(b.Addresses, func(q netip.Prefix) bool { return p.Addr() == q.Addr() }) {
			return fmt.Sprintf("address %s of network %s", p.Addr(), a.Network)
		}
	}
	return ""
}

// InUse is what the attachments of a node claim, each with its holder.
type InUse struct {
	// Addresses are the addresses in use, per network.
	Addresses map[string]map[netip.Addr]Key
	// OFPorts are the port numbers in use on the integration bridge.
	OFPorts map[uint32]Key
	// Claims are the other resources in use.
	Claims map[string]Key
}

// InUse returns all claims, of records on disk and of pending ones.
func (s *Store) InUse() InUse {
	use := InUse{
		Addresses: map[string]map[netip.Addr]Key{},
		OFPorts:   map[uint32]Key{},
		Claims:    map[string]Key{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for rec := range maps.Values(s.records) {
		use.add(&rec)
	}
	for rec := range maps.Values(s.pending) {
		use.add(&rec)
	}
	return use
}

func (u *InUse) add(rec *Record) {
	key := rec.Key()
	if u.Addresses[rec.Network] == nil {
		u.Addresses[rec.Network] = map[netip.Addr]Key{}
	}
	for _, p := range rec.Addresses {
		u.Addresses[rec.Network][p.Addr()] = key
	}
	if rec.OFPort != 0 {
		u.OFPorts[rec.OFPort] = key
	}
	for _, claim := range rec.Claims {
		u.Claims[claim] = key
	}
}
