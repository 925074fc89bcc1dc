//go:build lab

package neutron

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/openstack"
	weftlab "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/neutron/cloudfault"
)

// TestControllerUnderFaults: OpenStack is slow, answers errors or half an answer, or is gone, while the controller makes a Tenant with its
// Network, a pod's port and a load balancer with a floating IP, and again while it removes them. It ends where the objects say, with one object
// of each kind, then with none, and nothing that others have is changed.
func TestControllerUnderFaults(t *testing.T) {
	ctx, plain := connect(t)
	external, err := cloudFor.stack.ExternalNetwork(ctx, weftlab.External{}) // the lab has made it
	if err != nil {
		t.Fatal(err)
	}
	before := inventory(ctx, t, plain)
	controller := startController(ctx, t, "ext-net-id = "+external, "", "[LoadBalancer]", "lb-provider = ovn")
	way, kube := controller.way, controller.kube
	way.Delay = 3 * time.Second

	way.Choose(cloudfault.Scattered(0))
	const name = "weft-test-faulty"
	node := cloudFor.nodes[0].Name
	stage(ctx, t, kube, name)
	pod := runPod(ctx, t, kube, name, node)
	address, _, _ := strings.Cut(portsOn(ctx, t, kube, place{name, node}, 1)[0].Spec.Addresses[0].Address, "/")
	service := balancedService(ctx, t, kube, name, address)
	until(ctx, t, kube, service, func() bool { return len(service.Status.LoadBalancer.Ingress) == 1 })
	way.Choose(nil)
	compareCounts(t, before, inventory(ctx, t, plain))
	if err := kube.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}

	way.Choose(cloudfault.Scattered(1))
	if err := kube.Delete(ctx, service); err != nil {
		t.Fatal(err)
	}
	untilGone(ctx, t, kube, service)
	tenant := &stackubev1.Tenant{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if err := kube.Delete(ctx, tenant); err != nil {
		t.Fatal(err)
	}
	untilGone(ctx, t, kube, tenant)
	way.Choose(nil)
	for _, f := range append(cloudfault.Faults(), cloudfault.Slow) {
		if way.Done()[f] == 0 {
			t.Errorf("no request met the fault %q", f)
		}
	}
	after := untilLike(ctx, t, plain, before)
	if more, less := before.More(after), after.More(before); len(more)+len(less) > 0 {
		t.Errorf("OpenStack has %v more than before, and lacks %v", more, less)
	}
	controller.noSecrets(ctx, t)
}

// balancedService makes a Service of type LoadBalancer with one endpoint.
func balancedService(ctx context.Context, t *testing.T, kube client.Client, namespace, address string) *corev1.Service {
	t.Helper()
	const port = 80
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "public"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: new(false), Ports: []corev1.ServicePort{{Name: "http", Port: port}},
		},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: "public", Labels: map[string]string{discoveryv1.LabelServiceName: "public"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(port)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, o := range []client.Object{slice, service} {
		if err := kube.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	return service
}

// compareCounts compares how many objects of each kind there are more than before with those that the test's objects need. A project has the
// security group default besides Weft's.
func compareCounts(t *testing.T, before, held cloudfault.Inventory) {
	t.Helper()
	compare(t, before, held, map[string]int{
		"projects": 1, "users": 1, "networks": 1, "subnets": 1, "routers": 1, "floatingips": 1, "loadbalancers": 1, "listeners": 1, "pools": 1,
		"security_groups": 2,
	})
}

// compare compares how many objects of each kind there are more than before, and one port of a pod.
func compare(t *testing.T, before, held cloudfault.Inventory, counts map[string]int) {
	t.Helper()
	count := map[string]int{}
	for _, line := range before.More(held) {
		count[strings.Fields(line)[0]]++
	}
	for kind, want := range counts {
		if count[kind] != want {
			t.Errorf("OpenStack has %d %s more than before, want %d: %v", count[kind], kind, want, before.More(held))
		}
	}
	ports := slices.DeleteFunc(before.More(held), func(line string) bool {
		return !strings.HasPrefix(line, "ports ") || strings.Contains(line, "device_owner=network:") || strings.Contains(line, "name=ovn-lb-vip")
	})
	if len(ports) != 1 {
		t.Errorf("OpenStack has %d ports for one pod: %v", len(ports), ports)
	}
}

// untilLike lists what OpenStack has until it is as before: Octavia and Neutron remove some objects after they have answered.
func untilLike(ctx context.Context, t *testing.T, c *openstack.Client, before cloudfault.Inventory) cloudfault.Inventory {
	t.Helper()
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		now := inventory(ctx, t, c)
		if slices.Equal(before, now) {
			return now
		}
		select {
		case <-waiting.Done():
			return now
		case <-time.After(time.Second):
		}
	}
}
