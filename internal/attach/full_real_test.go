//go:build real

package attach

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDiskFull fills a real file system. It mounts one, which needs root.
func TestDiskFull(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("wt-records", mount, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Errorf("unmounting %s: %v", mount, err)
		}
	})
	s, err := Open(filepath.Join(mount, "attachments"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	before := sample(1)
	put(t, s, before)
	filler := filepath.Join(mount, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the file system: %v", err)
	}

	after := before
	after.State = Attached
	for name, rec := range map[string]Record{"change": after, "new": sample(2)} {
		if err := s.Put(t.Context(), rec); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s on a full disk: %v", name, err)
		}
	}
	wantList(t, s, before)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(filepath.Join(mount, "attachments")); err != nil {
		t.Fatal(err)
	}
	wantList(t, s, before)
	if broken := s.Broken(); len(broken) != 0 {
		t.Errorf("broken: %v", broken)
	}
	if err := s.Delete(t.Context(), before.Key()); err != nil {
		t.Errorf("a full disk must not keep attachments from going: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	put(t, s, sample(2))
}
