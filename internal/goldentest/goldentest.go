// Package goldentest compares what code renders with files of the repository: golden files, and pages that are written from the code.
package goldentest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//nolint:gochecknoglobals // a flag of test programs
var update = flag.Bool("update", false, "write golden files, and pages from the code, anew")

// Compare fails the test if the file at path has another content. With the flag -update, it writes the file first.
func Compare(t testing.TB, path, content string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), content); diff != "" {
		t.Errorf("%s is out of date: look at what changed, then run go test with -update (-want +got):\n%s", path, diff)
	}
}
