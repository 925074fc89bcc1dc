package cluster

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// The default ClusterNetwork is created only if no network is configured.
func TestCreateNetwork(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(networkv1.AddToScheme(scheme), networkingv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	services := func(cidrs ...string) client.Object {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	away := errors.New("no answer")
	for name, test := range map[string]struct {
		objects   []client.Object
		elsewhere bool
		err       error
		node      string
		services  string // of the created ClusterNetwork; "": none is created
		fails     bool
		problems  int
	}{
		"nothing is configured":            {services: "172.30.0.0/16"},
		"the API server's Services":        {objects: []client.Object{services("fd00::/108", "10.96.0.0/12")}, services: "10.96.0.0/12"},
		"no IPv4 Services":                 {objects: []client.Object{services("fd00::/108")}, fails: true},
		"another network":                  {elsewhere: true},
		"no answer about other networks":   {err: away, fails: true},
		"hosts have subnets":               {objects: []client.Object{&networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}},
		"a node's address is in the range": {node: "10.129.0.1", problems: 1},
	} {
		live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.objects...).Build()
		recorder := events.NewFakeRecorder(4)
		s := &subnetReconciler{
			client: live, live: live, log: slog.New(slog.DiscardHandler), report: cluster.NewReporter(nameSubnets, "", recorder, metrics.NewController("")),
			elsewhere: func(context.Context) (bool, error) { return test.elsewhere, test.err },
		}
		problems, err := s.createNetwork(t.Context(), []plan.Node{{Name: "n1", Address: test.node}})
		if (err != nil) != test.fails || len(problems) != test.problems {
			t.Errorf("%s: %v %v", name, problems, err)
		}
		var network networkv1.ClusterNetwork
		err = live.Get(t.Context(), client.ObjectKey{Name: "default"}, &network)
		if test.services == "" && !apierrors.IsNotFound(err) || network.ServiceNetwork != test.services || len(sent(recorder)) == 1 != (test.services != "") {
			t.Errorf("%s: Services %q, %v", name, network.ServiceNetwork, err)
		}
	}
}

// A controller without --default-cluster-network creates none.
func TestNetworkIsNotCreatedIfForbidden(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(networkv1.AddToScheme(scheme), networkingv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for _, allowed := range []bool{false, true} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
		}}
		live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(node).Build()
		s := newSubnets(cluster.Tools{
			Client: live, Live: live, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewController(""), Events: events.NewFakeRecorder(4), Defaults: allowed,
		})
		if _, err := s.Reconcile(t.Context(), cluster.Everything{}); err != nil {
			t.Errorf("allowed %t: %v", allowed, err)
		}
		err := live.Get(t.Context(), client.ObjectKey{Name: networkv1.ClusterNetworkDefault}, &networkv1.ClusterNetwork{})
		if created := err == nil; created != allowed || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("allowed %t: a ClusterNetwork is created: %t (%v)", allowed, created, err)
		}
	}
}
