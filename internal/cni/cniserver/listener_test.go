package cniserver_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni/cniserver"
	"weft.dev/weft/internal/cni/rootdir"
)

func TestListen(t *testing.T) {
	uid := uint32(os.Geteuid()) //nolint:gosec // Uids fit.
	dir := t.TempDir()
	socket := filepath.Join(dir, "run", "cni", "cni.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(socket), 0o777); err != nil { //nolint:gosec // To be corrected.
		t.Fatal(err)
	}
	listener, err := cniserver.Listen(socket, uid)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{filepath.Dir(socket): 0o700, socket: 0o600} {
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %o", path, info.Mode(), err, want)
		}
	}
	if _, err := cniserver.Listen(socket, uid); !errors.Is(err, rootdir.ErrInUse) {
		t.Errorf("a second agent: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after Close: %v", err)
	}
}

func TestListenTakesOverAndRefuses(t *testing.T) {
	uid := uint32(os.Geteuid()) //nolint:gosec // Uids fit.
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead", "cni.sock")
	if err := os.Mkdir(filepath.Dir(dead), 0o700); err != nil {
		t.Fatal(err)
	}
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	listener, err := cniserver.Listen(dead, uid)
	if err != nil {
		t.Fatalf("what a dead agent left: %v", err)
	}
	_ = listener.Close()

	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("dead", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"a file in the socket's place": dead,
		"a linked directory":           filepath.Join(dir, "link", "other.sock"),
		"a relative path":              "cni/cni.sock",
		"a path too long":              filepath.Join(dir, "long", strings.Repeat("x", 120)),
	} {
		if listener, err := cniserver.Listen(path, uid); err == nil {
			t.Errorf("%s is taken", name)
			_ = listener.Close()
		}
	}
}
