package rows_test

import (
	"regexp"
	"slices"
	"testing"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/rows"
)

func names(groups []rows.Group) []string {
	var all []string
	for _, g := range groups {
		for _, r := range g.Rows {
			all = append(all, r.Name)
		}
	}
	return all
}

func TestRowsAreNamed(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range rows.All() {
		for _, r := range g.Rows {
			if r.Name == "" || r.Unit == "" || r.Metric == "" || g.Title == "" {
				t.Errorf("row %+v of %q has no name, unit or metric", r, g.Title)
			}
			if seen[r.Name] {
				t.Errorf("there are two rows %s", r.Name)
			}
			seen[r.Name] = true
		}
	}
}

// TestTargets: the benchmark requires what Weft promises.
func TestTargets(t *testing.T) {
	want := map[string]string{
		"cni/10/add": "ratio <= 1 (goal 0.6)", "cni/100/add": "ratio <= 1 (goal 0.6)",
		"cni/10/del-answered": "ratio <= 0.8", "cni/100/del-answered": "ratio <= 0.8",
		"cni/10/del-link-gone": "ratio <= 1", "cni/100/del-link-gone": "ratio <= 1",
		"burst/32":         "ratio >= 1.2 (goal 1.7)",
		"flows/50000/sync": "ratio >= 0.85", "flows/50000/resync-mods": "ours <= 0",
		"restart/100/in-step": "ratio <= 3", "restart/100/lost": "ours <= 0", "restart/100/flow-mods": "ours <= 0",
		"memory/agent/500-100/resident": "ours <= 60",
		"forwarding/pod/2-flows-ct":     "ratio <= 1.1", "forwarding/service/2-flows-ct": "ratio <= 1.1",
		"policies/flows/200x200": "ours <= 410", "policies/flows/1000x1000": "ours <= 2010",
		"policies/forwarding/1000-beside": "ratio <= 1.05", "policies/forwarding/1000-isolated": "ratio <= 1.05", "policies/forwarding/1000-1": "ratio <= 1.05",
		"policies/latency/0/p50": "ours <= 20", "policies/latency/0/agent": "ours <= 5",
		"policies/latency/1000/p50": "ours <= 20", "policies/latency/1000/agent": "ours <= 5", "policies/latency/1000/p99": "ours <= 50",
		"policies/latency/10000/p50": "ours <= 20", "policies/latency/10000/agent": "ours <= 5", "policies/latency/10000/p99": "ours <= 100",
		"policies/first-packet/leaked": "ours <= 0",
		"egress-ip/failover":           "ours <= 2000 (goal 500)",
		"flannel/add":                  "ratio <= 0.6 (goal 0.45)", "flannel/del": "ratio <= 0.8", "flannel/burst": "ratio >= 1.5",
		"flannel/throughput/nodes": "ratio >= 0.98", "flannel/throughput/node": "ratio >= 0.98",
		"flannel/latency/nodes": "ratio <= 1.02", "flannel/latency/node": "ratio <= 1.02",
		"flannel/packet-cpu/nodes": "ratio <= 1.02", "flannel/packet-cpu/node": "ratio <= 1.02",
		"flannel/policy/throughput/nodes": "ratio >= 0.95", "flannel/policy/throughput/node": "ratio >= 0.95",
		"flannel/policy/packet-cpu/nodes": "ratio <= 1.05", "flannel/policy/packet-cpu/node": "ratio <= 1.05",
		"flannel/policy/p50": "ours <= 20", "flannel/policy/p99": "ours <= 50", "flannel/policy/cost": "ours <= 410", "flannel/memory": "ratio <= 1",
		"flannel/leases-5000": "ratio <= 1.3", "flannel/lease-event": "ours <= 5", "flannel/lease-event/growth": "ratio <= 1.5", "flannel/resync": "ours <= 0",
		"switch-killed/100/forwards": "ratio <= 2",
		"vpc/add":                    "ratio <= 1.3", "vpc/first-ping": "ratio <= 1.5",
		"vpc/250/add": "ratio <= 1.5", "vpc/250/subnet": "ratio <= 1.2", "vpc/250/start": "ratio <= 2", "vpc/250/start/rows": "ours <= 0",
		"vpc/250/memory": "ratio <= 0.7", "vpc/memory/agent": "ratio <= 1.3",
		"gateway/fip-50": "ratio <= 2", "gateway/fip-50/all": "ours <= 3000",
		"gateway/forwarding/throughput": "ratio >= 0.95", "gateway/forwarding/cpu": "ratio <= 1.05",
		"neutron/add": "ratio <= 1.2 (goal 1)", "neutron/del": "ratio <= 1.1", "neutron/add-cold": "ratio <= 1.15", "neutron/burst": "ratio <= 0.8 (goal 0.6)",
		"neutron/forwarding": "ratio <= 1.05", "neutron/forwarding/service": "ratio <= 1.1", "neutron/loadbalancer": "ratio <= 1.2",
		"neutron/restart/openstack-writes": "ours <= 0", "neutron/restart/rows": "ours <= 0", "neutron/restart/flow-mods": "ours <= 0",
		"neutron/memory/agent": "ours <= 8", "neutron/memory/controller": "ours <= 60", "provider/rpc": "ratio <= 1.15", "provider/memory": "ours <= 40",
	}
	for _, g := range rows.All() {
		for _, r := range g.Rows {
			if got := r.Target.String(); got != want[r.Name] {
				t.Errorf("row %s demands %q, not %q", r.Name, got, want[r.Name])
			}
			delete(want, r.Name)
		}
	}
	if len(want) > 0 {
		t.Errorf("there are no rows for %v", want)
	}
}

func TestMatching(t *testing.T) {
	for pattern, want := range map[string][]string{
		"^cni/10/(add|del-answered)$": {"cni/10/add", "cni/10/del-answered"},
		"^burst/32$|curve/50/":        {"burst/32", "curve/50/add"},
		"nothing of the kind":         nil,
	} {
		if got := names(rows.Matching(rows.All(), regexp.MustCompile(pattern))); !slices.Equal(got, want) {
			t.Errorf("%s matches %v, not %v", pattern, got, want)
		}
	}
	all := rows.All()
	if got := names(rows.Matching(all, regexp.MustCompile(""))); !slices.Equal(got, names(all)) {
		t.Errorf("the empty expression leaves %v", got)
	}
}

// TestMatchingLeavesGroups: Matching filters copies.
func TestMatchingLeavesGroups(t *testing.T) {
	groups := []rows.Group{{Rows: []measure.Row{{Name: "a"}, {Name: "b"}}}}
	rows.Matching(groups, regexp.MustCompile("b"))
	if got := names(groups); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the groups became %v", got)
	}
}
