//go:build real

package portspace

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Several concurrent plugins make one namespace, and the next plugin finds it. The file of a killed plugin is not a namespace.
func TestEnsure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := Ensure(path); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	inode := func() uint64 {
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Ino
	}
	first := inode()
	if !isThere(path) {
		t.Error("there is no namespace")
	}
	if err := Ensure(path); err != nil || inode() != first {
		t.Errorf("made again: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(mounts)) {
		if strings.Fields(line)[4] == path { // proc(5): the mount point
			count++
		}
	}
	if count != 1 {
		t.Errorf("%d mounts at %s", count, path)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A symbolic link at the path is not followed.
func TestEnsureFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	path, elsewhere := filepath.Join(dir, "ports"), filepath.Join(dir, "elsewhere")
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	if err := Ensure(path); err == nil {
		t.Error("made through a link")
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("something is there now")
	}
}
