package supervisor

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"weft.dev/weft/lab/plan"
)

func hostSubnet(name, hostIP, subnet string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"kind": "HostSubnet", "metadata": map[string]any{"name": name}, "host": name, "hostIP": hostIP, "subnet": subnet,
	}}
}

func node(name, podCIDR string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"kind": "Node", "metadata": map[string]any{"name": name}, "spec": map[string]any{"podCIDR": podCIDR},
	}}
}

// The control plane has a route to each node's pods, and none for an object of another host or an invalid one.
func TestPodRoutes(t *testing.T) {
	config, err := plan.Config{}.Default()
	if err != nil {
		t.Fatal(err)
	}
	got := podRoutes(plan.New(config), []*unstructured.Unstructured{
		hostSubnet("n2", "172.31.0.2", "10.129.0.0/23"),
		hostSubnet("n1", "172.31.0.1", "10.128.0.0/23"),
		hostSubnet("twice", "172.31.0.1", "10.129.0.0/23"),
		hostSubnet("device.example", "198.51.100.10", "10.130.0.0/23"),
		hostSubnet("everything", "172.31.0.1", "0.0.0.0/0"),
		hostSubnet("underlay", "172.31.0.1", "172.31.0.0/25"),
		hostSubnet("waiting", "172.31.0.2", ""),
		hostSubnet("six", "172.31.0.2", "fd00::/64"),
		node("n1", "10.244.1.0/24"),
		node("n9", "10.244.9.0/24"),
		node("n2", "nonsense"),
	})
	one, two := netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("172.31.0.2")
	want := map[netip.Prefix]netip.Addr{
		netip.MustParsePrefix("10.128.0.0/23"): one, netip.MustParsePrefix("10.129.0.0/23"): two, netip.MustParsePrefix("10.244.1.0/24"): one,
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}
