//go:build lab

package neutron

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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
	"weft.dev/weft/internal/neutron/openstack"
	weftlab "weft.dev/weft/lab/stack/openstack"
)

// place is a network on a node.
type place struct{ network, node string }

// portsOn waits for as many NeutronPorts of a network and node as wanted, none of them being deleted.
func portsOn(ctx context.Context, t *testing.T, kube client.Client, at place, want int) []weftv1.NeutronPort {
	t.Helper()
	for {
		var list weftv1.NeutronPortList
		if err := kube.List(ctx, &list); err != nil {
			t.Fatal(err)
		}
		found := slices.DeleteFunc(list.Items, func(p weftv1.NeutronPort) bool { return p.Spec.Network.Name != at.network || p.Spec.Node != at.node })
		leaving := slices.ContainsFunc(found, func(p weftv1.NeutronPort) bool { return p.DeletionTimestamp != nil })
		if len(found) == want && !leaving {
			return found
		}
		select {
		case <-ctx.Done():
			t.Fatalf("network %s has %d ports on node %s, want %d: %+v", at.network, len(found), at.node, want, found)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// report writes what a node's agent writes.
func report(ctx context.Context, t *testing.T, kube client.Client, p *weftv1.NeutronPort, change func(*weftv1.NeutronPortStatus)) {
	t.Helper()
	before := p.DeepCopy()
	change(&p.Status)
	if err := kube.Status().Patch(ctx, p, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// plug does the node's part: OVN binds a port of br-int by its iface-id.
func plug(ctx context.Context, t *testing.T, node *weftlab.Node, p *weftv1.NeutronPort) {
	t.Helper()
	name := "p" + p.Name[:11]
	_, err := node.Group.Run(ctx, "", node.Space.Enter("ovs-vsctl", "--timeout=60", "add-port", weftlab.Integration, name, "--", "set", "Interface", name,
		"type=internal", "external_ids:iface-id="+p.Name, "external_ids:attached-mac=\""+p.Spec.MAC+"\"", "external_ids:iface-status=active")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unplug(t, node, p) })
}

func unplug(t *testing.T, node *weftlab.Node, p *weftv1.NeutronPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := node.Group.Run(ctx, "", node.Space.Enter("ovs-vsctl", "--timeout=60", "--if-exists", "del-port", weftlab.Integration, "p"+p.Name[:11])...)
	if err != nil {
		t.Error(err)
	}
}

// stage makes two Nodes that report their hostnames, and a Tenant for each name.
func stage(ctx context.Context, t *testing.T, kube client.Client, tenants ...string) {
	t.Helper()
	create := func(o client.Object) {
		if err := kube.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.IgnoreNotFound(kube.Delete(context.Background(), o)); err != nil {
				t.Error(err)
			}
		})
	}
	for _, n := range cloudFor.nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		create(node)
		said := &weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		create(said)
		said.Status.Networks = []weftv1.NodeNetworkSection{{Name: weftv1.NetworkNeutron, Neutron: &weftv1.NeutronNode{Hostname: n.Name, Datapath: "netdev"}}}
		if err := kube.Status().Update(ctx, said); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range tenants {
		create(&stackubev1.Tenant{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: stackubev1.TenantSpec{UserName: name, Password: tenantPassword},
		})
		n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}}
		until(ctx, t, kube, n, func() bool { return n.Status.State == stackubev1.StateActive })
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}} // by a controller that does not run here
		if err := kube.Create(ctx, account); err != nil {
			t.Fatal(err)
		}
	}
}

// runPod makes pod a, which the scheduler has put on a node.
func runPod(ctx context.Context, t *testing.T, kube client.Client, namespace, node string) *corev1.Pod {
	t.Helper()
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	if err := kube.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(kube.Delete(context.Background(), pod, client.GracePeriodSeconds(0))); err != nil {
			t.Error(err)
		}
	})
	return pod
}

// checkPort compares what a node is told of a port with what Neutron has, and with the rules that nodes rely on.
func checkPort(ctx context.Context, t *testing.T, c *openstack.Client, p *weftv1.NeutronPort) {
	t.Helper()
	all, err := cloud.New(c, cloud.Config{}).Ports(ctx, p.Spec.Network.ID)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(h cloud.HeldPort) bool { return h.ID == p.Name })
	if at < 0 {
		t.Fatalf("NeutronPort %s is none of Neutron's", p.Name)
	}
	held, addr := all[at], netip.MustParsePrefix(p.Spec.Addresses[0].Address)
	if held.HostID != p.Spec.Node || held.FixedIPs[0].IPAddress != addr.Addr().String() || held.MACAddress != p.Spec.MAC || p.Spec.MAC != cloud.MAC(addr.Addr()) {
		t.Errorf("Neutron has %+v, the node is told %+v", held, p.Spec)
	}
	router := slices.IndexFunc(all, func(h cloud.HeldPort) bool { return h.IsRouter() })
	if router < 0 || p.Spec.Addresses[0].GatewayMAC != all[router].MACAddress || p.Spec.Addresses[0].Gateway != "10.244.0.1" || addr.Bits() != 16 || p.Spec.MTU < 1280 {
		t.Errorf("the router is %+v, the node is told %+v", all[router], p.Spec)
	}
}

