package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Recorded reports whether the records in dir may have one of the attachment. It is for the CNI plugin, which reads beside the agent: it
// opens no store. A file that was set aside as broken counts as a record, because its interface may exist.
func Recorded(dir string, key Key) (bool, error) {
	name := fileName(key)
	_, err := os.Lstat(filepath.Join(dir, name))
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("records of attachments: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, brokenDir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("records of attachments: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), name) {
			return true, nil
		}
	}
	return false, nil
}
