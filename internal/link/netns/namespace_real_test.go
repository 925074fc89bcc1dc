//go:build real

package netns

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
)

func TestOpenNamespaceRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo, empty, full := filepath.Join(dir, "fifo"), filepath.Join(dir, "empty"), filepath.Join(dir, "full")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(empty, nil, 0o600), os.WriteFile(full, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		fifo: link.ErrNotNamespace, full: link.ErrNotNamespace, "/proc/self/ns/mnt": link.ErrNotNamespace, "/dev/null": link.ErrNotNamespace, dir: link.ErrNotNamespace,
		empty: link.ErrNoNamespace, filepath.Join(dir, "none"): link.ErrNoNamespace, filepath.Join(full, "x"): link.ErrNoNamespace,
	} {
		if _, err := Open(path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}
