// Package docs_test keeps true what pages say of the tree.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The table of OpenShift SDN's faults has all 20, each with tests, and the tests exist.
func TestFaultsHaveTests(t *testing.T) {
	complete(t, tableOfTests(t, "## What OpenShift SDN got wrong"), 20)
}

// The table of KubeStack's faults has all from 31 to 42, in order, and names tests that exist.
func TestKubeStackFaultsHaveTests(t *testing.T) {
	const first, last = 31, 42
	var all []int
	for n := first; n <= last; n++ {
		all = append(all, n)
	}
	if rows := tableOfTests(t, "## What KubeStack and stackube got wrong"); !slices.Equal(rows, all) {
		t.Errorf("rows %v, want %v", rows, all)
	}
}

// The table of flannel's faults is in order and complete, and names tests that exist.
func TestFlannelFaultsHaveTests(t *testing.T) {
	complete(t, tableOfTests(t, "## What flannel got wrong"), 38)
}

// The table of what a replacement of flannel would get wrong has all 30, each with tests, and the tests exist.
func TestFlannelTrapsHaveTests(t *testing.T) {
	complete(t, tableOfTests(t, "### What a replacement of flannel would get wrong"), 30)
}

// The table of Kube-OVN's faults has all 37 but those of parts that are not served, in order, and names tests that exist.
func TestKubeOVNFaultsHaveTests(t *testing.T) {
	const qos, rulesOfPolicies, loadBalancers, dualStack, probes = 10, 22, 25, 29, 34
	complete(t, tableOfTests(t, "## What Kube-OVN's VPCs got wrong"), 37, qos, rulesOfPolicies, loadBalancers, dualStack, probes)
}

// The table of what must hold for VPCs is in order and complete, and names tests that exist.
func TestVPCsHaveTests(t *testing.T) {
	complete(t, tableOfTests(t, "## What must hold for VPCs"), 37)
}

// The table of what an attack found is in order, and names tests that exist.
func TestAttacksHaveTests(t *testing.T) {
	inOrder(t, tableOfTests(t, "## What an attack found"), 26)
}

// complete requires the rows to be all from 1 to last but those excepted, in order.
func complete(t *testing.T, rows []int, last int, except ...int) {
	t.Helper()
	var want []int
	for number := 1; number <= last; number++ {
		if !slices.Contains(except, number) {
			want = append(want, number)
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the table has the rows %v, want %v", rows, want)
	}
}

// inOrder requires the rows to be some of those from 1 to last, in order, none twice.
func inOrder(t *testing.T, rows []int, last int) {
	t.Helper()
	if len(rows) == 0 || !slices.IsSorted(rows) || len(slices.Compact(slices.Clone(rows))) != len(rows) || rows[0] < 1 || rows[len(rows)-1] > last {
		t.Errorf("rows %v: they are not in order from 1 to %d", rows, last)
	}
}

// tableOfTests reads the table below a heading of testing.md: number, what went wrong, tests. It returns the numbers.
func tableOfTests(t *testing.T, heading string) (numbers []int) {
	t.Helper()
	page, err := os.ReadFile("testing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), heading)
	if !found {
		t.Fatalf("testing.md has no %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	section, _, _ = strings.Cut(section, "\n### ")
	row := regexp.MustCompile(`(?m)^\| (\d+) \| (.+) \| (.+) \|$`)
	name := regexp.MustCompile("`([a-z0-9/-]+)/(Test[A-Za-z0-9]+)`")
	for _, fields := range row.FindAllStringSubmatch(section, -1) {
		number, err := strconv.Atoi(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, number)
		tests := name.FindAllStringSubmatch(fields[3], -1)
		if len(tests) == 0 || len(tests) != strings.Count(fields[3], ",")+1 {
			t.Errorf("%d: of %s, %d can be read", number, fields[3], len(tests))
		}
		for _, test := range tests {
			if !has(t, filepath.FromSlash(test[1]), test[2]) {
				t.Errorf("%d: in %s there is no %s", number, test[1], test[2])
			}
		}
	}
	return numbers
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
