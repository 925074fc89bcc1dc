package section

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/status"
)

func config(net string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-flannel", Name: "kube-flannel-cfg"}, Data: map[string]string{"net-conf.json": net}}
}

func node(name, cidr, backend, data string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	if cidr != "" {
		n.Spec.PodCIDRs = []string{cidr}
	}
	if backend != "" {
		const prefix = "flannel.alpha.coreos.com/"
		n.Annotations = map[string]string{
			prefix + "kube-subnet-manager": "true", prefix + "backend-type": backend, prefix + "backend-data": data, prefix + "public-ip": "192.0.2.1",
		}
	}
	return n
}

// TestJudge: nodes that no other node can reach are problems, each with what to do; the line has the configuration and the counts.
func TestJudge(t *testing.T) {
	vxlan := `{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}`
	all := &status.Facts{
		Nodes: []corev1.Node{
			node("good", "10.244.0.0/24", "vxlan", vxlan), node("new", "10.244.1.0/24", "", ""), node("bare", "", "", ""),
			node("other", "10.244.2.0/24", "host-gw", "null"), node("broken", "10.244.3.0/24", "vxlan", `{"VtepMAC":"x"}`),
		},
		NodeNetworks: []weftv1.NodeNetwork{{Status: weftv1.NodeNetworkStatus{Networks: []weftv1.NodeNetworkSection{
			{Name: weftv1.NetworkFlannel, Conditions: []metav1.Condition{{Type: weftv1.NetworkReady, Status: metav1.ConditionTrue}}},
		}}}},
	}
	report := judge(config(`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`), all)
	if want := "flannel: 10.244.0.0/16, backend vxlan; nodes with a lease: 1 of 5, with Weft's agent: 1"; report.Line != want {
		t.Errorf("line %q, want %q", report.Line, want)
	}
	if diff := cmp.Diff(Counts{Network: "10.244.0.0/16", Backend: "vxlan", Leases: 1, Agents: 1}, report.Facts); diff != "" {
		t.Error(diff)
	}
	words := []string{"node/new: no lease", "node/bare: podCIDRs is empty", `node/other: backend "host-gw"`, "node/broken: backend-data"}
	if len(report.Problems) != len(words) {
		t.Fatalf("problems %v", report.Problems)
	}
	for i, word := range words {
		object, what, _ := strings.Cut(word, ": ")
		if p := report.Problems[i]; p.Object != object || !strings.Contains(p.What, what) || !strings.HasPrefix(p.Next, "kubectl get node ") {
			t.Errorf("problem %v, want %s", fmt.Sprint(p), word)
		}
	}
	lacks := metav1.Condition{Type: weftv1.NetworkHostPorts, Status: metav1.ConditionFalse, Message: "pod shop/b cannot have host port 8080/tcp of this node: pod shop/a has it"}
	conflicts := &status.Facts{NodeNetworks: []weftv1.NodeNetwork{
		{ObjectMeta: metav1.ObjectMeta{Name: "good"}, Status: weftv1.NodeNetworkStatus{Networks: []weftv1.NodeNetworkSection{
			{Name: weftv1.NetworkFlannel, Conditions: []metav1.Condition{{Type: weftv1.NetworkHostPorts, Status: metav1.ConditionTrue}}},
			{Name: weftv1.NetworkNeutron, Conditions: []metav1.Condition{lacks}},
		}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "torn"}, Status: weftv1.NodeNetworkStatus{Networks: []weftv1.NodeNetworkSection{
			{Name: weftv1.NetworkFlannel, Conditions: []metav1.Condition{lacks}},
		}}},
	}}
	found := judge(config(`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`), conflicts).Problems
	if len(found) != 1 || found[0].Object != "node/torn" || !strings.Contains(found[0].What, lacks.Message) {
		t.Errorf("problems of host ports %v", found)
	}
	leased := node("good", "10.244.0.0/24", "vxlan", "null")
	leased.Annotations["flannel.alpha.coreos.com/backend-type"] = ""
	report = judge(config(`{"Network":"10.244.0.0/16","Backend":{"Type":"alloc"}}`), &status.Facts{Nodes: []corev1.Node{leased}})
	if len(report.Problems) != 0 || !strings.Contains(report.Line, "backend alloc; nodes with a lease: 1 of 1") {
		t.Errorf("with backend alloc: %+v", report)
	}
	report = judge(config(`{"Network":"10.244"}`), all)
	if len(report.Problems) != 1 || report.Problems[0].Object != "configmap/kube-flannel-cfg" || !strings.Contains(report.Problems[0].What, "Network") {
		t.Errorf("problems of a broken configuration %v", report.Problems)
	}
}
