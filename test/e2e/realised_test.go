//go:build lab

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/lab"
)

// realisedPatience is how long nodes may take to report: two nodes write every 5 seconds, and take turns.
const realisedPatience = 30 * time.Second

// newRealised returns a client that reports on how many nodes of a lab objects are in effect.
func newRealised(t *testing.T, c *lab.Cluster) *realised.Client {
	t.Helper()
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := realised.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

// asks returns the report of weft realised about an object, once it is in effect on the given number of nodes.
func asks(t *testing.T, nodes *realised.Client, kind realised.Kind, name string, on int) realised.Report {
	t.Helper()
	var report realised.Report
	awaitWithin(t, realisedPatience, fmt.Sprintf("%s on %d of 2 nodes", name, on), func(ctx context.Context) error {
		var err error
		report, err = nodes.Ask(ctx, kind, name, false, func(string) {})
		if err == nil && (report.Nodes != 2 || report.Realised != on) {
			err = fmt.Errorf("%s", report.Summary())
		}
		return err
	})
	return report
}

// A policy is reported as in effect on all nodes once it is. While a node's agent hangs, a new policy is reported as missing there, with
// the reason, and an older one still as in effect. When the agent continues, the new one is in effect too. A policy that the nodes cannot
// fully enforce is reported with the reason.
func TestPolicyIsRealisedOnNodes(t *testing.T) {
	s := newPolicyScene(t, "realised")
	nodes := newRealised(t, s.cluster)
	server := map[string]string{"app": "server"}
	s.policy(t, "realised-one", server, ingress())
	api := networkClient(t, s.cluster)
	fence := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "other-namespace", Name: "fence"}}
	fence.Spec.Egress = []networkv1.EgressNetworkPolicyRule{{Type: networkv1.EgressNetworkPolicyRuleDeny, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "192.0.2.0/24"}}}
	if err := api.Create(t.Context(), fence); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := api.Delete(context.Background(), fence); err != nil {
			t.Error(err)
		}
	}()
	asks(t, nodes, realised.NetworkPolicy, "default/realised-one", 2)
	asks(t, nodes, realised.EgressNetworkPolicy, "other-namespace/fence", 2)
	asks(t, nodes, realised.NetNamespace, "other-namespace", 2)
	s.reach(t, "a policy that is realised", map[uint16][3]bool{sourcePort: {}})

	goOn := hang(t, s.cluster, "n2/weft-agent")
	defer goOn()
	s.policy(t, "realised-two", server, ingress(networkingv1.NetworkPolicyIngressRule{}))
	behind := asks(t, nodes, realised.NetworkPolicy, "default/realised-two", 1)
	if not := behind.Not[0]; not.Name != "n2" || not.Reason == "" || not.Next == "" || not.Failing {
		t.Errorf("while the agent of n2 hangs: %+v", behind)
	}
	asks(t, nodes, realised.NetworkPolicy, "default/realised-one", 2)
	goOn()
	asks(t, nodes, realised.NetworkPolicy, "default/realised-two", 2)
	awaitWithin(t, realisedPatience, "the egress firewall's condition", func(ctx context.Context) error {
		var p networkv1.EgressNetworkPolicy
		err := api.Get(ctx, client.ObjectKeyFromObject(fence), &p)
		if is := meta.FindStatusCondition(p.Status.Conditions, networkv1.ConditionRealised); err == nil && (is == nil || is.Message != "realised on 2 of 2 nodes") {
			err = fmt.Errorf("it is %v", is)
		}
		return err
	})

	s.annotations = map[string]string{policy.AnnotationEstablished: "never"}
	s.policy(t, "realised-wrong", server, ingress())
	wrong := asks(t, nodes, realised.NetworkPolicy, "default/realised-wrong", 1) // n2 has no pod of it
	if not := wrong.Not[0]; not.Name != "n1" || !not.Failing || !strings.Contains(not.Reason, `"never" is neither keep nor end`) {
		t.Errorf("of a policy that says what cannot be: %+v", wrong)
	}
}
