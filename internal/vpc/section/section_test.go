package section

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/status"
)

func condition(kind string, holds metav1.ConditionStatus, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: holds, Reason: "Test", Message: message}
}

// An object that is not in effect is a problem with the condition's message; an unsupported field is a warning.
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
	got := judge(&collected{[]kubeovn.Vpc{good, served}, []kubeovn.Subnet{subnet}}, all)
	want := status.SectionReport{
		Line:     "VPCs: 2, with 1 subnets; nodes that have joined OVN: 1 of 2",
		Facts:    Counts{Vpcs: 2, Subnets: 1, Chassis: 1},
		Problems: []status.Finding{{Object: "subnet/net1", What: "Ready is False: cidrBlock overlaps", Next: "kubectl get subnet/net1 -o yaml"}},
		Warnings: []status.Finding{{Object: "vpc/b", What: "Supported is False: enableBfd", Next: "kubectl get vpc/b -o yaml"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
