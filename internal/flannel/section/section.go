// Package section has the section of weft status about a flannel network: its configuration, which nodes have a lease, and why nodes cannot
// reach each other.
package section

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/flannel/cluster"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/status"
)

// Counts are the section's facts for programs.
type Counts struct {
	Network string `json:"network,omitempty"`
	Backend string `json:"backend,omitempty"`
	// Leases are the nodes with a lease, Agents those on which Weft's agent serves pods of the network; on the others flanneld or `weft
	// flanneld` serves them.
	Leases int `json:"leases"`
	Agents int `json:"agents"`
}

// Section returns the flannel network's section. A cluster without flannel's ConfigMap has none.
func Section() status.Section {
	return status.Section{
		Name:    weftv1.NetworkFlannel,
		Kinds:   []status.Kind{{Object: &corev1.ConfigMap{}, Version: corev1.SchemeGroupVersion, Name: "ConfigMap", Namespaced: true}},
		Collect: collect, Judge: judge,
	}
}

func collect(ctx context.Context, from *status.Reader) any {
	for _, namespace := range cluster.Namespaces() {
		var config corev1.ConfigMap
		found := from.Get(ctx, "ConfigMap "+cluster.ConfigMap, client.ObjectKey{Namespace: namespace, Name: cluster.ConfigMap}, &config)
		if _, ok := config.Data[cluster.KeyNet]; found && ok {
			return &config
		}
	}
	return nil
}

// judge compares each Node's lease with the configuration, as every daemon of the network does.
func judge(facts any, all *status.Facts) status.SectionReport {
	config, ok := facts.(*corev1.ConfigMap)
	if !ok {
		return status.SectionReport{}
	}
	object := "configmap/" + config.Name
	look := "kubectl -n " + config.Namespace + " get " + object + " -o yaml"
	conf, err := netconf.Parse([]byte(config.Data[cluster.KeyNet]))
	if err != nil {
		return status.SectionReport{
			Line:     "flannel: " + cluster.KeyNet + " is not valid",
			Problems: []status.Finding{{Object: object, What: cluster.KeyNet + ": " + err.Error(), Next: look}},
		}
	}
	var networks []string
	for _, network := range []string{text(conf.EnableIPv4, conf.Network), text(conf.EnableIPv6, conf.IPv6Network)} {
		if network != "" {
			networks = append(networks, network)
		}
	}
	counts := Counts{Network: strings.Join(networks, ","), Backend: conf.Backend.Type(), Agents: all.Serving(weftv1.NetworkFlannel)}
	var report status.SectionReport
	keys, _ := lease.NewKeys(lease.DefaultPrefix) // a constant that is valid
	for i := range all.Nodes {
		node := &all.Nodes[i]
		what := nodeProblem(&keys, node, &conf)
		if what == "" {
			counts.Leases++
			continue
		}
		report.Problems = append(report.Problems, status.Finding{Object: "node/" + node.Name, What: what, Next: "kubectl get node " + node.Name + " -o yaml"})
	}
	report.Problems = append(report.Problems, hostPortProblems(all.NodeNetworks)...)
	report.Line = fmt.Sprintf("flannel: %s, backend %s; nodes with a lease: %d of %d, with Weft's agent: %d",
		strings.Join(networks, " and "), counts.Backend, counts.Leases, len(all.Nodes), counts.Agents)
	report.Facts = counts
	return report
}

// hostPortProblems returns the nodes on which a pod lacks a host port because another pod has it.
func hostPortProblems(nodes []weftv1.NodeNetwork) []status.Finding {
	var found []status.Finding
	for i := range nodes {
		for _, section := range nodes[i].Status.Networks {
			c := meta.FindStatusCondition(section.Conditions, weftv1.NetworkHostPorts)
			if section.Name == weftv1.NetworkFlannel && c != nil && c.Status == metav1.ConditionFalse {
				found = append(found, status.Finding{
					Object: "node/" + nodes[i].Name, What: "network flannel: " + c.Message + "; delete one of the two pods",
					Next: "kubectl get events -A --field-selector reason=HostPortClosed",
				})
			}
		}
	}
	return found
}

func text(enabled bool, network fmt.Stringer) string {
	if !enabled {
		return ""
	}
	return network.String()
}

// nodeProblem returns what keeps a node out of the network; "": nothing.
func nodeProblem(keys *lease.Keys, node *corev1.Node, conf *netconf.Config) string {
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	if len(cidrs) == 0 {
		return "network flannel: spec.podCIDRs is empty, so that the node has no subnet: run kube-controller-manager with --allocate-node-cidrs"
	}
	backend := conf.Backend.Type()
	if _, alloc := conf.Backend.(netconf.Alloc); alloc {
		backend = "" // in leases, as fabric.View.Lease has it
	}
	found, managed, err := keys.FromNode(lease.Node{Annotations: node.Annotations, PodCIDRs: cidrs}, lease.Families{V4: conf.EnableIPv4, V6: conf.EnableIPv6})
	switch {
	case err != nil:
		return "network flannel: " + err.Error()
	case !managed:
		return "network flannel: the node has no lease: neither an agent nor flanneld has annotated it"
	case found.Backend != backend:
		return fmt.Sprintf("network flannel: its lease is of backend %q, that of the configuration is %s: its pods and those of other nodes do not reach each other",
			found.Backend, conf.Backend.Type())
	}
	return ""
}
