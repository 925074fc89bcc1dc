package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// records is a folder with a file for each pod that was set up, written before the first side effect: by it TeardownPod
// finds the host's devices also when the port is gone from OpenStack.
type records struct{ dir string }

// record is what a pod's file holds.
type record struct {
	PortID  string `json:"portID"`
	Runtime string `json:"runtime"`
	// Sandbox is what the pod was set up for last: a late teardown of an earlier one must not disconnect it.
	Sandbox string `json:"sandbox"`
}

func openRecords(dir string) (*records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of records: %w", err)
	}
	return &records{dir: dir}, nil
}

// name is the form of pods' and namespaces' names in Kubernetes (RFC 1123 subdomains).
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`) //nolint:gochecknoglobals // a constant

func (r *records) path(key string) string { return filepath.Join(r.dir, key+".json") }

// get returns nil where there is none. A file that cannot be read as a record is reported, and stays.
func (r *records) get(key string) (*record, error) {
	raw, err := os.ReadFile(r.path(key))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of pod %s: %w", key, err)
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
