package cniconf

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
)

// write writes the overlay's configuration into a directory.
func write(dir string, f File) (written bool, err error) {
	data, err := f.Content()
	if err != nil {
		return false, err
	}
	return Write(filepath.Join(dir, Name), data)
}

func TestWriteConf(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	if _, err := write(dir, File{Socket: cni.DefaultSocket, Records: cni.DefaultRecords, Ports: ""}); err != nil {
		t.Fatal(err)
	}
	const want = `{
  "cniVersion": "1.0.0",
  "name": "weft",
  "plugins": [
    {
      "type": "weft",
      "capabilities": {
        "bandwidth": true,
        "io.kubernetes.cri.pod-annotations": true,
        "portMappings": true
      }
    }
  ]
}
`
	if got := content(t, path); got != want {
		t.Errorf("content\n%s\nwant\n%s", got, want)
	}
	first := stat(t, path)
	if first.Mode() != 0o644 {
		t.Errorf("mode %v", first.Mode())
	}
	if _, err := write(dir, File{Socket: cni.DefaultSocket, Records: cni.DefaultRecords, Ports: ""}); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(first, stat(t, path)) {
		t.Error("the same again was written again")
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := write(dir, File{Socket: cni.DefaultSocket, Records: cni.DefaultRecords, Ports: ""}); err != nil || stat(t, path).Mode() != 0o644 {
		t.Errorf("mode %v, error %v", stat(t, path).Mode(), err)
	}
	if _, err := write(dir, File{Socket: "/elsewhere/cni.sock", Records: "/elsewhere/records", Ports: "/elsewhere/ports"}); err != nil {
		t.Fatal(err)
	}
	var list conflist
	if err := json.Unmarshal([]byte(content(t, path)), &list); err != nil {
		t.Fatal(err)
	}
	if p := list.Plugins[0]; p.Socket != "/elsewhere/cni.sock" || p.Records != "/elsewhere/records" {
		t.Errorf("plugin %+v", p)
	}
	if _, err := cni.ParseNetConf([]byte(`{"cniVersion":"1.0.0","name":"` + list.Name + `","type":"weft","socket":"` + list.Plugins[0].Socket + `"}`)); err != nil {
		t.Errorf("the plugin refuses what is written: %v", err)
	}
	only(t, dir, Name)
	if _, err := write(filepath.Join(dir, "missing"), File{Socket: "/s", Records: "/r", Ports: ""}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its directory: %v", err)
	}
}

// A reader that opens the file while it is replaced reads the old content or the new. A failure leaves nothing behind.
func TestWriteAtomically(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := writeAtomically(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	if err := writeAtomically(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if old, err := io.ReadAll(open); err != nil || string(old) != "old" {
		t.Errorf("a reader that had the file open reads %q, %v", old, err)
	}
	if got := content(t, path); got != "new" {
		t.Errorf("content %q", got)
	}
	taken := filepath.Join(dir, "directory")
	if err := os.MkdirAll(filepath.Join(taken, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeAtomically(taken, []byte("x"), 0o600); err == nil || !strings.Contains(err.Error(), taken) {
		t.Errorf("in place of a directory: %v", err)
	}
	only(t, dir, "directory", "file")
}

func TestInstallPlugin(t *testing.T) {
	dir := t.TempDir()
	from, bin := filepath.Join(dir, "weft-cni"), filepath.Join(dir, "bin")
	to := filepath.Join(bin, "weft")
	if err := errors.Join(os.WriteFile(from, []byte("program"), 0o600), os.Mkdir(bin, 0o700)); err != nil {
		t.Fatal(err)
	}
	install := func() {
		t.Helper()
		if err := InstallPlugin(from, to); err != nil {
			t.Fatal(err)
		}
		if info := stat(t, to); info.Mode() != 0o755 {
			t.Errorf("mode %v", info.Mode())
		}
		if got := content(t, to); got != content(t, from) {
			t.Errorf("content %q", got)
		}
		only(t, bin, "weft")
	}
	install()
	first := stat(t, to)
	install()
	if !os.SameFile(first, stat(t, to)) {
		t.Error("the same again was written again")
	}
	for _, mode := range []fs.FileMode{0o755 | fs.ModeSetuid, 0o777, 0o644} {
		if err := os.Chmod(to, mode); err != nil {
			t.Fatal(err)
		}
		install()
	}
	if err := errors.Join(os.Remove(to), os.Symlink(from, to)); err != nil {
		t.Fatal(err)
	}
	install()
	if err := os.WriteFile(from, []byte("newer program"), 0o600); err != nil {
		t.Fatal(err)
	}
	install()
	if err := InstallPlugin(filepath.Join(dir, "missing"), to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a program: %v", err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func stat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func only(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, entry := range entries {
		have = append(have, entry.Name())
	}
	if strings.Join(have, " ") != strings.Join(names, " ") {
		t.Errorf("%s has %v, want %v", dir, have, names)
	}
}
