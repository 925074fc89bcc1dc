package attach

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// ErrLookOnly is the error of changes of a Store that Look returned.
var ErrLookOnly = errors.New("these attachment records were opened for reading only")

// Look returns a read-only Store of the records in dir. It changes nothing in dir and takes no lock, so it may be used while the agent
// runs. Concurrent changes of records may be missing. A dir that does not exist has no records.
func Look(dir string) (*Store, error) {
	s := &Store{path: dir, disk: lookDisk{}, close: func() error { return nil }, records: map[Key]Record{}, pending: map[Key]Record{}}
	s.bootID, _ = ReadBootID() // as in Open
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("attachment records: %w", err)
	}
	defer root.Close() //nolint:errcheck // nothing was written
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("attachment records in %s: %w", dir, err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if name == brokenDir || strings.HasPrefix(name, temporaryPrefix) {
			continue
		}
		rec, err := readRecord(rootDisk{root: root}, name)
		switch {
		case err == nil:
			s.records[rec.Key()] = rec
		case errors.Is(err, fs.ErrNotExist): // it was detached meanwhile
		case errors.Is(err, errContent):
			s.broken = append(s.broken, Broken{Path: dir + "/" + name, Err: err})
		default:
			return nil, fmt.Errorf("attachment records in %s: %s: %w", dir, name, err)
		}
	}
	return s, s.lookAtExtra()
}

// lookDisk refuses every operation.
type lookDisk struct{}

func (lookDisk) create(string) (io.WriteCloser, error) { return nil, ErrLookOnly }
func (lookDisk) rename(string, string) error           { return ErrLookOnly }
func (lookDisk) remove(string) error                   { return ErrLookOnly }
func (lookDisk) read(string) ([]byte, error)           { return nil, ErrLookOnly }
