package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopyPrograms: called by the names that the init containers of flannel's manifest use, the program copies a file with its permissions.
// It replaces an existing file, and follows a symbolic link.
func TestCopyPrograms(t *testing.T) {
	dir := t.TempDir()
	from, link, to := filepath.Join(dir, "weft-flannel"), filepath.Join(dir, "flannel"), filepath.Join(dir, "to")
	if err := os.WriteFile(from, []byte("new"), 0o755); err != nil { //nolint:gosec // an executable
		t.Fatal(err)
	}
	if err := os.Symlink(from, link); err != nil {
		t.Fatal(err)
	}
	for program, args := range map[string][]string{"cp": {"-f", link, to}, "install-conf": {from, to}} {
		if err := os.WriteFile(to, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := Weft(Environment{Program: program})
		cmd.SetArgs(args)
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(to)
		info, statErr := os.Stat(to)
		if err != nil || statErr != nil || string(text) != "new" || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %q %v, %v %v", program, text, info.Mode(), err, statErr)
		}
	}
	for words, args := range map[string][]string{
		"takes its path and that of the copy": {from}, "no such file": {filepath.Join(dir, "none"), to}, "not a regular file": {dir, to}, "copies one file": {"-r", from, to},
	} {
		cmd := Weft(Environment{Program: "cp"})
		cmd.SetArgs(args)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("cp %q: error %v, want %q", args, err, words)
		}
	}
}
