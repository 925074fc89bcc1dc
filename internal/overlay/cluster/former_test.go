package cluster

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/metrics"
)

// The last subnet of a removed host is kept until another host has it.
func TestFormerSubnets(t *testing.T) {
	have := func(name, subnet string) networkv1.HostSubnet {
		return networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Subnet: subnet}
	}
	f := formerSubnets{}
	f.see([]networkv1.HostSubnet{have("a", "10.128.0.0/23"), have("b", "10.129.0.0/23"), have("odd", "nonsense"), have("new", "")})
	f.see([]networkv1.HostSubnet{have("b", "10.129.0.0/23")})
	if f["a"] != netip.MustParsePrefix("10.128.0.0/23") || len(f) != 2 {
		t.Errorf("remembered %v", f)
	}
	f.see([]networkv1.HostSubnet{have("b", "10.129.0.0/23"), have("c", "10.128.0.0/23")})
	if _, still := f["a"]; still || len(f) != 2 {
		t.Errorf("remembered %v", f)
	}
}

// subnets is a subnetReconciler with objects in memory.
type subnets struct {
	client.Client
	t *testing.T
	r *subnetReconciler
}

func newSubnetFixture(t *testing.T) *subnets {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(networkv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	network := &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: networkv1.ClusterNetworkDefault}, PluginName: networkv1.PluginSubnet, ServiceNetwork: "172.30.0.0/16",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(network).
		WithStatusSubresource(&networkv1.ClusterNetwork{}, &networkv1.HostSubnet{}).Build()
	return &subnets{Client: c, t: t, r: newSubnets(cluster.Tools{
		Client: c, Live: c, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewController(""), Events: events.NewFakeRecorder(100),
	})}
}

func (s *subnets) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// run reconciles as often as a change needs: a HostSubnet is deleted by one run and created by the next.
func (s *subnets) run() {
	s.t.Helper()
	for range 3 {
		_, err := s.r.Reconcile(s.t.Context(), cluster.Everything{})
		s.must(err)
	}
}

func node(name string, uid types.UID, address string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
	}}
}

// want fails unless the HostSubnet of a Node has a subnet; "" says that there is no HostSubnet.
func (s *subnets) want(name, subnet string) {
	s.t.Helper()
	var hs networkv1.HostSubnet
	err := s.Get(s.t.Context(), client.ObjectKey{Name: name}, &hs)
	s.must(client.IgnoreNotFound(err))
	if hs.Subnet != subnet || (err == nil) != (subnet != "") {
		s.t.Errorf("%s has subnet %q (%v), want %q", name, hs.Subnet, err, subnet)
	}
}

// A Node that is deleted and created again gets the subnet that it had, for its pods may still run: at once or later, and also if only its
// HostSubnet was deleted. Once another host has the subnet, it gets the next one.
func TestNodeGetsItsFormerSubnet(t *testing.T) {
	s := newSubnetFixture(t)
	ctx := t.Context()
	a := node("a", "u1", "192.0.2.1")
	s.must(s.Create(ctx, a))
	s.run()
	s.want("a", "10.128.0.0/23")
	s.must(s.Create(ctx, node("b", "u2", "192.0.2.2")))
	s.run()
	s.want("b", "10.129.0.0/23")

	s.must(s.Delete(ctx, a))
	s.run()
	s.want("a", "")
	a = node("a", "u3", "192.0.2.1")
	s.must(s.Create(ctx, a))
	s.run()
	s.want("a", "10.128.0.0/23")

	s.must(s.Delete(ctx, a))
	a = node("a", "u4", "192.0.2.1")
	s.must(s.Create(ctx, a))
	s.run()
	s.want("a", "10.128.0.0/23")

	s.must(s.Delete(ctx, &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	s.run()
	s.want("a", "10.128.0.0/23")

	s.must(s.Delete(ctx, a))
	s.run()
	f5 := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "f5"}, Host: "f5", HostIP: "192.0.2.5", Subnet: "10.128.0.0/23"}
	s.must(s.Create(ctx, f5))
	s.run()
	s.must(s.Create(ctx, node("a", "u5", "192.0.2.1")))
	s.run()
	s.want("f5", "10.128.0.0/23")
	s.want("a", "10.130.0.0/23")
}
