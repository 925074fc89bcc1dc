package plan_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// The finding about each policy depends on the mode, other policies and its namespace's VNID.
func TestFirewalls(t *testing.T) {
	policy := func(namespace, name string, rules ...networkv1.EgressNetworkPolicyRule) networkv1.EgressNetworkPolicy {
		return networkv1.EgressNetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkv1.EgressNetworkPolicySpec{Egress: rules},
		}
	}
	deny := networkv1.EgressNetworkPolicyRule{Type: "Deny", To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "0.0.0.0/0"}}
	wrong := networkv1.EgressNetworkPolicyRule{Type: "Deny", To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "2001:db8::/32"}}
	loose := networkv1.EgressNetworkPolicyRule{Type: "Deny", To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "192.0.2.1/24"}}
	named := networkv1.EgressNetworkPolicyRule{Type: "Deny", To: networkv1.EgressNetworkPolicyPeer{DNSName: "www.example"}}
	state := plan.FirewallState{Policies: []networkv1.EgressNetworkPolicy{
		policy("alone", "one", deny), policy("two", "one", deny), policy("two", "two", deny), policy("two", "empty"),
		policy("shares", "one", deny), policy("global", "one", deny), policy("wrong", "one", deny, wrong), policy("new", "one", deny),
		policy("named", "one", deny, named), policy("loose", "one", loose),
	}}
	for name, id := range map[string]uint32{"alone": 10, "two": 11, "shares": 12, "with": 12, "global": 0, "default": 0, "wrong": 13} {
		state.NetNamespaces = append(state.NetNamespaces, networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: id})
	}
	for _, mode := range []clusternetwork.Mode{clusternetwork.ModeMultitenant, clusternetwork.ModeNetworkPolicy, clusternetwork.ModeSubnet} {
		state.Mode = mode
		want := map[string]string{
			"alone/one": "Valid ", "two/one": "Conflict the namespace has 2 EgressNetworkPolicies", "two/two": "Conflict the namespace has 2",
			"two/empty": "Valid ", "shares/one": "Conflict several namespaces have the VNID 12", "global/one": "NoEffect namespace global has VNID 0",
			"wrong/one": "Invalid nothing leaves the namespace: spec.egress[1].to.cidrSelector: \"2001:db8::/32\" is not an IPv4 range", "new/one": "Valid ",
			"named/one": "Valid each node resolves its names",
			"loose/one": "Valid spec.egress[0].to.cidrSelector: 192.0.2.1/24 has bits set right of the prefix, and is taken as 192.0.2.0/24",
		}
		if mode == clusternetwork.ModeSubnet {
			for name := range want {
				want[name] = "NoEffect egress firewalls need a network with VNIDs"
			}
			want["wrong/one"] = "Invalid spec.egress[1]"
		}
		for _, found := range plan.Firewalls(state) {
			name := found.Policy.Namespace + "/" + found.Policy.Name
			if got := found.Reason + " " + found.Message; !strings.HasPrefix(got, want[name]) || want[name] == "Valid " && found.Message != "" {
				t.Errorf("%s: %s: %q, want %q", mode, name, got, want[name])
			}
		}
	}
}
