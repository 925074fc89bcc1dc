package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/ahead"
)

// waitingPod is a pod of the namespace blue on node n1.
func waitingPod() client.Object {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "pod", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "n1"}}
}

// addVictim adds a network of another tenant, which is shared with all.
func (r *rig) addVictim() {
	r.cloud.share("victim", "*")
	r.cloud.add("networks", object{"id": "victim", "name": "kube-red-red", "project_id": "red", "description": "weft weft network/uid-red"})
	r.cloud.add("subnets", object{
		"id": "victims", "name": "kube-red-red-subnet", "network_id": "victim", "project_id": "red", "ip_version": 4, "cidr": "10.244.0.0/16",
		"allocation_pools": []object{{"start": "10.244.0.2", "end": "10.244.0.200"}},
	})
}

// A tenant with rights on the status of his Network writes the id of another tenant's network there. Neither ports nor load balancers are
// created on it.
func TestForgedStatus(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1"), []client.Object{waitingPod(), web(nil)})...)
	r.addBlue()
	r.addVictim()
	n := &stackubev1.Network{}
	if err := r.client.Get(t.Context(), request("blue").NamespacedName, n); err != nil {
		t.Fatal(err)
	}
	n.Status.NetworkID = "victim"
	if err := r.client.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ports(time.Now).Reconcile(t.Context(), request("blue")); err != nil {
		t.Error(err)
	}
	at := request("blue")
	at.Name = "web"
	if _, err := r.services().Reconcile(t.Context(), at); err != nil {
		t.Error(err)
	}
	if said := r.said(); !strings.Contains(said, "is not the one that Weft created for this Network") {
		t.Errorf("events: %s", said)
	}
	if all := append(r.cloud.all("ports"), r.cloud.all("loadbalancers")...); len(all) > 0 {
		t.Errorf("created on another tenant's network: %v", all)
	}
}

// When a network is not shared any more, the tenants that it was shared with get no new pods on it, and their free ports are deleted.
func TestUnsharedNetwork(t *testing.T) {
	all := slices.Concat(blue(), node("n1"), []client.Object{waitingPod()})
	for _, object := range all {
		if n, is := object.(*stackubev1.Network); is {
			n.Spec, n.Status.NetworkID = stackubev1.NetworkSpec{NetworkID: "victim"}, "victim"
		}
	}
	r := newRig(t, all...)
	r.addVictim()
	r.cloud.set("networks", "victim", "description", "")
	now := time.Now()
	ports := r.ports(func() time.Time { return now })
	// step reconciles after a time, plugs the ports, and puts the pod on the first one.
	step := func() (left []weftv1.NeutronPort) {
		t.Helper()
		now = now.Add(reread)
		if _, err := ports.Reconcile(t.Context(), request("blue")); err != nil {
			t.Fatal(err)
		}
		var list weftv1.NeutronPortList
		if err := r.client.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			if i == 0 {
				p.Status.Pod = &weftv1.NeutronPortPod{Namespace: "blue", Name: "pod", UID: "pod"}
			}
			p.Status.Plugged = i == 0
			if err := r.client.Status().Update(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			r.cloud.set("ports", p.Name, "status", "ACTIVE")
			if p.DeletionTimestamp.IsZero() {
				left = append(left, *p)
			}
		}
		return left
	}
	for range 2 { // until the pod's port is ACTIVE
		step()
	}
	if left := step(); len(left) != 1+ahead.LeastSpare {
		t.Fatalf("%d ports, want the pod's and %d free ones", len(left), ahead.LeastSpare)
	}
	r.cloud.clear("rbac-policies")
	for range 2 {
		if left := step(); len(left) != 1 || left[0].Status.Pod == nil {
			t.Errorf("%d ports are left, want the pod's", len(left))
		}
	}
	if left := r.cloud.all("ports"); len(left) != 1 {
		t.Errorf("%d ports are left in OpenStack, want the pod's", len(left))
	}
}

