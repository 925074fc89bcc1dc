// Package docs_test keeps true what pages say of the tree.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The table of faults has them all, each with tests, and the tests are there.
func TestFaultsHaveTests(t *testing.T) {
	const faults = 20
	page, err := os.ReadFile("testing.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| (\d+) \| (.+) \| (.+) \|$`)
	name := regexp.MustCompile("`([a-z0-9/]+)/(Test[A-Za-z0-9]+)`")
	rows := row.FindAllStringSubmatch(string(page), -1)
	if len(rows) != faults {
		t.Errorf("the table has %d rows, want %d", len(rows), faults)
	}
	for i, fields := range rows {
		number, tests := fields[1], name.FindAllStringSubmatch(fields[3], -1)
		if number != strconv.Itoa(i+1) {
			t.Errorf("row %d is number %s", i+1, number)
		}
		if len(tests) == 0 || len(tests) != strings.Count(fields[3], ",")+1 {
			t.Errorf("%s: of %s, %d can be read", number, fields[3], len(tests))
		}
		for _, test := range tests {
			if !has(t, filepath.FromSlash(test[1]), test[2]) {
				t.Errorf("%s: in %s there is no %s", number, test[1], test[2])
			}
		}
	}
}

// has reports whether a folder has a test.
func has(t *testing.T, folder, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+test+"(t *testing.T) {") {
			return true
		}
	}
	return false
}
