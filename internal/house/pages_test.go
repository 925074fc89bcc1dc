package house

import (
	"testing"

	"weft.dev/weft/lab/pages"
)

// Every block of commands in the documentation says which test runs it, or why none does. Most blocks are run.
func TestCommandsAreMarked(t *testing.T) {
	all, err := pages.All("../..")
	if err != nil {
		t.Fatal(err)
	}
	run := 0
	for _, b := range all {
		if b.Lab != "" {
			run++
		} else if b.Reason == "" {
			t.Errorf("%s: above this block, write <!-- run: quickstart -->, or <!-- not run: REASON -->; package lab/pages has the forms\n%s", b, b.Text)
		}
	}
	if run < 35 {
		t.Errorf("of %d blocks of commands, %d are run", len(all), run)
	}
}
