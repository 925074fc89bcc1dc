//go:build lab

package neutron

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftlab "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/neutron/cloudfault"
)

// TestControllerKilledAndOpenStackAway: the controller is killed when OpenStack has created a network, a port, a load balancer or a
// floating IP, before it gets the answer. After its restarts there is one of each. Then OpenStack is away until the controller has reported it,
// while a Service is deleted and a Network is created. When it is back, it ends where the objects say. After all objects are deleted,
// nothing is left.
func TestControllerKilledAndOpenStackAway(t *testing.T) {
	ctx, plain := connect(t)
	external, err := cloudFor.stack.ExternalNetwork(ctx, weftlab.External{}) // the lab has made it
	if err != nil {
		t.Fatal(err)
	}
	before := inventory(ctx, t, plain)
	controller := startController(ctx, t, "ext-net-id = "+external, "", "[LoadBalancer]", "lb-provider = ovn")
	way, kube := controller.way, controller.kube
	kinds := []string{"/v2.0/networks", "/v2.0/ports", "/v2.0/lbaas/loadbalancers", "/v2.0/floatingips"}
	killed := controller.killAfter(ctx, t, kinds...)

	const name = "weft-test-killed"
	node := cloudFor.nodes[0].Name
	stage(ctx, t, kube, name)
	pod := runPod(ctx, t, kube, name, node)
	address, _, _ := strings.Cut(portsOn(ctx, t, kube, place{name, node}, 1)[0].Spec.Addresses[0].Address, "/")
	service := balancedService(ctx, t, kube, name, address)
	until(ctx, t, kube, service, func() bool { return len(service.Status.LoadBalancer.Ingress) == 1 })
	way.Choose(nil)
	if left := killed(); len(left) > 0 {
		t.Errorf("the controller has not been killed after %v", left)
	}
	compareCounts(t, before, inventory(ctx, t, plain))

	other := awayMeanwhile(ctx, t, controller, service)
	until(ctx, t, kube, other, func() bool { return other.Status.State == stackubev1.StateActive })
	untilGone(ctx, t, kube, service)
	compare(t, before, inventory(ctx, t, plain), map[string]int{
		"projects": 1, "users": 1, "networks": 2, "subnets": 2, "routers": 2, "floatingips": 0, "loadbalancers": 0, "listeners": 0, "pools": 0,
		"security_groups": 2,
	})

	if err := kube.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	tenant := &stackubev1.Tenant{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if err := kube.Delete(ctx, tenant); err != nil {
		t.Fatal(err)
	}
	untilGone(ctx, t, kube, tenant)
	after := untilLike(ctx, t, plain, before)
	if more, less := before.More(after), after.More(before); len(more)+len(less) > 0 {
		t.Errorf("OpenStack has %v more than before, and lacks %v", more, less)
	}
	controller.noSecrets(ctx, t)
}

// killAfter kills the controller once for each path, when OpenStack has created an object there, and before the controller has the answer. What it
// returns ends that, and returns the paths after which the controller was not killed.
func (c *controllerUnderTest) killAfter(ctx context.Context, t *testing.T, paths ...string) (stop func() []string) {
	t.Helper()
	left := map[string]bool{}
	for _, path := range paths {
		left[path] = true
	}
	c.way.Choose(func(in *http.Request) cloudfault.Fault { // called by one request at a time
		for path := range left {
			if in.Method == http.MethodPost && strings.HasSuffix(in.URL.Path, path) {
				delete(left, path)
				return cloudfault.Held
			}
		}
		return cloudfault.None
	})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan int)
	go func() {
		kills := 0
		defer func() { ended <- kills }()
		for {
			select {
			case <-ctx.Done():
				return
			case path := <-c.way.Held:
				t.Logf("killed after POST %s", path)
				kills++
				pid := c.group.Pid(c.name)
				if pid <= 0 { // it would be the test's own process group
					t.Errorf("%s does not run", c.name)
					continue
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
				// The lease of a killed process lasts 15 s.
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "weft", Name: "weft-controller"}}
				if err := client.IgnoreNotFound(c.kube.Delete(ctx, lease)); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	return func() []string {
		cancel()
		var rest []string
		for path := range left {
			rest = append(rest, path)
		}
		if kills := <-ended; kills+len(rest) != len(paths) {
			t.Errorf("%d kills, and %v left", kills, rest)
		}
		return rest
	}
}

// awayMeanwhile lets OpenStack be away, Octavia without any answer, while a Service is deleted and a Network is created, until the controller has
// reported that. It returns the Network.
func awayMeanwhile(ctx context.Context, t *testing.T, c *controllerUnderTest, service *corev1.Service) *stackubev1.Network {
	t.Helper()
	c.way.Choose(func(in *http.Request) cloudfault.Fault {
		if strings.Contains(in.URL.Path, "/lbaas/") {
			return cloudfault.Hang
		}
		return cloudfault.Away
	})
	if err := c.kube.Delete(ctx, service); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, c.kube, service, func() bool { return service.DeletionTimestamp != nil && c.way.Done()[cloudfault.Hang] > 0 })
	other := &stackubev1.Network{
		ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: "other"}, Spec: stackubev1.NetworkSpec{CIDR: "10.244.0.0/16"},
	}
	if err := c.kube.Create(ctx, other); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, c.kube, other, func() bool {
		return other.Status.State == stackubev1.StatePending && other.Status.Message != "" && meta.IsStatusConditionFalse(other.Status.Conditions, "Ready")
	})
	until(ctx, t, c.kube, service, func() bool { return len(service.Finalizers) > 0 })
	c.way.Choose(nil)
	c.way.Release()
	return other
}
