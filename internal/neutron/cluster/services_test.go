package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// web is a Service of the namespace blue that asks for a load balancer.
func web(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: "uid-web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func (r *rig) services() *serviceReconciler {
	return &serviceReconciler{client: r.client, cloud: r.open, events: r.events, log: discard()}
}

// Another project's load balancer of the same name keeps no Service from its own, nor from its deletion, and stays.
func TestLoadBalancersOfOneName(t *testing.T) {
	for _, first := range []bool{true, false} {
		r := newRig(t, append(blue(), web(nil))...)
		r.addBlue()
		add := func() string {
			return r.cloud.add("loadbalancers", object{"name": "stackube_blue_web", "project_id": "another", "description": "mine"})
		}
		var foreign string
		if first {
			foreign = add()
		}
		services, at := r.services(), request("blue")
		at.Name = "web"
		for range 2 {
			if _, err := services.Reconcile(t.Context(), at); err != nil {
				t.Fatalf("another's is there first: %v: %v", first, err)
			}
			if foreign == "" {
				foreign = add()
			}
		}
		if all := r.cloud.all("loadbalancers"); len(all) != 2 {
			t.Errorf("load balancers: %v", all)
		}
		s := &corev1.Service{}
		if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil || len(s.Status.LoadBalancer.Ingress) != 1 {
			t.Errorf("the Service has %v: %v", s.Status.LoadBalancer, err)
		}
		if err := r.client.Delete(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if _, err := services.Reconcile(t.Context(), at); err != nil {
			t.Fatalf("deletion: %v", err)
		}
		if err := r.client.Get(t.Context(), at.NamespacedName, s); client.IgnoreNotFound(err) != nil || err == nil && controllerutil.ContainsFinalizer(s, Finalizer) {
			t.Errorf("the Service is kept: %v", s.Finalizers)
		}
		if all := r.cloud.all("loadbalancers"); len(all) != 1 || all[0]["id"] != foreign {
			t.Errorf("load balancers that are left: %v", all)
		}
	}
}

// A Service that names an address gets it only where its project has it and it is free; nothing is made then. Without a name Neutron chooses.
func TestFloatingAddressesOfServices(t *testing.T) {
	const named = "192.0.2.7"
	for name, c := range map[string]struct {
		held object
		want string
	}{
		"none has it":       {nil, ""},
		"another's":         {object{"project_id": "another"}, ""},
		"the project's":     {object{"project_id": "admin"}, named},
		"in use":            {object{"project_id": "admin", "port_id": "vm"}, ""},
		"of another's port": {object{"project_id": "another", "port_id": "vm"}, ""},
	} {
		r := newRig(t, append(blue(), web(func(s *corev1.Service) { s.Spec.LoadBalancerIP = named }))...)
		r.addBlue()
		if c.held != nil {
			c.held["floating_ip_address"], c.held["floating_network_id"] = named, externalNetwork
			r.cloud.add("floatingips", c.held)
		}
		at := request("blue")
		at.Name = "web"
		_, err := r.services().Reconcile(t.Context(), at)
		s := &corev1.Service{}
		if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, in := range s.Status.LoadBalancer.Ingress {
			got = in.IP
		}
		said := r.said()
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: the Service has %q, want %q: %v", name, got, c.want, err)
		}
		if got == "" && c.held["project_id"] != "admin" && !strings.Contains(said, "openstack floating ip create --project admin --floating-ip-address 192.0.2.7 outside") {
			t.Errorf("%s: no event has the command: %s", name, said)
		}
		if all := r.cloud.all("floatingips"); c.held == nil && len(all) > 0 || len(all) > 1 {
			t.Errorf("%s: floating IPs have been made: %v", name, all)
		}
	}
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	at := request("blue")
	at.Name = "web"
	if _, err := r.services().Reconcile(t.Context(), at); err != nil || len(r.cloud.all("floatingips")) != 1 {
		t.Errorf("without a name: %v: %v", r.cloud.all("floatingips"), err)
	}
}
