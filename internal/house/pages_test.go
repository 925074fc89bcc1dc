package house

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"weft.dev/weft/lab/pages"
)

// readers are the kinds of labs in which blocks run, each with the test that runs all blocks of the kind.
func readers() map[string]string {
	return map[string]string{
		"quickstart": "lab/matrix/TestQuickstart",
		"cni":        "lab/matrix/TestMatrixWithoutKubelets",
		"e2e":        "test/e2e/TestMTUChange",
		"flannel":    "test/flannel/TestManifest",
		"install":    "test/install/TestUpgradeAndUninstall",
		"ml2ovs":     "test/ml2ovs/TestTenants",
		"neutron":    "test/neutron/TestExamples",
		"vpc":        "test/vpc/TestExamples",
		"vpc-cni":    "test/vpc/TestFailures",
	}
}

// Every block of commands in the documentation says which test runs it, or why none does. The tests exist. Most blocks are run.
func TestCommandsAreMarked(t *testing.T) {
	all, err := pages.All("../..")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`[a-z0-9/]+/Test\w+`)
	used := map[string]bool{}
	run := 0
	for _, b := range all {
		switch {
		case b.Lab != "":
			run++
			used[b.Lab] = true
			if readers()[b.Lab] == "" {
				t.Errorf("%s: no test runs the blocks for a lab %q\n%s", b, b.Lab, b.Text)
			}
		case b.Reason == "":
			t.Errorf("%s: above this block, write <!-- run: quickstart -->, or <!-- not run: REASON -->; package lab/pages has the forms\n%s", b, b.Text)
		}
		for _, test := range named.FindAllString(b.Reason, -1) {
			if !exists(t, test) {
				t.Errorf("%s: the reason names %s, which does not exist", b, test)
			}
		}
	}
	for lab, test := range readers() {
		if !used[lab] || !exists(t, test) {
			t.Errorf("lab %s: a block is marked for it: %t; %s, which runs such blocks, exists: %t", lab, used[lab], test, exists(t, test))
		}
	}
	if run < 55 {
		t.Errorf("of %d blocks of commands, %d are run", len(all), run)
	}
}

// exists reports whether a test exists: the folder of its package and its name, separated by a slash.
func exists(t *testing.T, test string) bool {
	t.Helper()
	folder, name := filepath.Split(test)
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^func ` + name + `\(`).Match(text) {
			return true
		}
	}
	return false
}
