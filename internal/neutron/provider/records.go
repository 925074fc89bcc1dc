package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// records is a directory with a file for each pod that was set up, written before the first side effect: from it TeardownPod finds the
// host's devices even if the port does not exist in OpenStack any more.
type records struct{ dir string }

// record is the content of a pod's file.
type record struct {
	PortID  string `json:"portID"`
	Runtime string `json:"runtime"`
	// Sandbox is the last sandbox for which the pod was set up: a late teardown of an earlier one must not disconnect it.
	Sandbox string `json:"sandbox"`
}

func openRecords(dir string) (*records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of records: %w", err)
	}
	return &records{dir: dir}, nil
}

// namePattern is the form of pods' and namespaces' names in Kubernetes (RFC 1123 subdomains), which have at most nameMax characters. A length
// in the pattern would take a millisecond to compile, at each start of each command.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`) //nolint:gochecknoglobals // a constant

const nameMax = 253

func validName(name string) bool { return len(name) <= nameMax && namePattern.MatchString(name) }

func (r *records) path(key string) string { return filepath.Join(r.dir, key+".json") }

// get returns nil if there is none. A file that cannot be parsed is reported, and stays.
func (r *records) get(key string) (*record, error) {
	raw, err := os.ReadFile(r.path(key))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of pod %s: %w", key, err)
	}
	if len(bytes.Trim(raw, "\x00")) == 0 {
		return nil, nil // after a loss of power: the pod's devices were lost too
	}
	var rec record
	if err := json.Unmarshal(raw, &rec); err != nil {
		return nil, fmt.Errorf("record %s is broken; remove it once the pod's devices are gone: %w", r.path(key), err)
	}
	return &rec, nil
}

func (r *records) put(key string, rec record) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode the record of pod %s: %w", key, err)
	}
	fresh := r.path(key) + ".new"
	if err := os.WriteFile(fresh, raw, 0o600); err != nil {
		return fmt.Errorf("write the record of pod %s: %w", key, err)
	}
	if err := os.Rename(fresh, r.path(key)); err != nil {
		return fmt.Errorf("write the record of pod %s: %w", key, err)
	}
	return nil
}

func (r *records) drop(key string) error {
	if err := os.Remove(r.path(key)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the record of pod %s: %w", key, err)
	}
	return nil
}
