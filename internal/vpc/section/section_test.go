package section

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/status"
)

func condition(kind string, holds metav1.ConditionStatus, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: holds, Reason: "Test", Message: message}
}

// An object that is not in effect is a problem with the condition's message; an unsupported field and a rule that matches nothing are warnings.
func TestJudge(t *testing.T) {
	all := &status.Facts{
		Nodes: make([]corev1.Node, 2),
		NodeNetworks: []weftv1.NodeNetwork{{Status: weftv1.NodeNetworkStatus{Networks: []weftv1.NodeNetworkSection{
			{Name: weftv1.NetworkOverlay, Conditions: []metav1.Condition{condition(weftv1.NetworkReady, metav1.ConditionTrue, "")}},
			{Name: weftv1.NetworkVPC, Conditions: []metav1.Condition{condition(weftv1.NetworkReady, metav1.ConditionTrue, "")}},
		}}}, {Status: weftv1.NodeNetworkStatus{Networks: []weftv1.NodeNetworkSection{
			{Name: weftv1.NetworkVPC, Conditions: []metav1.Condition{condition(weftv1.NetworkReady, metav1.ConditionFalse, "")}},
		}}}},
	}
	good, served, subnet := kubeovn.Vpc{}, kubeovn.Vpc{}, kubeovn.Subnet{}
	good.Name, served.Name, subnet.Name = "a", "b", "net1"
	good.Status.Conditions = []metav1.Condition{condition(kubeovn.ConditionReady, metav1.ConditionTrue, "")}
	served.Status.Conditions = []metav1.Condition{
		condition(kubeovn.ConditionReady, metav1.ConditionTrue, ""), condition(kubeovn.ConditionSupported, metav1.ConditionFalse, "enableBfd"),
	}
	subnet.Status.Conditions = []metav1.Condition{condition(kubeovn.ConditionReady, metav1.ConditionFalse, "cidrBlock overlaps")}
	nat := []conditioned{
		{"fip/good", []metav1.Condition{condition(kubeovn.ConditionReady, metav1.ConditionTrue, ""), condition(kubeovn.ConditionMatched, metav1.ConditionTrue, "")}},
		{"eip/bad", []metav1.Condition{condition(kubeovn.ConditionReady, metav1.ConditionFalse, "taken")}},
		{"snat/none", []metav1.Condition{condition(kubeovn.ConditionReady, metav1.ConditionTrue, ""), condition(kubeovn.ConditionMatched, metav1.ConditionFalse, "overlaps no Subnet")}},
	}
	got := judge(&collected{vpcs: []kubeovn.Vpc{good, served}, subnets: []kubeovn.Subnet{subnet}, nat: nat}, all)
	want := status.SectionReport{
		Line:  "VPCs: 2, with 1 subnets; nodes that have joined OVN: 1 of 2",
		Facts: Counts{Vpcs: 2, Subnets: 1, Chassis: 1},
		Problems: []status.Finding{
			{Object: "subnet/net1", What: "Ready is False: cidrBlock overlaps", Next: "kubectl get subnet/net1 -o yaml"},
			{Object: "eip/bad", What: "Ready is False: taken", Next: "kubectl get eip/bad -o yaml"},
		},
		Warnings: []status.Finding{
			{Object: "vpc/b", What: "Supported is False: enableBfd", Next: "kubectl get vpc/b -o yaml"},
			{Object: "snat/none", What: "Matched is False: overlaps no Subnet", Next: "kubectl get snat/none -o yaml"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Of three servers of OVN's databases, a missing one is a warning with its name, and two are a problem.
func TestServers(t *testing.T) {
	pod := func(name string, ready corev1.ConditionStatus) corev1.Pod {
		p := corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
		p.Name = name
		return p
	}
	up0, up1, down1, up2 := pod("weft-ovn-0", "True"), pod("weft-ovn-1", "True"), pod("weft-ovn-1", "False"), pod("weft-ovn-2", "True")
	for name, c := range map[string]struct {
		wanted             int32
		pods               []corev1.Pod
		problems, warnings []string
	}{
		"one":               {wanted: 1, pods: []corev1.Pod{up0}},
		"one missing":       {wanted: 1, problems: []string{"pod/weft-ovn-0"}},
		"three":             {wanted: 3, pods: []corev1.Pod{up0, up1, up2}},
		"one of three":      {wanted: 3, pods: []corev1.Pod{up0, down1, up2}, warnings: []string{"pod/weft-ovn-1"}},
		"two of three":      {wanted: 3, pods: []corev1.Pod{up0, down1}, problems: []string{"pod/weft-ovn-1", "pod/weft-ovn-2"}},
		"two not there":     {wanted: 3, pods: []corev1.Pod{up2}, problems: []string{"pod/weft-ovn-0", "pod/weft-ovn-1"}},
		"another's ignored": {wanted: 1, pods: []corev1.Pod{up0, pod("weft-ovn-9", "False")}},
	} {
		databases := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: &c.wanted}}
		report := judge(&collected{databases: databases, servers: c.pods}, &status.Facts{Namespace: "weft"})
		objects := func(findings []status.Finding) (all []string) {
			for _, f := range findings {
				all = append(all, f.Object)
			}
			return all
		}
		if diff := cmp.Diff([][]string{c.problems, c.warnings}, [][]string{objects(report.Problems), objects(report.Warnings)}); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A node whose ovn-controller is not ready is a problem.
func TestControllers(t *testing.T) {
	for ready, want := range map[int32][]string{3: nil, 2: {"daemonset/weft-ovn-controller: ovn-controller is ready on 2 of 3 nodes"}} {
		controllers := &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, NumberReady: ready}}
		report := judge(&collected{controllers: controllers}, &status.Facts{Namespace: "weft"})
		var have []string
		for _, problem := range report.Problems {
			what, _, _ := strings.Cut(problem.What, ": ")
			have = append(have, problem.Object+": "+what)
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%d ready: %s", ready, diff)
		}
	}
}
