package cluster

import (
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
