package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/northbound"
)

// counted is a selector that counts its evaluations.
type counted struct{ asked *int }

func (c counted) Matches(labels map[string]string) bool {
	*c.asked++
	return labels["app"] == "db"
}

// Selectors are evaluated once for all pods with the same labels, however often their Subnet is planned, and again for a pod whose labels
// change.
func TestVerdictIsKept(t *testing.T) {
	p, asked := NewPlanner(), 0
	closed := northbound.Closed{Ingress: true}
	p.isolations.policies["ns1"] = map[string]isolation{}
	for i := range 200 {
		p.isolations.policies["ns1"][fmt.Sprint(i)] = isolation{counted{&asked}, closed}
	}
	pod := func(name, app, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns1", Name: name, UID: types.UID(name), ResourceVersion: version, Labels: map[string]string{"app": app},
		}}
	}
	for i, c := range []struct {
		pod, app string
		want     northbound.Closed
		asked    int
	}{
		{"p", "db", closed, 200},
		{"p", "db", closed, 200},
		{"q", "db", closed, 200},
		{"p", "web", northbound.Closed{}, 400},
		{"p", "web", northbound.Closed{}, 400},
		{"q", "db", closed, 400},
		{"q", "web", northbound.Closed{}, 400},
	} {
		now := pod(c.pod, c.app, fmt.Sprint(i))
		p.Set(now)
		if have := p.isolations.of(now, &kubeovn.IP{}); have != c.want || asked != c.asked {
			t.Errorf("step %d: %+v after %d questions, want %+v after %d", i, have, asked, c.want, c.asked)
		}
	}
	p.Remove(pod("p", "web", ""))
	p.Remove(pod("q", "web", ""))
	if len(p.isolations.verdicts)+len(p.isolations.verdictOf) > 0 {
		t.Errorf("verdicts are left: %v %v", p.isolations.verdicts, p.isolations.verdictOf)
	}
}

// A NetworkAttachmentDefinition that no Subnet names causes no computation of gateways.
func TestDefinitionsOfOthers(t *testing.T) {
	p := NewPlanner()
	p.Set(&kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "outside", UID: "uid"}, Spec: kubeovn.SubnetSpec{
		CIDRBlock: "192.168.100.0/24", Gateway: "192.168.100.1", Provider: "outside.kube-system",
	}})
	p.Plan(metav1.Now())
	for name, want := range map[string]bool{"other.ns1": false, "outside.kube-system": true} {
		for what, change := range map[string]func(){
			"set": func() { p.SetDefinition(name, "{}") }, "set again": func() { p.SetDefinition(name, "{}") },
			"removed": func() { p.RemoveDefinition(name) },
		} {
			p.RemoveDefinition(name)
			if p.Plan(metav1.Now()); what != "set" {
				p.SetDefinition(name, "{}")
				p.Plan(metav1.Now())
			}
			if change(); p.gateways.Changed() != (want && what != "set again") {
				t.Errorf("%s, %s: gateways are computed: %v", name, what, p.gateways.Changed())
			}
		}
	}
}
