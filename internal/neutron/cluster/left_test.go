package cluster

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/objects"
)

func (r *rig) networks() *networkReconciler {
	return &networkReconciler{
		client: r.client, cloud: r.open, events: r.events, log: discard(),
		reserved: &reservedReader{cached: r.client, live: r.client, allowed: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	}
}

// network is a Network that nothing has been created for.
func network(namespace, name string) *stackubev1.Network {
	return &stackubev1.Network{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "/" + name)},
		Spec:       stackubev1.NetworkSpec{CIDR: "10.244.0.0/16", Gateway: "10.244.0.1"},
	}
}

// state reconciles a Network, and returns its status; nil if it does not exist any more.
func (r *rig) state(t *testing.T, networks *networkReconciler, of *stackubev1.Network) *stackubev1.NetworkStatus {
	t.Helper()
	req := request(of.Namespace)
	req.Name = of.Name
	if _, err := networks.Reconcile(t.Context(), req); err != nil {
		t.Logf("network %s: %v", req, err)
	}
	n := &stackubev1.Network{}
	err := r.client.Get(t.Context(), req.NamespacedName, n)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return &n.Status
}

func (r *rig) remove(t *testing.T, o client.Object) {
	t.Helper()
	if err := r.client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// A project can rename what Weft created for it. It stays in use, and is deleted with the Network.
func TestRenamedNetwork(t *testing.T) {
	of := network("blue", "blue")
	r := newRig(t, of)
	networks := r.networks()
	first := r.state(t, networks, of)
	for _, collection := range []string{"networks", "subnets", "routers"} {
		for _, o := range r.cloud.all(collection) {
			r.cloud.set(collection, o["id"].(string), "name", "mine") //nolint:forcetypeassert // it is
		}
	}
	if again := r.state(t, networks, of); again.State != stackubev1.StateActive || again.NetworkID != first.NetworkID {
		t.Errorf("after they were renamed: %+v, before: %+v", again, first)
	}
	for _, collection := range []string{"networks", "subnets", "routers"} {
		if all := r.cloud.all(collection); len(all) != 1 {
			t.Errorf("%s: %v", collection, all)
		}
	}
	r.remove(t, of)
	if last := r.state(t, networks, of); last != nil {
		t.Errorf("the deleted Network stays: %+v", last)
	}
	r.left(t, "networks", "subnets", "routers", "ports")
}

// left fails if OpenStack has objects of a collection.
func (r *rig) left(t *testing.T, collections ...string) {
	t.Helper()
	for _, c := range collections {
		if all := r.cloud.all(c); len(all) > 0 {
			t.Errorf("%s that are left: %v", c, all)
		}
	}
}

// The names of Networks in OpenStack can be equal although their own are not.
func TestNetworksOfOneName(t *testing.T) {
	one, two := network("a", "b-c"), network("a-b", "c")
	r := newRig(t, one, two)
	networks := r.networks()
	ids := map[string]bool{}
	for range 2 {
		for _, n := range []*stackubev1.Network{one, two} {
			s := r.state(t, networks, n)
			if s.State != stackubev1.StateActive {
				t.Errorf("network %s/%s: %s: %s", n.Namespace, n.Name, s.State, s.Message)
			}
			ids[s.NetworkID] = true
		}
	}
	if len(ids) != 2 || len(r.cloud.all("networks")) != 2 || len(r.cloud.all("routers")) != 2 {
		t.Errorf("networks of both: %v", ids)
	}
	r.remove(t, one)
	if s := r.state(t, networks, one); s != nil {
		t.Errorf("deleted network: %+v", s)
	}
	if s := r.state(t, networks, two); s.State != stackubev1.StateActive || len(r.cloud.all("networks")) != 1 || len(r.cloud.all("routers")) != 1 {
		t.Errorf("the other network: %+v", s)
	}
	r.remove(t, two)
	r.state(t, networks, two)
	r.left(t, "networks", "subnets", "routers", "ports")
}

// If the project of a namespace changes, because there is a Tenant of its name later, its Network stays where its pods are, and says so.
func TestNetworkStaysInItsProject(t *testing.T) {
	n := network("team", "team")
	r := newRig(t, n)
	networks := r.networks()
	first := r.state(t, networks, n)
	tenant := &stackubev1.Tenant{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "team"}}
	if err := r.client.Create(t.Context(), tenant); err != nil {
		t.Fatal(err)
	}
	tenant.Status.ProjectID = "team"
	if err := r.client.Status().Update(t.Context(), tenant); err != nil {
		t.Fatal(err)
	}
	s := r.state(t, networks, n)
	if s.State != stackubev1.StateFailed || s.NetworkID != first.NetworkID || !strings.Contains(s.Message, "the project is admin, team is wanted") {
		t.Errorf("network: %+v", s)
	}
	if all := r.cloud.all("networks"); len(all) != 1 {
		t.Errorf("networks: %v", all)
	}
	r.remove(t, n)
	if s := r.state(t, networks, n); s != nil {
		t.Errorf("deleted network: %+v", s)
	}
	r.left(t, "networks", "subnets", "routers", "ports")
}

