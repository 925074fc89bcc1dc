// Package suites decides which of the lab's test suites a change can reach: one suite for each network. A file below a network's own folders
// reaches that network only; a shared package reaches the networks that import it; everything else, such as wiring, the lab or the chart,
// reaches all. Documentation, and the record of the revision that CI has passed, reach none.
package suites

import (
	"path"
	"slices"
	"strings"
)

// Suite is the lab's test suite of one network.
type Suite struct {
	// Name is the network's.
	Name string
	// Roof are the folders that only this network uses.
	Roof []string
	// Tests are the packages to test, as patterns of the go command.
	Tests []string
}

// All returns the suites of all networks.
func All() []Suite {
	return []Suite{
		{
			Name: "overlay", Roof: []string{"api/openshift", "internal/overlay", "test/e2e", "test/install"},
			Tests: []string{"./lab/...", "./test/e2e/...", "./test/install/..."},
		},
		{Name: "flannel", Roof: []string{"cmd/weft-flannel", "internal/flannel", "lab/flanneld", "test/flannel"}, Tests: []string{"./test/flannel/..."}},
		{Name: "vpc", Roof: []string{"api/kubeovn", "internal/vpc", "internal/ovn", "internal/ovnd", "test/vpc"}, Tests: []string{"./test/vpc/..."}},
		{
			Name: "neutron", Roof: []string{"api/kubestack", "cmd/weft-provider", "api/stackube", "internal/neutron", "lab/stack/openstack", "test/ml2ovs", "test/neutron"},
			Tests: []string{"./test/neutron/...", "./test/ml2ovs/..."},
		},
	}
}

// Select returns the names of the suites that a change can reach, in order. changed are paths from the module's root, with slashes. imports
// are, by suite, the folders of the module's packages that the suite's roof imports, directly or not.
func Select(all []Suite, changed []string, imports map[string][]string) []string {
	reached := map[string]bool{}
	for _, file := range changed {
		for _, name := range reach(all, file, imports) {
			reached[name] = true
		}
	}
	var names []string
	for _, suite := range all {
		if reached[suite.Name] {
			names = append(names, suite.Name)
		}
	}
	return names
}

// passed is the file that names the revision which CI has passed last. Each change since then contains it, because it can only be written
// after that revision.
const passed = ".ci/base"

// reach returns the suites that one changed file can reach.
func reach(all []Suite, file string, imports map[string][]string) []string {
	if path.Ext(file) == ".md" || file == passed {
		return nil
	}
	folder := path.Dir(file)
	for _, suite := range all {
		if slices.ContainsFunc(suite.Roof, func(roof string) bool { return folder == roof || strings.HasPrefix(folder, roof+"/") }) {
			return []string{suite.Name}
		}
	}
	if strings.HasPrefix(file, "internal/") && strings.HasSuffix(file, "_test.go") {
		return nil // a unit test of a shared package: no suite runs it
	}
	var importers, names []string
	for _, suite := range all {
		names = append(names, suite.Name)
		if slices.Contains(imports[suite.Name], folder) {
			importers = append(importers, suite.Name)
		}
	}
	if strings.HasPrefix(file, "internal/") && len(importers) > 0 {
		return importers
	}
	return names
}
