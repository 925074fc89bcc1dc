//go:build real

package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// With the rights in the manifest, a policy's condition says whether it is in effect. An event on the policy reports a problem, and another
// one its end.
func TestFirewallConditions(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginMultitenant, usualRange())
	c.namespace("fenced")
	c.must(c.DeleteAllOf(t.Context(), &eventsv1.Event{}, client.InNamespace("fenced")))
	create := func(name string) *networkv1.EgressNetworkPolicy {
		t.Helper()
		p := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fenced", Name: name}}
		p.Spec.Egress = []networkv1.EgressNetworkPolicyRule{{Type: "Deny", To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "0.0.0.0/0"}}}
		c.must(c.Create(t.Context(), p))
		t.Cleanup(func() { c.must(client.IgnoreNotFound(c.Delete(context.Background(), p))) })
		return p
	}
	says := func(name, reason string) {
		t.Helper()
		c.eventually(name+" says "+reason, func() error {
			var p networkv1.EgressNetworkPolicy
			c.must(c.Get(t.Context(), client.ObjectKey{Namespace: "fenced", Name: name}, &p))
			valid := meta.FindStatusCondition(p.Status.Conditions, networkv1.ConditionValid)
			if valid != nil && valid.Reason == reason && (valid.Status == metav1.ConditionTrue) == (reason == networkv1.ReasonValid) {
				return nil
			}
			return fmt.Errorf("its condition is %v", valid)
		})
	}
	create("one")
	c.start(nil)
	says("one", networkv1.ReasonValid)
	two := create("two")
	says("one", networkv1.ReasonConflict)
	says("two", networkv1.ReasonConflict)
	c.eventually("an event about the policy", func() error {
		var list eventsv1.EventList
		c.must(c.List(t.Context(), &list, client.InNamespace("fenced")))
		for i := range list.Items {
			e := &list.Items[i]
			if e.Regarding.Kind == "EgressNetworkPolicy" && e.Regarding.Name == "one" && e.Reason == networkv1.ReasonConflict && strings.Contains(e.Note, "2 EgressNetworkPolicies") {
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(list.Items))
	})
	c.must(c.Delete(t.Context(), two))
	says("one", networkv1.ReasonValid)
}
