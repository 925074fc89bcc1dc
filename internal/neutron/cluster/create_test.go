package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/cluster/pace"
)

// tenant is a Network named like its namespace, with the range of blue's, and its pods that wait on a node.
func tenant(name, node string, count int) []client.Object {
	all := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&stackubev1.Network{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name, UID: types.UID("uid-" + name)}, Spec: stackubev1.NetworkSpec{CIDR: "10.244.0.0/16"},
			Status: stackubev1.NetworkStatus{State: stackubev1.StateActive, NetworkID: "net-" + name},
		},
	}
	for i := range count {
		pod := fmt.Sprintf("%s-%d", name, i)
		all = append(all, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: pod, UID: types.UID(pod)}, Spec: corev1.PodSpec{NodeName: node}})
	}
	return all
}

// addNetwork adds the network of a tenant, whose pods have addresses until last.
func (r *rig) addNetwork(name, last string) {
	r.cloud.add("networks", object{"id": "net-" + name, "name": name, "project_id": "admin", "description": "weft weft network/uid-" + name})
	r.cloud.add("subnets", object{
		"id": "subnet-" + name, "name": name, "network_id": "net-" + name, "project_id": "admin", "ip_version": 4, "cidr": "10.244.0.0/16",
		"allocation_pools": []object{{"start": "10.244.0.2", "end": last}},
	})
}

// count returns the number of a tenant's NeutronPorts by node.
func (r *rig) count(t *testing.T, name string) map[string]int {
	t.Helper()
	var list weftv1.NeutronPortList
	if err := r.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for i := range list.Items {
		if list.Items[i].Spec.Network.Name == name {
			all[list.Items[i].Spec.Node]++
		}
	}
	return all
}