// A tenant's network may have pools of any size. Only the addresses that pods may have are searched: otherwise the search takes minutes, in
// which no other tenant gets ports.
func TestHugePools(t *testing.T) {
	all := slices.Concat(blue(), node("n1"), []client.Object{waitingPod()})
	for _, object := range all {
		if n, is := object.(*stackubev1.Network); is {
			n.Spec, n.Status.NetworkID = stackubev1.NetworkSpec{NetworkID: "huge"}, "huge"
		}
	}
	r := newRig(t, all...)
	r.cloud.add("networks", object{"id": "huge", "name": "huge", "project_id": "admin"})
	r.cloud.add("subnets", object{
		"id": "subnet", "name": "subnet", "network_id": "huge", "project_id": "admin", "ip_version": 4, "cidr": "0.0.0.0/1",
		"allocation_pools": []object{{"start": "0.0.0.1", "end": "10.244.0.9"}, {"start": "10.245.0.0", "end": "127.255.255.254"}},
	})
	done := make(chan error, 1)
	go func() {
		_, err := r.ports(time.Now).Reconcile(t.Context(), request("blue"))
		done <- err
	}()
	select {
	case err := <-done:
		if all := r.cloud.all("ports"); err != nil || len(all) != 1 || !strings.HasPrefix(addressOf(all[0]).(string), "10.244.0.") { //nolint:forcetypeassert // it is
			t.Errorf("ports: %v: %v", all, err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the address is still being searched for")
	}
}

// Ports that were changed in OpenStack are replaced, except those of pods.
func TestChangedPorts(t *testing.T) {
	for name, change := range map[string]func(*rig, string){
		"bound to another host": func(r *rig, id string) { r.cloud.set("ports", id, "binding:host_id", "host-n2") },
		"with another address": func(r *rig, id string) {
			r.cloud.set("ports", id, "fixed_ips", []object{{"subnet_id": "subnet", "ip_address": "10.244.0.201"}})
		},
		"with another MAC address": func(r *rig, id string) { r.cloud.set("ports", id, "mac_address", "fa:16:3e:00:00:01") },
		"deleted":                  func(r *rig, _ string) { r.cloud.clear("ports") },
	} {
		r := newRig(t, slices.Concat(blue(), node("n1"), []client.Object{waitingPod()})...)
		r.addBlue()
		now := time.Now()
		ports := r.ports(func() time.Time { return now })
		step := func() (all weftv1.NeutronPortList) {
			t.Helper()
			now = now.Add(reread)
			if _, err := ports.Reconcile(t.Context(), request("blue")); err != nil {
				t.Fatal(err)
			}
			if err := r.client.List(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			return all
		}
		first := step().Items
		if len(first) != 1 {
			t.Fatalf("%d ports for a pod that waits", len(first))
		}
		if again := step().Items; again[0].Name != first[0].Name || !again[0].DeletionTimestamp.IsZero() {
			t.Fatalf("the port is replaced: %+v", again)
		}
		change(r, first[0].Name)
		for range 3 {
			step()
		}
		if left := step().Items; len(left) == 0 || slices.ContainsFunc(left, func(p weftv1.NeutronPort) bool { return p.Name == first[0].Name }) {
			t.Errorf("%s: %+v", name, left)
		}
		left := step().Items
		attached := left[0].DeepCopy()
		attached.Status.Pod = &weftv1.NeutronPortPod{Namespace: "blue", Name: "pod", UID: "pod"}
		if err := r.client.Status().Update(t.Context(), attached); err != nil {
			t.Fatal(err)
		}
		change(r, attached.Name)
		if left := step().Items; !slices.ContainsFunc(left, func(p weftv1.NeutronPort) bool { return p.Name == attached.Name && p.DeletionTimestamp.IsZero() }) {
			t.Errorf("%s: the pod's port is gone: %+v", name, left)
		}
	}
}
