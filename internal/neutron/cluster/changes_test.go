package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A Service that names another address gets it. The one before is deleted if Weft created it, and otherwise free again.
func TestServicesThatChangeTheirAddress(t *testing.T) {
	const named, other, taken = "192.0.2.7", "192.0.2.8", "192.0.2.9"
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	for address, port := range map[string]any{named: nil, other: nil, taken: "vm"} {
		r.cloud.add("floatingips", object{
			"id": address, "floating_ip_address": address, "floating_network_id": externalNetwork, "project_id": "admin", "port_id": port,
		})
	}
	services, at := r.services(), request("blue")
	at.Name = "web"
	s := &corev1.Service{}
	for _, c := range []struct {
		requested, want string
		fails           bool
	}{{"", "", false}, {named, named, false}, {other, other, false}, {taken, other, true}} {
		if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil {
			t.Fatal(err)
		}
		s.Spec.LoadBalancerIP = c.requested
		if err := r.client.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if err := r.inStep(t, services); (err != nil) != c.fails {
			t.Errorf("address %q: %v", c.requested, err)
		}
		if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil || len(s.Status.LoadBalancer.Ingress) != 1 {
			t.Fatal(s.Status, err)
		}
		if got := s.Status.LoadBalancer.Ingress[0].IP; c.want != "" && got != c.want {
			t.Errorf("address %q: the Service has %s", c.requested, got)
		}
	}
	ports := map[string]any{}
	for _, o := range r.cloud.all("floatingips") {
		address, _ := o["floating_ip_address"].(string)
		ports[address] = o["port_id"]
	}
	if vip := r.cloud.all("loadbalancers")[0]["vip_port_id"]; len(ports) != 3 || ports[named] != nil || ports[other] != vip || ports[taken] != "vm" {
		t.Errorf("ports of floating IPs: %v", ports)
	}
}

// A change of a Service's session affinity changes its pools.
func TestServicesThatChangeTheirAffinity(t *testing.T) {
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	services, at := r.services(), request("blue")
	at.Name = "web"
	s := &corev1.Service{}
	for _, affinity := range []corev1.ServiceAffinity{"", corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP} {
		if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil {
			t.Fatal(err)
		}
		s.Spec.SessionAffinity = affinity
		if err := r.client.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.inStep(t, services); err != nil {
				t.Fatal(err)
			}
		}
		persistence, _ := r.cloud.all("pools")[0]["session_persistence"].(map[string]any)
		if is := persistence["type"] == "SOURCE_IP"; is != (affinity == corev1.ServiceAffinityClientIP) {
			t.Errorf("affinity %q: the pool has %v", affinity, persistence)
		}
	}
}

// If Octavia refuses a load balancer with its parts, it is created without them: each such request leaves a port in Neutron.
func TestRefusedParts(t *testing.T) {
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	r.cloud.provider, r.cloud.whole = "ovn", true
	services := r.services()
	r.cloud.add("loadbalancers", object{
		"name": "stackube_blue_web", "project_id": "admin", "description": "weft weft service/uid-web",
	})
	if err := r.inStep(t, services); err != nil { // the provider is known
		t.Fatal(err)
	}
	for _, collection := range []string{"loadbalancers", "listeners", "pools", "floatingips"} {
		r.cloud.clear(collection)
	}
	if err := r.inStep(t, services); err != nil {
		t.Error(err)
	}
	if ports := r.cloud.all("ports"); len(ports) != 1 || len(r.cloud.all("loadbalancers")) != 1 || len(r.cloud.all("listeners")) != 1 {
		t.Errorf("ports %v, load balancers %v, listeners %v", ports, r.cloud.all("loadbalancers"), r.cloud.all("listeners"))
	}
}

func TestLoadBalancerCreatedTwice(t *testing.T) {
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	services := r.services()
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	first := r.cloud.all("loadbalancers")[0]
	r.cloud.set("loadbalancers", first["id"].(string), "listeners", []object{{"id": "l"}}) //nolint:forcetypeassert // it is
	add := func() {
		r.cloud.add("loadbalancers", object{
			"id": "00000000-0000-4000-8000-000000000000", "name": "stackube_blue_web", "project_id": "admin", "description": "weft weft service/uid-web",
		})
	}
	add()
	if err := r.inStep(t, services); err != nil {
		t.Error(err)
	}
	if all := r.cloud.all("loadbalancers"); len(all) != 1 || all[0]["id"] != first["id"] {
		t.Errorf("load balancers: %v", all)
	}
	add()
	r.remove(t, web(nil))
	if err := r.inStep(t, services); err != nil {
		t.Error(err)
	}
	r.left(t, "loadbalancers", "floatingips")
}
