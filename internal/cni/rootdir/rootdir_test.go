package rootdir_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"weft.dev/weft/internal/cni/rootdir"
)

func TestOpen(t *testing.T) {
	base := t.TempDir()
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"missing":        func(*testing.T, string) {},
		"parent missing": nil,
		"too open":       func(t *testing.T, dir string) { mkdir(t, dir, 0o777) },
		"too closed":     func(t *testing.T, dir string) { mkdir(t, dir, 0o500) },
		"as it should":   func(t *testing.T, dir string) { mkdir(t, dir, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(base, name)
			if prepare == nil {
				dir = filepath.Join(dir, "b", "c")
			} else {
				prepare(t, dir)
			}
			file, err := rootdir.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(dir)
			if err != nil || info.Mode().Perm() != rootdir.Mode {
				t.Errorf("mode %o, %v", info.Mode().Perm(), err)
			}
			if _, err := rootdir.Open(dir); !errors.Is(err, rootdir.ErrInUse) {
				t.Errorf("opened twice: %v", err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
			again, err := rootdir.Open(dir)
			if err != nil {
				t.Fatalf("after Close: %v", err)
			}
			_ = again.Close()
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	base := t.TempDir()
	mkdir(t, filepath.Join(base, "real"), 0o700)
	mkdir(t, filepath.Join(base, "public"), 0o777)
	mkdir(t, filepath.Join(base, "public", "dir"), 0o700)
	if err := os.Symlink("real", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(base)
	for name, dir := range map[string]string{
		"a link":       filepath.Join(base, "link"),
		"a file":       filepath.Join(base, "file"),
		"below a file": filepath.Join(base, "file", "dir"),
		"relative":     "real",
		"in a directory that all users may write": filepath.Join(base, "public", "dir"),
	} {
		if file, err := rootdir.Open(dir); err == nil {
			t.Errorf("%s was opened", name)
			_ = file.Close()
		}
	}
	if info, err := os.Stat(filepath.Join(base, "real")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func mkdir(t *testing.T, dir string, mode os.FileMode) {
	t.Helper()
	if err := os.Mkdir(dir, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
}