// Ports are created before their pods are served, for each network and node as many as its pods need, without an address twice on a node.
// They become active once they are plugged. A restart writes nothing, a port without its object gets one, and the Network's deletion waits for
// pods and leaves nothing in OpenStack.
func TestPortsAhead(t *testing.T) {
	ctx, c := connect(t)
	controller := startController(ctx, t)
	kube := controller.kube
	const blue, red = "weft-test-ports-blue", "weft-test-ports-red"
	stage(ctx, t, kube, blue, red)
	n1, n2 := cloudFor.nodes[0], cloudFor.nodes[1]

	pod := runPod(ctx, t, kube, blue, n1.Name)
	runPod(ctx, t, kube, red, n1.Name)
	first := portsOn(ctx, t, kube, place{blue, n1.Name}, 1)
	second := portsOn(ctx, t, kube, place{red, n1.Name}, 1)
	portsOn(ctx, t, kube, place{blue, n2.Name}, 0)
	seen := map[string]bool{}
	for _, p := range slices.Concat(first, second) {
		checkPort(ctx, t, c, &p)
		addr, _, _ := strings.Cut(p.Spec.Addresses[0].Address, "/")
		if seen[addr] || p.Spec.Active {
			t.Errorf("port %s: its address is another network's on the node, or it is active unplugged: %+v", p.Name, p.Spec)
		}
		seen[addr] = true
	}

	second = withIPv6(ctx, t, kube, place{red, n1.Name})
	mine := &first[0]
	plug(ctx, t, n1, mine)
	report(ctx, t, kube, mine, func(s *weftv1.NeutronPortStatus) { s.Plugged = true })
	until(ctx, t, kube, mine, func() bool { return mine.Spec.Active })
	portsOn(ctx, t, kube, place{blue, n1.Name}, 1+ahead.LeastSpare) // the free ones follow
	report(ctx, t, kube, mine, func(s *weftv1.NeutronPortStatus) {
		s.Pod = &weftv1.NeutronPortPod{Namespace: blue, Name: "a", UID: string(pod.UID)}
	})

	orphan := strayPort(ctx, t, c, mine)
	controller.restartWritesNothing(ctx, t, "/v2.0/ports?network_id="+mine.Spec.Network.ID)
	ports := portsOn(ctx, t, kube, place{blue, n1.Name}, 1+ahead.LeastSpare+1)
	if !slices.ContainsFunc(ports, func(p weftv1.NeutronPort) bool { return p.Name == orphan }) {
		t.Errorf("port %s, which a controller had created before it ended, has no NeutronPort", orphan)
	}

	n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: blue, Name: blue}}
	if err := kube.Delete(ctx, n); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, kube, n, func() bool { return strings.Contains(n.Status.Message, "pods are on the network: "+blue+"/a") })
	report(ctx, t, kube, mine, func(s *weftv1.NeutronPortStatus) { s.Pod = nil })
	unplug(t, n1, mine)
	until(ctx, t, kube, mine, func() bool { return mine.DeletionTimestamp != nil })
	report(ctx, t, kube, mine, func(s *weftv1.NeutronPortStatus) { s.Plugged = false })
	for _, name := range []string{blue, red} {
		tenant := &stackubev1.Tenant{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		if err := kube.Delete(ctx, tenant); err != nil {
			t.Fatal(err)
		}
		untilGone(ctx, t, kube, tenant)
	}
	for _, p := range []weftv1.NeutronPort{first[0], second[0]} {
		if left, err := cloud.New(c, cloud.Config{}).Ports(ctx, p.Spec.Network.ID); err != nil || len(left) > 0 {
			t.Errorf("Neutron still has of network %s: %+v, %v", p.Spec.Network.Name, left, err)
		}
	}
}

// withIPv6 gives a tenant's Network an IPv6 subnet. Its port without a pod, which has no IPv6 address, is replaced by one with both.
func withIPv6(ctx context.Context, t *testing.T, kube client.Client, at place) []weftv1.NeutronPort {
	t.Helper()
	n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: at.network, Name: at.network}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ipv6CIDR":"fd00:10:244::/64"}}`))
	if err := kube.Patch(ctx, n, patch); err != nil {
		t.Fatal(err)
	}
	for {
		found := portsOn(ctx, t, kube, at, 1)
		if a := found[0].Spec.Addresses; len(a) == 2 && strings.HasPrefix(a[0].Address, "10.244.") && strings.HasPrefix(a[1].Address, "fd00:10:244:") &&
			a[1].Gateway == "fd00:10:244::1" {
			return found
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the port has no IPv6 address: %+v", found)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// strayPort creates a port as a controller does that ends before it has written the NeutronPort.
func strayPort(ctx context.Context, t *testing.T, c *openstack.Client, like *weftv1.NeutronPort) string {
	t.Helper()
	admin := cloud.New(c, cloud.Config{Cluster: "test"})
	held, err := admin.FindNetwork(ctx, "", "", like.Spec.Network.ID)
	if err != nil {
		t.Fatal(err)
	}
	made, err := admin.CreatePorts(ctx, cloud.NewPorts{
		Owner: fmt.Sprintf("port/%s/%s", like.Spec.Network.UID, like.Spec.Node), Project: held.ProjectID, Network: held.ID, Subnet: held.Held[0].ID,
		Host: like.Spec.Node, Addresses: []netip.Addr{netip.MustParseAddr("10.244.99.99")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return made[0].ID
}
