package section

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/status"
)

func condition(kind string, holds metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: holds, Reason: reason, Message: message}
}

func node(name string, ready metav1.Condition) weftv1.NodeNetwork {
	return weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: weftv1.NodeNetworkStatus{Networks: []weftv1.NodeNetworkSection{
		{Name: weftv1.NetworkOverlay}, {Name: weftv1.NetworkNeutron, Conditions: []metav1.Condition{ready}},
	}}}
}

// The section counts ports by what they wait for, and names each network, node and port that does not serve, with the reason.
func TestJudge(t *testing.T) {
	network := func(name string, conditions ...metav1.Condition) stackubev1.Network {
		n := stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name}}
		n.Status.State, n.Status.Conditions = stackubev1.StatePending, conditions
		return n
	}
	pod := &weftv1.NeutronPortPod{Namespace: "blue", Name: "web"}
	port := func(name string, active, plugged bool, pod *weftv1.NeutronPortPod, message string) weftv1.NeutronPort {
		return weftv1.NeutronPort{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: weftv1.NeutronPortSpec{Node: "n1", Active: active},
			Status: weftv1.NeutronPortStatus{Plugged: plugged, Pod: pod, Message: message},
		}
	}
	all := &status.Facts{Nodes: make([]corev1.Node, 3), NodeNetworks: []weftv1.NodeNetwork{
		node("n1", condition(weftv1.NetworkReady, metav1.ConditionTrue, "Serving", "")),
		node("n2", condition(weftv1.NetworkReady, metav1.ConditionFalse, "Problems", "bridge br-int does not exist")),
		{ObjectMeta: metav1.ObjectMeta{Name: "n3"}},
	}}
	got := judge(&collected{
		[]stackubev1.Network{
			network("a", condition(stackubev1.ConditionReady, metav1.ConditionTrue, "InStep", "")), network("b"),
			network("c", condition(stackubev1.ConditionReady, metav1.ConditionFalse, "OpenStack", "authenticate at Keystone: OpenStack answers 401")),
		},
		[]weftv1.NeutronPort{
			port("used", true, true, pod, ""), port("free", true, true, nil, ""), port("new", false, false, nil, ""),
			port("lost", false, true, pod, ""), port("wrong", true, false, nil, "slot taken"),
		},
	}, all)
	want := status.SectionReport{
		Line:  "OpenStack: 3 networks, 5 ports (2 in use, 1 free, 2 waiting for OpenStack); nodes that serve: 1 of 3",
		Facts: Counts{Networks: 3, Ports: 5, InUse: 2, Free: 1, Waiting: 2, Serving: 1},
		Problems: []status.Finding{
			{Object: "network blue/b", What: "the controller has not reported it yet; does it run with neutron.enabled?", Next: "kubectl -n blue describe networks.stackube.kubernetes.io b"},
			{
				Object: "network blue/c", What: "Pending (OpenStack): authenticate at Keystone: OpenStack answers 401",
				Next: "kubectl -n blue describe networks.stackube.kubernetes.io c",
			},
			{Object: "node n2", What: "pods cannot be attached to OpenStack's ports: bridge br-int does not exist", Next: "kubectl get nodenetwork n2 -o yaml"},
		},
		Warnings: []status.Finding{
			{Object: "neutronport lost", What: "Neutron does not report the port of pod blue/web on node n1 ACTIVE", Next: "kubectl describe neutronport lost"},
			{Object: "neutronport wrong", What: "node n1: slot taken", Next: "kubectl describe neutronport wrong"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
