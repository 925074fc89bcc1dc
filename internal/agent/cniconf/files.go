package cniconf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// isThere reports whether path is a regular file (not a link) with this content and mode.
func isThere(path string, data []byte, mode os.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode { // the mode includes the file type and setuid
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, data)
}

// writeAtomically replaces whatever is at path with data. A reader sees the old content or the new.
func writeAtomically(path string, data []byte, mode os.FileMode) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".weft-*")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, errors.Join(err, os.Remove(file.Name())))
		}
	}()
	_, err = file.Write(data)
	if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// InstallPlugin copies the plugin's executable to the runtime's plugin directory. It writes a new file and renames it, so that a runtime
// never starts an incomplete file. The file is not setuid, and only its owner can write it.
func InstallPlugin(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("installing the CNI plugin: %w", err)
	}
	const mode = 0o755
	if isThere(to, data, mode) {
		return nil
	}
	if err := writeAtomically(to, data, mode); err != nil {
		return fmt.Errorf("installing the CNI plugin: %w", err)
	}
	return nil
}

// CopyFile copies a file with its permissions. It writes a new file and renames it.
func CopyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("copying a file: %s is not a regular file", from)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}
	if into, err := os.Stat(to); err == nil && into.IsDir() {
		to = filepath.Join(to, filepath.Base(from))
	}
	if err := writeAtomically(to, data, info.Mode().Perm()); err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}
	return nil
}
