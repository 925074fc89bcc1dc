package pages

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// instead is a program in place of weft-lab: "--name NAME env" or "--name NAME exec NODE -- COMMAND...".
const instead = `#!/bin/sh
if [ "$3" = env ]; then
  echo "export LAB=$2"
  exit
fi
export LAB="$2" NODE="$4"
shift 5
exec "$@"
`

const commands = `# A page

<!-- run: one -->

    rm -f it
    [ "$LAB" = mine ] && echo first PLACE >>said

<!-- run: one n1,n2 -->

    rm -f it
    echo "$LAB $NODE" >>said

<!-- run: two -->

    rm -f of-two

<!-- run: one -->

    rm -f it
    false
    echo not reached >>said
`

// A test runs the blocks of its lab in an order of its own: on the machine with the lab's environment, or on each node. A command that
// fails ends its block, and a block that does not run is named.
func TestReading(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"README.md": "", "docs/page.md": commands, "bin/weft-lab": instead} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil { //nolint:gosec // a program of the test
			t.Fatal(err)
		}
	}
	said := func() string {
		text, err := os.ReadFile(filepath.Join(root, "said"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	r, err := Runner{Root: root, Bin: filepath.Join(root, "bin"), Lab: "mine", Names: strings.NewReplacer("PLACE", "here")}.Read("one")
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"$NODE", "first"} {
		if err := r.Run(t.Context(), words); err != nil {
			t.Fatal(err)
		}
	}
	if want := "mine n1\nmine n2\nfirst here\n"; said() != want {
		t.Errorf("the blocks wrote %q, want %q", said(), want)
	}
	if err := r.Run(t.Context(), "of-two"); !errors.Is(err, ErrNoBlock) {
		t.Errorf("a block for another lab: %v", err)
	}
	if err := r.End(); err == nil || !strings.Contains(err.Error(), "page.md:19") {
		t.Errorf("a block that has not run: %v", err)
	}
	if err := r.Run(t.Context(), "not reached"); err == nil || !strings.Contains(err.Error(), "page.md:19") {
		t.Errorf("a command that fails: %v", err)
	}
	if strings.Contains(said(), "not reached") {
		t.Error("a block continues after a command that fails")
	}
	if err := r.End(); err != nil {
		t.Error(err)
	}
}