// addMade adds a network and a router that Weft has created for a Network.
func (r *rig) addMade(n *stackubev1.Network, id any) {
	for _, collection := range []string{"networks", "routers"} {
		r.cloud.add(collection, object{
			"id": id, "name": objects.NetworkName(n.Namespace, n.Name), "project_id": "admin", "description": "weft " + clusterName + " " + objects.Owner(n),
		})
	}
}

// Objects that OpenStack has created twice, because the first request was carried out after the second one had been sent, become one. The one
// in use stays.
func TestCreatedTwice(t *testing.T) {
	n := network("blue", "blue")
	r := newRig(t, n)
	networks := r.networks()
	r.addMade(n, nil)
	r.addMade(n, nil)
	first := r.state(t, networks, n)
	if first.State != stackubev1.StateActive || len(r.cloud.all("networks")) != 1 || len(r.cloud.all("routers")) != 1 {
		t.Fatalf("network: %+v; networks %v, routers %v", first, r.cloud.all("networks"), r.cloud.all("routers"))
	}
	r.addMade(n, "00000000-0000-4000-8000-000000000000")
	if s := r.state(t, networks, n); s.State != stackubev1.StateActive || s.NetworkID != first.NetworkID || len(r.cloud.all("networks")) != 1 || len(r.cloud.all("routers")) != 1 {
		t.Errorf("network: %+v; networks %v, routers %v", s, r.cloud.all("networks"), r.cloud.all("routers"))
	}
	r.addMade(n, nil)
	r.remove(t, n)
	if s := r.state(t, networks, n); s != nil {
		t.Errorf("deleted network: %+v", s)
	}
	r.left(t, "networks", "subnets", "routers", "ports")
}

// Several nodes may create the group of a project at the same time.
func TestGroupsOfOneName(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"third", "second"} {
		r.cloud.add("security-groups", object{"id": id, "name": cloud.DefaultGroup, "project_id": "blue", "description": "weft weft project/blue"})
	}
	r.cloud.add("security-groups", object{"id": "another", "name": cloud.DefaultGroup, "project_id": "blue"})
	for range 2 {
		if got, err := r.open.held.Load().group(t.Context(), "blue", false); err != nil || got != "second" {
			t.Errorf("group %q: %v", got, err)
		}
	}
}

// A Network's router is removed also if its network was never created, or removed before.
func TestRouterWithoutNetwork(t *testing.T) {
	n := network("blue", "blue")
	n.Finalizers = []string{Finalizer}
	r := newRig(t, n)
	r.cloud.add("routers", object{"name": "kube-blue-blue", "project_id": "admin", "description": "weft weft network/uid-blue/blue"})
	kept := r.cloud.add("routers", object{"name": "kube-blue-blue", "project_id": "admin"})
	r.remove(t, n)
	if s := r.state(t, r.networks(), n); s != nil {
		t.Errorf("deleted network: %+v", s)
	}
	if all := r.cloud.all("routers"); len(all) != 1 || all[0]["id"] != kept {
		t.Errorf("routers: %v", all)
	}
}
