//go:build real

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn/ovntest"
)

// A Vpc with ten thousand routes, from the API server to the northbound database: all are in effect but the one that leads nowhere, which its
// condition names, and a pod of another Vpc gets an address.
func TestTenThousandRoutes(t *testing.T) {
	const routes, namespace = 10_000, "routes"
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	ctx := t.Context()
	c := clientWith(t, namespace)
	many := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "many"}}
	for i := range routes {
		many.Spec.StaticRoutes = append(many.Spec.StaticRoutes, kubeovn.StaticRoute{CIDR: fmt.Sprintf("172.%d.%d.0/28", 16+i>>8, i&255), NextHopIP: "10.0.1.254"})
	}
	many.Spec.StaticRoutes[7777].NextHopIP = "10.9.9.9"
	few := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "few"}}
	objects := []client.Object{many, few}
	for _, vpc := range []string{"many", "few"} {
		objects = append(objects, &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: vpc}, Spec: kubeovn.SubnetSpec{Vpc: vpc, CIDRBlock: "10.0.1.0/24"}})
	}
	for _, object := range objects {
		must(t, c.Create(ctx, object))
	}
	start(t, central, 1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other", Annotations: map[string]string{kubeovn.AnnotationLogicalSwitch: "few"}},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	must(t, c.Create(ctx, pod))
	ovntest.Eventually(t, "the condition names the route that leads nowhere", func() bool {
		must(t, c.Get(ctx, client.ObjectKeyFromObject(many), many))
		ready := meta.FindStatusCondition(many.Status.Conditions, kubeovn.ConditionReady)
		return ready != nil && strings.Contains(ready.Message, "spec.staticRoutes[7777].nextHopIP: 10.9.9.9")
	})
	rows := len(strings.Fields(central.Nbctl("--bare", "--columns=ip_prefix", "list", "Logical_Router_Static_Route")))
	if rows != routes-1 {
		t.Errorf("%d routes in the database, want %d", rows, routes-1)
	}
	ovntest.Eventually(t, "the other pod has an address", func() bool { return has(t, c, namespace, "other", &kubeovn.IP{}) })
	must(t, c.Delete(ctx, pod, client.GracePeriodSeconds(0)))
	for _, object := range objects {
		must(t, c.Delete(ctx, object))
	}
	ovntest.Eventually(t, "everything is gone", func() bool {
		for _, object := range objects {
			if !apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(object), object)) {
				return false
			}
		}
		return central.Nbctl("--bare", "--columns=name", "list", "Logical_Router") == ""
	})
}
