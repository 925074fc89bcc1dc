package cluster

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/objects"
)

// spec.networkID must name a network of the tenant's project, or one that is shared with it, which is neither external nor another Network's.
func TestNetworkID(t *testing.T) {
	r := newRig(t)
	for id, project := range map[string]string{"shared": "*", "given": "blue", "admins": "admin"} {
		r.cloud.share(id, project)
	}
	const project = "blue"
	rules := &objects.Rules{Allowed: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	for id, c := range map[string]struct {
		network object
		state   string
		cidr    string
	}{
		"own":       {object{"project_id": project}, stackubev1.StateActive, "10.244.0.0/24"},
		"shared":    {object{"project_id": "red", "shared": true}, stackubev1.StateActive, "10.244.0.0/24"},
		"given":     {object{"project_id": "red"}, stackubev1.StateActive, "10.244.0.0/24"},
		"admins":    {object{"project_id": "red", "shared": true}, stackubev1.StateFailed, "10.244.0.0/24"}, // so Neutron answers a user of "admin"
		"provider":  {object{"project_id": project, "description": "weft weft provider/a"}, stackubev1.StateActive, "10.244.0.0/24"},
		"itself":    {object{"project_id": project, "description": "weft weft network/uid-blue"}, stackubev1.StateActive, "10.244.0.0/24"},
		"foreign":   {object{"project_id": "admin"}, stackubev1.StateFailed, "10.244.0.0/24"},
		"another":   {object{"project_id": project, "description": "weft weft network/uid-red"}, stackubev1.StateFailed, "10.244.0.0/24"},
		"external":  {object{"project_id": project, "shared": true, "router:external": true}, stackubev1.StateFailed, "10.244.0.0/24"},
		"elsewhere": {object{"project_id": project}, stackubev1.StateFailed, "192.168.10.0/24"},
	} {
		first := netip.MustParsePrefix(c.cidr).Addr().Next()
		r.cloud.add("subnets", object{
			"id": "subnet-" + id, "network_id": id, "ip_version": 4, "cidr": c.cidr,
			"allocation_pools": []object{{"start": first.String(), "end": first.Next().String()}},
		})
		c.network["id"], c.network["name"] = id, id
		r.cloud.add("networks", c.network)
		n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "blue", UID: "uid-blue"}, Spec: stackubev1.NetworkSpec{NetworkID: id}}
		got, err := adopt(t.Context(), r.open.held.Load(), n, project, rules)
		if err != nil || got.state != c.state {
			t.Errorf("%s: %+v, %v", id, got, err)
		}
	}
}
