package resolver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// kept is the file's content.
type kept struct {
	Version int                     `json:"version"`
	Names   map[string][]netip.Addr `json:"names"`
}

const (
	fileVersion = 1
	// maxFile bounds the file, in bytes.
	maxFile = 64 << 20
)

// load reads the file. A file that does not exist is no error.
func load(path string) (map[string][]netip.Addr, error) {
	if path == "" {
		return nil, nil
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // names the file
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are read", info.Size(), maxFile)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the file
	}
	return parse(raw)
}

func parse(raw []byte) (map[string][]netip.Addr, error) {
	var k kept
	if err := json.Unmarshal(raw, &k); err != nil {
		return nil, fmt.Errorf("it was not written by Weft: %w", err)
	}
	if k.Version != fileVersion {
		return nil, fmt.Errorf("it has version %d, and %d is read", k.Version, fileVersion)
	}
	return k.Names, nil
}

// store writes the file atomically.
func store(path string, names map[string][]netip.Addr) error {
	raw, err := json.Marshal(kept{Version: fileVersion, Names: names})
	if err != nil {
		return fmt.Errorf("encode it: %w", err)
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temporary, raw, 0o600); err != nil {
		return err //nolint:wrapcheck // names the file
	}
	return os.Rename(temporary, path) //nolint:wrapcheck // names both files
}
