//go:build real

package rootdir_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni/rootdir"
)

// TestOpenRefusesOthers: Open refuses another user's directory, and one whose parent is another user's. It needs root.
func TestOpenRefusesOthers(t *testing.T) {
	const unprivileged = 65534
	base := t.TempDir()
	own, parent := filepath.Join(base, "own"), filepath.Join(base, "parent")
	mkdir(t, own, 0o700)
	mkdir(t, parent, 0o755)
	mkdir(t, filepath.Join(parent, "dir"), 0o700)
	for _, dir := range []string{own, parent} {
		if err := os.Chown(dir, unprivileged, unprivileged); err != nil {
			t.Fatalf("this test needs root: %v", err)
		}
	}
	for _, dir := range []string{own, filepath.Join(parent, "dir")} {
		file, err := rootdir.Open(dir)
		if err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
			t.Errorf("%s: %v", dir, err)
		}
		if err == nil {
			_ = file.Close()
		}
	}
}