// Nodes' ports that are created together have different addresses, also if the range is nearly used up.
func TestBurstInSmallRange(t *testing.T) {
	r := newRig(t, slices.Concat(tenant("red", "n1", 0), node("n1"), node("n2"), node("n3"))...)
	for _, node := range []string{"n1", "n2", "n3"} {
		for _, o := range pods(node, 13) {
			o.SetNamespace("red")
			if err := r.client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.addNetwork("red", "10.244.0.41")
	if _, err := r.ports(time.Now).Reconcile(t.Context(), request("red")); err != nil {
		t.Error(err)
	}
	if all := r.count(t, "red"); all["n1"] != 13 || all["n2"] != 13 || all["n3"] != 13 {
		t.Errorf("ports of nodes: %v, want 13 of each", all)
	}
}

// The addresses of ports that OpenStack refuses are free for another Network, whose pods are on the same node.
func TestRefusedPortsHoldNoAddresses(t *testing.T) {
	r := newRig(t, slices.Concat(tenant("red", "n1", 40), tenant("green", "n1", 20), node("n1"))...)
	r.addNetwork("red", "10.244.0.41")
	r.addNetwork("green", "10.244.0.41")
	ports := r.ports(time.Now)
	r.cloud.refuse("host-n1")
	if _, err := ports.Reconcile(t.Context(), request("red")); err == nil {
		t.Error("no error about the ports that are refused")
	}
	r.cloud.refuse("")
	if _, err := ports.Reconcile(t.Context(), request("green")); err != nil {
		t.Error(err)
	}
	if all := r.count(t, "green"); all["n1"] != 20 {
		t.Errorf("%d ports of the other Network, want 20", all["n1"])
	}
}

// Pods get the ports for which the project's quota has room, and spare ports do not take it. The reason is reported.
func TestQuota(t *testing.T) {
	r := newRig(t, slices.Concat(tenant("red", "n1", 1), node("n1"), node("n2"))...)
	r.addNetwork("red", "10.244.0.200")
	ports := r.ports(time.Now)
	if _, err := ports.Reconcile(t.Context(), request("red")); err != nil {
		t.Fatal(err)
	}
	var list weftv1.NeutronPortList
	if err := r.client.List(t.Context(), &list); err != nil || len(list.Items) != 1 {
		t.Fatal(err, len(list.Items))
	}
	list.Items[0].Status = weftv1.NeutronPortStatus{Plugged: true, Pod: &weftv1.NeutronPortPod{Namespace: "red", Name: "red-0", UID: "red-0"}}
	if err := r.client.Status().Update(t.Context(), &list.Items[0]); err != nil {
		t.Fatal(err)
	}
	for _, o := range pods("n2", 20) {
		o.SetNamespace("red")
		if err := r.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	r.cloud.quota = 6
	if _, err := ports.Reconcile(t.Context(), request("red")); !errors.Is(err, cloud.ErrQuota) || errors.Is(err, cloud.ErrAddressTaken) {
		t.Errorf("error %v, want one about the quota", err)
	}
	if all := r.count(t, "red"); all["n1"] != 1 || all["n2"] != 5 {
		t.Errorf("ports of nodes: %v, want 1 of n1 and 5 of n2", all)
	}
	if said := r.said(); !strings.Contains(said, "quota of ports is used up") {
		t.Errorf("events: %s", said)
	}
}

// Without an answer, the outcome of a request is unknown: the round ends, so that the next one sees what exists.
func TestUnansweredRequestEndsRound(t *testing.T) {
	r := newRig(t, slices.Concat(tenant("red", "n1", 40), node("n1"), node("n2"))...)
	for _, o := range pods("n2", 40) {
		o.SetNamespace("red")
		if err := r.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	r.addNetwork("red", "10.244.0.200")
	var mu sync.Mutex
	requests := 0
	r.cloud.arrived = func() bool {
		mu.Lock()
		defer mu.Unlock()
		requests++
		return false
	}
	if _, err := r.ports(time.Now).Reconcile(t.Context(), request("red")); err == nil {
		t.Error("no error")
	}
	mu.Lock()
	defer mu.Unlock()
	if requests == 0 || requests > callsAtOnce {
		t.Errorf("%d requests, want %d at most", requests, callsAtOnce)
	}
}

// Networks whose requests take long leave requests of the client to others.
func TestRequestsAtOnce(t *testing.T) {
	const networks, most = 4, 4 + secondCalls
	objects := node("n1")
	for i := range networks {
		objects = append(objects, tenant(fmt.Sprint("t", i), "n1", 30)...)
	}
	r := newRig(t, objects...)
	var mu sync.Mutex
	now, highest := 0, 0
	full := make(chan struct{})
	isFull := sync.OnceFunc(func() { close(full) })
	r.cloud.arrived = func() bool {
		mu.Lock()
		now++
		if highest = max(highest, now); now == most {
			isFull()
		}
		mu.Unlock()
		<-full // until as many requests as may be are under way
		mu.Lock()
		defer mu.Unlock()
		now--
		return true
	}
	ports := r.ports(time.Now)
	var group sync.WaitGroup
	for i := range networks {
		name := fmt.Sprint("t", i)
		r.addNetwork(name, "10.244.0.250")
		group.Go(func() {
			if _, err := ports.Reconcile(t.Context(), request(name)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for i := range networks {
		if all := r.count(t, fmt.Sprint("t", i)); all["n1"] != 30 {
			t.Errorf("%d ports of Network t%d, want 30", all["n1"], i)
		}
	}
	if highest != most {
		t.Errorf("%d requests at the same time, want %d", highest, most)
	}
}

// If another port has an address of a request, the ports get others, although OpenStack keeps some of that request's addresses without a port.
func TestAddressesOfRefusedRequest(t *testing.T) {
	const each = fewestPorts
	r := newRig(t, slices.Concat(tenant("red", "n1", each), node("n1"))...)
	first, last := netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("10.244.0.200")
	r.addNetwork("red", last.String())
	ports := r.ports(time.Now)
	if _, err := ports.Reconcile(t.Context(), request("red")); err != nil {
		t.Fatal(err)
	}
	next := func(addr netip.Addr) netip.Addr {
		if addr == last {
			return first
		}
		return addr.Next()
	}
	var list weftv1.NeutronPortList
	if err := r.client.List(t.Context(), &list); err != nil || len(list.Items) != each {
		t.Fatal(err, len(list.Items))
	}
	has := map[netip.Addr]bool{}
	for i := range list.Items {
		has[netip.MustParsePrefix(list.Items[i].Spec.Addresses[0].Address).Addr()] = true
	}
	for addr := range has {
		if !has[next(addr)] { // the next request begins behind it
			r.cloud.add("ports", object{
				"id": "machine", "network_id": "net-red", "project_id": "admin",
				"fixed_ips": []object{{"subnet_id": "subnet-red", "ip_address": next(next(next(addr))).String()}},
			})
			break
		}
	}
	for _, o := range tenant("red", "n1", 2*each)[2+each:] {
		if err := r.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ports.Reconcile(t.Context(), request("red")); !errors.Is(err, cloud.ErrAddressTaken) {
		t.Errorf("error %v, want %v", err, cloud.ErrAddressTaken)
	}
	if _, err := ports.Reconcile(t.Context(), request("red")); err != nil {
		t.Error(err)
	}
	if all := r.count(t, "red"); all["n1"] != 2*each {
		t.Errorf("%d ports, want %d", all["n1"], 2*each)
	}
}

// With OVN a pod is attached before its port is ACTIVE: spare ports are created after that, or once it takes too long.
func TestSparePortsWaitForThePods(t *testing.T) {
	for _, becomesActive := range []bool{true, false} {
		r := newRig(t, slices.Concat(blue(), node("n1"), pods("n1", 1))...)
		r.addBlue()
		r.cloud.add("ports", weftsPort("port", "10.244.0.5", "0a:58:0a:f4:00:05"))
		r.cloud.set("ports", "port", "status", "DOWN")
		_, reconcile := r.rounds(t, "blue")
		step := func(after time.Duration) int {
			t.Helper()
			reconcile(after)
			return len(r.cloud.all("ports"))
		}
		step(0)
		r.agent(t, "port", func(s *weftv1.NeutronPortStatus) {
			s.Plugged, s.Pod = true, &weftv1.NeutronPortPod{Namespace: "blue", Name: "n1-0", UID: "n1-0"}
		})
		step(latest)
		if count := step(latest); count != 1 {
			t.Errorf("%d ports while that of the pod is not ACTIVE, want 1", count)
		}
		if becomesActive {
			r.cloud.set("ports", "port", "status", "ACTIVE")
			step(latest)
		} else {
			step(pace.StuckAfter)
		}
		if count := step(latest); count != 1+ahead.LeastSpare {
			t.Errorf("port ACTIVE %t: %d ports, want %d", becomesActive, count, 1+ahead.LeastSpare)
		}
		if said := r.said(); strings.Contains(said, "has not become ACTIVE") == becomesActive {
			t.Errorf("port ACTIVE %t: events: %s", becomesActive, said)
		}
	}
}
