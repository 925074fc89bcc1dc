// Package section has the section of weft status about OpenStack's networks: how many networks and ports there are, and what waits for
// OpenStack.
package section

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/status"
)

// collected are the objects that the section judges. Tenants are not read: they hold passwords.
type collected struct {
	networks []stackubev1.Network
	ports    []weftv1.NeutronPort
}

// Counts are the section's facts for programs.
type Counts struct {
	Networks int `json:"networks"`
	// Ports are those of nodes, InUse those with a pod, Free those that a pod can have now, and Waiting those that OpenStack has not reported
	// as ACTIVE yet.
	Ports   int `json:"ports"`
	InUse   int `json:"inUse"`
	Free    int `json:"free"`
	Waiting int `json:"waiting"`
	// Serving are the nodes that can attach pods to ports.
	Serving int `json:"serving"`
}

// Section returns the section of OpenStack's networks. A cluster without a Network of stackube has none.
func Section() status.Section {
	return status.Section{
		Name: weftv1.NetworkNeutron, Schemes: []func(*runtime.Scheme) error{stackubev1.AddToScheme, weftv1.AddToScheme},
		Kinds: []status.Kind{
			{Object: &stackubev1.Network{}, Version: stackubev1.GroupVersion(), Name: "Network", Namespaced: true},
			{Object: &weftv1.NeutronPort{}, Version: weftv1.GroupVersion(), Name: "NeutronPort"},
		},
		Collect: collect, Judge: judge,
	}
}

func collect(ctx context.Context, from *status.Reader) any {
	var networks stackubev1.NetworkList
	if !from.List(ctx, "Networks of "+stackubev1.GroupName, &networks) || len(networks.Items) == 0 {
		return nil
	}
	var ports weftv1.NeutronPortList
	from.List(ctx, "NeutronPorts", &ports)
	return &collected{networks.Items, ports.Items}
}

func judge(facts any, all *status.Facts) status.SectionReport {
	c, ok := facts.(*collected)
	if !ok {
		return status.SectionReport{}
	}
	var report status.SectionReport
	counts := Counts{Networks: len(c.networks), Ports: len(c.ports), Serving: all.Serving(weftv1.NetworkNeutron)}
	for i := range c.networks {
		network(&report, &c.networks[i])
	}
	for i := range c.ports {
		p := &c.ports[i]
		switch {
		case p.Status.Pod != nil:
			counts.InUse++
		case p.Status.Plugged && p.Spec.Active && p.Status.Message == "":
			counts.Free++
		default:
			counts.Waiting++
		}
		port(&report, p)
	}
	for i := range all.NodeNetworks {
		unserved(&report, &all.NodeNetworks[i])
	}
	report.Facts = counts
	report.Line = fmt.Sprintf("OpenStack: %d networks, %d ports (%d in use, %d free, %d waiting for OpenStack); nodes that serve: %d of %d",
		counts.Networks, counts.Ports, counts.InUse, counts.Free, counts.Waiting, counts.Serving, len(all.Nodes))
	return report
}

// network adds a Network whose state in OpenStack is not the desired one.
func network(report *status.SectionReport, n *stackubev1.Network) {
	ready := meta.FindStatusCondition(n.Status.Conditions, stackubev1.ConditionReady)
	if ready != nil && ready.Status == metav1.ConditionTrue {
		return
	}
	what := "the controller has not reported it yet; does it run with neutron.enabled?"
	if ready != nil {
		what = fmt.Sprintf("%s (%s): %s", n.Status.State, ready.Reason, ready.Message)
	}
	report.Problems = append(report.Problems, status.Finding{
		Object: "network " + n.Namespace + "/" + n.Name, What: what,
		Next: fmt.Sprintf("kubectl -n %s describe networks.%s %s", n.Namespace, stackubev1.GroupName, n.Name),
	})
}

// port adds a port that its node cannot plug, and one with a pod that OpenStack does not serve.
func port(report *status.SectionReport, p *weftv1.NeutronPort) {
	finding := status.Finding{Object: "neutronport " + p.Name, Next: "kubectl describe neutronport " + p.Name}
	switch {
	case p.Status.Message != "":
		finding.What = fmt.Sprintf("node %s: %s", p.Spec.Node, p.Status.Message)
	case p.Status.Pod != nil && !p.Spec.Active:
		finding.What = fmt.Sprintf("Neutron does not report the port of pod %s/%s on node %s ACTIVE", p.Status.Pod.Namespace, p.Status.Pod.Name, p.Spec.Node)
	default:
		return
	}
	report.Warnings = append(report.Warnings, finding)
}

// unserved adds why a node cannot attach pods.
func unserved(report *status.SectionReport, n *weftv1.NodeNetwork) {
	at := slices.IndexFunc(n.Status.Networks, func(s weftv1.NodeNetworkSection) bool { return s.Name == weftv1.NetworkNeutron })
	if at < 0 {
		return
	}
	ready := meta.FindStatusCondition(n.Status.Networks[at].Conditions, weftv1.NetworkReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return
	}
	report.Problems = append(report.Problems, status.Finding{
		Object: "node " + n.Name, What: "pods cannot be attached to OpenStack's ports: " + ready.Message, Next: "kubectl get nodenetwork " + n.Name + " -o yaml",
	})
}
