//go:build real

package controller

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// say writes a node's status as its agent would: the version up to which EgressNetworkPolicies are in effect, and the exceptions.
func (c *cluster) say(node string, version uint64, exceptions ...networkv1.HostSubnetException) {
	c.t.Helper()
	c.eventually("status of "+node, func() error {
		var hs networkv1.HostSubnet
		if err := c.Get(c.t.Context(), client.ObjectKey{Name: node}, &hs); err != nil {
			return err
		}
		hs.Status.Realised = []networkv1.HostSubnetRealised{{Kind: "EgressNetworkPolicy", Version: strconv.FormatUint(version, 10), Exceptions: exceptions}}
		meta.SetStatusCondition(&hs.Status.Conditions, metav1.Condition{Type: networkv1.ConditionReady, Status: metav1.ConditionTrue, Reason: networkv1.ReasonServing})
		return c.Status().Update(c.t.Context(), &hs)
	})
}

// With the rights in the manifest, a policy's condition says on how many nodes it is in effect. In steady state nothing is written, neither
// when nodes report other changes as in effect, nor by a new leader.
func TestRealisedConditions(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginMultitenant, usualRange())
	c.namespace("fenced")
	c.node("a", "192.0.2.1")
	c.node("b", "192.0.2.2")
	r := c.start(nil)
	c.awaitSubnet("a", "192.0.2.1", "")
	c.awaitSubnet("b", "192.0.2.2", "")
	p := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fenced", Name: "one"}}
	p.Spec.Egress = []networkv1.EgressNetworkPolicyRule{{Type: "Deny", To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "0.0.0.0/0"}}}
	c.must(c.Create(t.Context(), p))
	t.Cleanup(func() { c.must(client.IgnoreNotFound(c.Delete(context.Background(), p))) })
	version, err := strconv.ParseUint(p.ResourceVersion, 10, 64)
	c.must(err)
	says := func(status metav1.ConditionStatus, words string) {
		t.Helper()
		c.eventually(words, func() error {
			c.must(c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
			if is := meta.FindStatusCondition(p.Status.Conditions, networkv1.ConditionRealised); is == nil || is.Status != status || is.Message != words {
				return fmt.Errorf("its condition is %v", is)
			}
			return nil
		})
	}
	c.say("a", version+1000) // the controller may have first seen it with its condition Valid
	c.say("b", version+1000)
	says(metav1.ConditionTrue, "realised on 2 of 2 nodes")
	c.say("b", version+1000, networkv1.HostSubnetException{Object: "fenced/one", Reason: "www.example is not resolved yet"})
	says(metav1.ConditionFalse, "realised on 1 of 2 nodes; not on b: www.example is not resolved yet")
	c.say("b", version+1000)
	says(metav1.ConditionTrue, "realised on 2 of 2 nodes")
	about := func(writes []string) (own []string) {
		for _, w := range writes {
			if strings.Contains(w, "egressnetworkpolicies") {
				own = append(own, w)
			}
		}
		return own
	}
	before := len(about(r.written()))
	again := c.start(nil)
	for i := range uint64(3) {
		c.say("a", version+2000+i)
		wait(t, 1500*time.Millisecond) // for resyncs, and for what is gathered, which leave no trace
		if i == 1 {
			if late := about(r.written())[before:]; len(late) > 0 {
				t.Errorf("written in steady state: %v", late)
			}
			c.stop(r)
		}
	}
	c.node("last", "192.0.2.9") // the other one does lead
	c.awaitSubnet("last", "192.0.2.9", "")
	if late := about(again.written()); len(late) > 0 {
		t.Errorf("the new leader wrote %v", late)
	}
}
