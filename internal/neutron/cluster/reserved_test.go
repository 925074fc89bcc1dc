package cluster

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/objects"
)

// rulesOf returns the rules for the ports of a node; "": for networks.
func rulesOf(t *testing.T, r *reservedReader, os *session, node string) *objects.Rules {
	t.Helper()
	rules, err := r.read(t.Context(), os)
	if err == nil && node != "" {
		rules, err = r.ofNode(t.Context(), rules, node)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// The routes that a node reports prevent neither a Network nor an address of another node's ports.
func TestRangesOfOneNode(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1", "10.0.0.0/8", "172.16.0.0/12"), node("n2"))...)
	reader := r.ports(nil).reserved
	for of, refused := range map[string]bool{"n1": true, "n2": false, "": false} {
		rules := rulesOf(t, reader, &session{}, of)
		n := &stackubev1.Network{Spec: stackubev1.NetworkSpec{CIDR: "10.244.0.0/16"}}
		if _, err := objects.Compile(n, "p", rules); (err != nil) != refused || rules.Refuses(netip.MustParseAddr("10.244.0.5")) != refused {
			t.Errorf("for node %q: %v, want it refused: %v", of, err, refused)
		}
	}
}

// A tenant's range must not overlap what nodes need: their addresses of every kind, their routes, pods' and every Services' range,
// OpenStack's own interfaces, and what the chart reserves. The error names the field.
func TestRangesThatNodesNeed(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := weftv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "10.2.0.1"}, {Type: corev1.NodeExternalIP, Address: "10.3.0.1"}, {Type: corev1.NodeHostName, Address: "n1"},
			}},
		},
		&weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: weftv1.NodeNetworkStatus{Networks: []weftv1.NodeNetworkSection{
			{Name: weftv1.NetworkNeutron, Neutron: &weftv1.NeutronNode{Ranges: []string{"10.4.0.0/16", "10.5.0.9/32"}}},
		}}},
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.6.0.0/16"}}},
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.7.0.0/16"}}},
	).Build()
	r := &reservedReader{cached: reader, live: reader, allowed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, own: []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")}}
	rules := rulesOf(t, r, &session{addresses: []netip.Addr{netip.MustParseAddr("10.9.0.5")}}, "n1")
	for cidr, wrong := range map[string]bool{
		"10.1.0.0/16": true, "10.2.0.0/24": true, "10.3.0.0/24": true, "10.4.7.0/24": true, "10.5.0.0/24": true, "10.6.1.0/24": true, "10.7.1.0/24": true,
		"10.8.0.0/24": true, "10.9.0.0/24": true, "8.8.8.0/24": true, "10.244.0.0/16": false, "10.2.1.0/24": false,
	} {
		n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "blue"}, Spec: stackubev1.NetworkSpec{CIDR: cidr}}
		_, err := objects.Compile(n, "p", rules)
		if (err != nil) != wrong {
			t.Errorf("%s: %v, want an error: %v", cidr, err, wrong)
		}
		if err != nil && !slices.Contains([]string{"spec.cidr"}, err.Error()[:len("spec.cidr")]) {
			t.Errorf("%s: the error does not name the field: %v", cidr, err)
		}
	}
}

// The ports of all nodes need one request to the API server for the ranges.
func TestRangesAreReadOnce(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1"), node("n2"), pods("n1", 2), pods("n2", 2))...)
	r.addBlue()
	ports := r.ports(time.Now)
	lists := 0
	ports.reserved.live = interceptor.NewClient(r.client, interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption,
	) error {
		lists++
		return c.List(ctx, list, opts...)
	}})
	if _, err := ports.Reconcile(t.Context(), request("blue")); err != nil {
		t.Fatal(err)
	}
	if all := r.count(t, "blue"); all["n1"] != 2 || all["n2"] != 2 || lists != 1 {
		t.Errorf("ports of nodes: %v, after %d requests", all, lists)
	}
}
