package suites

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestSelect(t *testing.T) {
	imports := map[string][]string{
		"overlay": {"internal/openflow", "internal/policy", "internal/link"}, "flannel": {"internal/policy", "internal/link"},
		"vpc": {"internal/link"}, "neutron": {"internal/openflow", "internal/link"},
	}
	every := []string{"overlay", "flannel", "vpc", "neutron"}
	for name, test := range map[string]struct{ changed, want []string }{
		"nothing":                {nil, nil},
		"documentation":          {[]string{"README.md", "docs/vpc.md"}, nil},
		"the revision passed":    {[]string{".ci/base"}, nil},
		"continuous integration": {[]string{".ci/run"}, every},
		"a network's own":        {[]string{"internal/flannel/lease/lease.go"}, []string{"flannel"}},
		"a network's root":       {[]string{"internal/vpc/vpc.go"}, []string{"vpc"}},
		"two networks' own":      {[]string{"internal/neutron/conf/conf.go", "api/kubeovn/v1/vpc.go"}, []string{"vpc", "neutron"}},
		"a name that only looks": {[]string{"internal/overlayed/x.go"}, every},
		"an engine":              {[]string{"internal/openflow/codec.go"}, []string{"overlay", "neutron"}},
		"a shared package":       {[]string{"internal/policy/index.go"}, []string{"overlay", "flannel"}},
		"a shared unit test":     {[]string{"internal/policy/index_test.go"}, nil},
		"wiring":                 {[]string{"internal/agent/agent.go"}, every},
		"the lab":                {[]string{"lab/lab.go"}, every},
		"the chart":              {[]string{"deploy/chart/values.yaml"}, every},
		"modules":                {[]string{"go.mod"}, every},
		"a network's lab test":   {[]string{"test/e2e/matrix_test.go"}, []string{"overlay"}},
		"a second lab's test":    {[]string{"test/ml2ovs/tenants_test.go"}, []string{"neutron"}},
		"a network's lab":        {[]string{"lab/stack/openstack/agents.go"}, []string{"neutron"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Select(All(), test.changed, imports); !slices.Equal(got, test.want) {
				t.Errorf("%v reaches %v, want %v", test.changed, got, test.want)
			}
		})
	}
}

// Every folder with tests in the lab belongs to a suite or to the lab itself, so that none is left out.
func TestEveryLabTestIsInASuite(t *testing.T) {
	folders, err := filepath.Glob("../*/*_test.go")
	if err != nil || len(folders) == 0 {
		t.Fatal(folders, err)
	}
	for _, file := range folders {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(content) < 11 || string(content[:11]) != "//go:build " {
			continue
		}
		folder := "./test/" + filepath.Base(filepath.Dir(file)) + "/..."
		if !slices.ContainsFunc(All(), func(s Suite) bool { return slices.Contains(s.Tests, folder) }) {
			t.Errorf("%s needs the lab, and no suite has %s", file, folder)
		}
	}
}
