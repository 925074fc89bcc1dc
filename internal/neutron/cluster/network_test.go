package cluster

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stackubev1 "weft.dev/weft/api/stackube/v1"
)

// spec.networkID must name a network of the tenant's project or a shared one, which is neither external nor another Network's.
func TestNetworkID(t *testing.T) {
	r := newRig(t)
	const project = "blue"
	for id, c := range map[string]struct {
		network object
		state   string
	}{
		"own":      {object{"project_id": project}, stackubev1.StateActive},
		"shared":   {object{"project_id": "admin", "shared": true}, stackubev1.StateActive},
		"provider": {object{"project_id": project, "description": "weft weft provider/a"}, stackubev1.StateActive},
		"itself":   {object{"project_id": project, "description": "weft weft network/uid-blue"}, stackubev1.StateActive},
		"foreign":  {object{"project_id": "admin"}, stackubev1.StateFailed},
		"another":  {object{"project_id": project, "description": "weft weft network/uid-red"}, stackubev1.StateFailed},
		"external": {object{"project_id": project, "shared": true, "router:external": true}, stackubev1.StateFailed},
	} {
		c.network["id"], c.network["name"] = id, id
		r.cloud.add("networks", c.network)
		n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "blue", UID: "uid-blue"}, Spec: stackubev1.NetworkSpec{NetworkID: id}}
		got, err := adopt(t.Context(), r.open.held.Load(), n, project)
		if err != nil || got.state != c.state {
			t.Errorf("%s: %+v, %v", id, got, err)
		}
	}
}
