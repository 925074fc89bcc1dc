package plan

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

func wanting(name string, netid uint32, ips ...string) networkv1.NetNamespace {
	return networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}, NetName: name, NetID: netid, EgressIPs: ips}
}

func hosting(name string, cidr string, ips ...string) networkv1.HostSubnet {
	hs := networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7"}, Host: name, EgressIPs: ips}
	if cidr != "" {
		hs.EgressCIDRs = []string{cidr}
	}
	return hs
}

// An address of a host that does not answer is taken off in one plan and assigned to another host in the next. A cluster in the desired
// state has an empty plan.
func TestEgressIPsMoveInTwoPlans(t *testing.T) {
	s := EgressIPState{
		HostSubnets:   []networkv1.HostSubnet{hosting("n1", "192.0.2.0/24", "192.0.2.5"), hosting("n2", "192.0.2.0/24"), hosting("n3", "", "192.0.2.77")},
		NetNamespaces: []networkv1.NetNamespace{wanting("a", 10, "192.0.2.5"), wanting("b", 11)},
	}
	settled := EgressIPs(s)
	if !settled.Empty() || settled.Again || len(settled.Problems) > 0 || settled.InUse["a"] != "192.0.2.5 at n1" || len(settled.InUse) != 1 {
		t.Errorf("settled: %+v", settled)
	}
	s.Offline = map[string]bool{"n1": true}
	off := EgressIPs(s)
	if len(off.Update) != 1 || off.Update[0].Name != "n1" || len(off.Update[0].EgressIPs) != 0 || off.Update[0].ResourceVersion != "7" || !off.Again || len(off.Problems) > 0 {
		t.Fatalf("first: %+v", off)
	}
	if s.HostSubnets[0].EgressIPs == nil {
		t.Error("the object that was read is changed")
	}
	s.HostSubnets[0] = *off.Update[0]
	on := EgressIPs(s)
	if len(on.Update) != 1 || on.Update[0].Name != "n2" || !slices.Equal(on.Update[0].EgressIPs, []string{"192.0.2.5"}) || on.Again || on.InUse["a"] != "192.0.2.5 at n2" {
		t.Errorf("second: %+v", on)
	}
}

// The problem of an unassigned address is about the NetNamespace, and says what the hosts with ranges could do.
func TestEgressIPsSayWhy(t *testing.T) {
	s := EgressIPState{
		HostSubnets:   []networkv1.HostSubnet{hosting("n1", "192.0.2.0/24")},
		NetNamespaces: []networkv1.NetNamespace{wanting("a", 10, "192.0.2.5"), wanting("b", 11, "198.51.100.1")},
		Capacity:      map[string]int{"n1": 0},
	}
	want := map[string]string{
		"a": "egressIPs: 192.0.2.5 is hosted by no node: node n1 has all 0 that it can have",
		"b": "egressIPs: 198.51.100.1 is hosted by no node: no node has it in its egressCIDRs",
	}
	result := EgressIPs(s)
	if len(result.Problems) != len(want) {
		t.Errorf("problems %+v", result.Problems)
	}
	for _, p := range result.Problems {
		if p.Message != want[p.Name] || p.UID != "uid" || p.Reason != networkv1.ReasonEgressIPUnassigned {
			t.Errorf("%+v, want %q", p, want[p.Name])
		}
	}
	s.HostSubnets, s.NetNamespaces = []networkv1.HostSubnet{hosting("n1", "")}, s.NetNamespaces[:1]
	if result := EgressIPs(s); len(result.Problems) != 1 || !strings.Contains(result.Problems[0].Message, "list it in egressIPs of a HostSubnet") {
		t.Errorf("by hand: %+v", result.Problems)
	}
	s.NetNamespaces = append(s.NetNamespaces, wanting("b", 11, "192.0.2.5"))
	for _, p := range EgressIPs(s).Problems {
		if p.Reason != networkv1.ReasonEgressIPConflict {
			t.Errorf("wanted by two: %+v", p)
		}
	}
}

// An address that its host has refused is not in use.
func TestEgressIPsRefused(t *testing.T) {
	n1 := hosting("n1", "", "192.0.2.5")
	n1.Status.RefusedEgressIPs = []networkv1.HostSubnetRefusedEgressIP{{IP: "192.0.2.5", Reason: "it is taken"}}
	result := EgressIPs(EgressIPState{
		HostSubnets:   []networkv1.HostSubnet{n1, hosting("n2", "", "192.0.2.6")},
		NetNamespaces: []networkv1.NetNamespace{wanting("a", 10, "192.0.2.5", "192.0.2.6")},
	})
	if result.InUse["a"] != "192.0.2.6 at n2" || len(result.Problems) != 1 || result.Problems[0].Reason != networkv1.ReasonEgressIPRefused {
		t.Errorf("%+v", result)
	}
}
