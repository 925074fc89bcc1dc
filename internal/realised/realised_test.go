package realised_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/realised"
)

// host returns a node's HostSubnet as a serving agent writes it.
func host(name string, said ...networkv1.HostSubnetRealised) *networkv1.HostSubnet {
	hs := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{networkv1.AnnotationNodeUID: "u"}}}
	hs.Status.Realised = said
	hs.Status.Conditions = []metav1.Condition{{Type: networkv1.ConditionReady, Status: metav1.ConditionTrue}}
	return hs
}

func stopped(hs *networkv1.HostSubnet) *networkv1.HostSubnet {
	hs.Status.Conditions[0].Status, hs.Status.Conditions[0].Message = metav1.ConditionFalse, "the agent was stopped"
	return hs
}

func unsteady(hs *networkv1.HostSubnet, reason, message string) *networkv1.HostSubnet {
	hs.Status.Conditions = append(hs.Status.Conditions, metav1.Condition{Type: networkv1.ConditionEnginesInStep, Status: metav1.ConditionFalse, Reason: reason, Message: message})
	return hs
}

func TestJudge(t *testing.T) {
	said := func(version, reason string, more int32, exceptions ...string) networkv1.HostSubnetRealised {
		r := networkv1.HostSubnetRealised{Kind: "NetworkPolicy", Version: version, Reason: reason, More: more}
		for _, object := range exceptions {
			r.Exceptions = append(r.Exceptions, networkv1.HostSubnetException{Object: object, Reason: object + " cannot be"})
		}
		return r
	}
	subject := realised.Subject{Kind: realised.NetworkPolicy, Name: "shop/m", Version: 100}
	yes := realised.Verdict{Realised: true}
	because := func(reason string) realised.Verdict { return realised.Verdict{Reason: reason} }
	failing := func(reason string) realised.Verdict { return realised.Verdict{Failing: true, Reason: reason} }
	for what, test := range map[string]struct {
		node *networkv1.HostSubnet
		want realised.Verdict
	}{
		"this version":                     {host("n", said("100", "", 0)), yes},
		"a later one":                      {host("n", said("1000", "", 0)), yes},
		"as a number":                      {host("n", said("99", "", 0)), because("its agent has not said yet that it has followed")},
		"another is an exception":          {host("n", said("100", "", 0, "shop/a", "shop/z")), yes},
		"it is one":                        {host("n", said("100", "", 0, "shop/a", "shop/m")), failing("shop/m cannot be")},
		"it is before those not named":     {host("n", said("100", "", 3, "shop/a", "shop/z")), yes},
		"it may be among those not named":  {host("n", said("100", "", 3, "shop/a")), failing("it may be one of 3 NetworkPolicy objects that are not in effect there and that its agent does not name")},
		"the agent says why":               {host("n", said("99", "the switch does not answer", 0)), because("the switch does not answer")},
		"of none it is known":              {host("n", said("", "the switch is away", 0)), because("the switch is away")},
		"the engines say why":              {unsteady(host("n", said("99", "", 0)), networkv1.ReasonFailing, "not programmed: x"), because("not programmed: x")},
		"the node stays as it was":         {unsteady(host("n"), networkv1.ReasonRefused, "the node stays as it was: y"), because("the node stays as it was: y")},
		"its agent was stopped before":     {stopped(host("n", said("99", "old", 0))), because("the agent was stopped")},
		"its agent was stopped after that": {stopped(host("n", said("100", "", 0))), yes},
		"another kind":                     {host("n", networkv1.HostSubnetRealised{Kind: "NetNamespace", Version: "100"}), because("its agent says nothing of NetworkPolicy objects: it is about to follow them, or of a release that does not say")},
		"no agent yet":                     {&networkv1.HostSubnet{}, because("its agent has not reported yet: it is starting, or of a release that does not report")},
	} {
		if diff := cmp.Diff(test.want, subject.Judge(test.node)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

// The verdict has the reason of the first subject that is not in effect. A node that was in another mode reports nothing about VNIDs.
func TestJudgeAll(t *testing.T) {
	space := realised.Subject{Kind: realised.NetNamespace, Name: "shop", Version: 5}
	vnid := realised.Subject{Kind: realised.VNID, Name: "shop", Version: 5}
	said := func(kind, version string) networkv1.HostSubnetRealised {
		return networkv1.HostSubnetRealised{Kind: kind, Version: version}
	}
	judge := realised.JudgeAll(space, vnid)
	for want, node := range map[string]*networkv1.HostSubnet{
		"": host("n", said("NetNamespace", "5"), said("VNID", "6")), "VNID objects": host("n", said("NetNamespace", "5")),
		"has not said": host("n", said("NetNamespace", "4"), said("VNID", "5")),
	} {
		if got := judge(node); got.Realised != (want == "") || !strings.Contains(got.Reason, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}

func TestTally(t *testing.T) {
	subject := realised.Subject{Kind: realised.EgressNetworkPolicy, Name: "shop/out", Version: 7}
	tally := realised.NewTally(subject.Judge)
	said := func(version string) networkv1.HostSubnetRealised {
		return networkv1.HostSubnetRealised{Kind: "EgressNetworkPolicy", Version: version}
	}
	for i := range 6 {
		tally.Take(stopped(host(fmt.Sprintf("n%d", i), said("6"))))
	}
	elsewhere := host("router", said("1"))
	elsewhere.Annotations = nil
	tally.Take(elsewhere)
	count := tally.Count()
	want := "realised on 0 of 6 nodes; not on n0: the agent was stopped; n1: the agent was stopped; n2: the agent was stopped; and 3 more"
	if got := count.Summary(); got != want || count.Names() != "n0, n1, n2, n3, n4 and 1 more" || count.All() {
		t.Errorf("%q, %q", got, count.Names())
	}
	for i := range 5 {
		tally.Take(host(fmt.Sprintf("n%d", i), said("8")))
	}
	report := realised.Report{Kind: subject.Kind, Object: subject.Name, Count: tally.Count()}
	report.Not[0].Next = "weft status"
	var text bytes.Buffer
	if err := report.Text(&text); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("EgressNetworkPolicy shop/out: realised on 5 of 6 nodes\n\nNODE  NOT REALISED BECAUSE\nn5    the agent was stopped\n      -> weft status\n", text.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	tally.Drop("n5")
	if count := tally.Count(); !count.All() || count.Summary() != "realised on 5 of 5 nodes" {
		t.Errorf("without the last: %s", count.Summary())
	}
}

func TestParseKind(t *testing.T) {
	for word, want := range map[string]realised.Kind{
		"netpol": realised.NetworkPolicy, "NetworkPolicies": realised.NetworkPolicy, "egressnetworkpolicy": realised.EgressNetworkPolicy, "netnamespace": realised.NetNamespace,
	} {
		if got, err := realised.ParseKind(word); got != want || err != nil {
			t.Errorf("%s: %s, %v", word, got, err)
		}
	}
	if _, err := realised.ParseKind("pod"); err == nil {
		t.Error("a pod is realised")
	}
}
