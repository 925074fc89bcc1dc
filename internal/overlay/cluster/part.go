// Package cluster is the overlay's part of the controller. It assigns subnets to nodes (HostSubnets), VNIDs to namespaces (NetNamespaces)
// and egress IPs to nodes. It reports on the ClusterNetwork and on EgressNetworkPolicies what is wrong and what is in effect. Package plan
// decides what to write.
package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	clusterplan "weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// Names of the controllers in logs and metrics.
const (
	nameSubnets   = "subnets"
	nameVNIDs     = "vnids"
	nameFirewalls = "egressfirewalls"
)

// Part returns the overlay's part of the controller.
func Part() cluster.Part {
	read := []string{"get", "list", "watch"}
	write := []string{"get", "list", "watch", "create", "update", "delete"}
	status := []string{"update"}
	const group = networkv1.GroupName
	return cluster.Part{
		Name:    "overlay",
		Schemes: []func(*runtime.Scheme) error{networkv1.AddToScheme},
		Objects: []cluster.Object{
			{Resource: "nodes", Verbs: read, Kind: &corev1.Node{}, Keep: trimNode},
			{Resource: "namespaces", Verbs: read, Kind: &corev1.Namespace{}},
			{Group: group, Resource: "clusternetworks", Verbs: append([]string{"create"}, read...), Kind: &networkv1.ClusterNetwork{}},
			{Group: "networking.k8s.io", Resource: "servicecidrs", Verbs: []string{"get"}},
			{Group: group, Resource: "egressnetworkpolicies", Verbs: read, Kind: &networkv1.EgressNetworkPolicy{}},
			{Group: group, Resource: "hostsubnets", Verbs: write, Kind: &networkv1.HostSubnet{}},
			{Group: group, Resource: "netnamespaces", Verbs: write, Kind: &networkv1.NetNamespace{}},
			{Group: group, Resource: "clusternetworks/status", Verbs: status},
			{Group: group, Resource: "hostsubnets/status", Verbs: status},
			{Group: group, Resource: "netnamespaces/status", Verbs: status},
			{Group: group, Resource: "egressnetworkpolicies/status", Verbs: status},
		},
		Configured: configured,
		SetUp:      setUp,
	}
}

// configured reports whether there is a ClusterNetwork.
func configured(ctx context.Context, live client.Reader) (bool, error) {
	return cluster.Exists(ctx, live, &networkv1.ClusterNetwork{}, networkv1.ClusterNetworkDefault)
}

// setUp adds the overlay's controllers.
func setUp(tools cluster.Tools) error {
	version := networkv1.GroupVersion().String()
	subnets := newSubnets(tools)
	vnids := &vnidReconciler{
		client: tools.Client, live: tools.Live, log: tools.Log, report: tools.Reporter(nameVNIDs, version), metrics: tools.Metrics, random: tools.Random,
	}
	firewalls := &firewallReconciler{client: tools.Client, events: tools.Events, log: tools.Log, metrics: tools.Metrics}
	everywhere := &realisedReconciler{client: tools.Client, metrics: tools.Metrics, now: time.Now, rests: defaultRests()}
	egressIPs := &egressReconciler{client: tools.Client, log: tools.Log, report: tools.Reporter(nameEgressIPs, version), metrics: tools.Metrics}
	for name, set := range map[string]func(cluster.Tools) error{
		nameSubnets: subnets.setUp, nameVNIDs: vnids.setUp, nameFirewalls: firewalls.setUp, nameRealised: everywhere.setUp, nameEgressIPs: egressIPs.setUp,
	} {
		if err := set(tools); err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
	}
	return nil
}

// newSubnets returns the controller of HostSubnets. It creates the default ClusterNetwork only if the tools say that it may.
func newSubnets(tools cluster.Tools) *subnetReconciler {
	s := &subnetReconciler{
		client: tools.Client, live: tools.Live, log: tools.Log, metrics: tools.Metrics,
		report: tools.Reporter(nameSubnets, networkv1.GroupVersion().String()),
	}
	if tools.Defaults {
		s.elsewhere = tools.Elsewhere
	}
	return s
}

// trimNode keeps only the used fields of a cached Node: Nodes are many and large.
func trimNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Node{TypeMeta: node.TypeMeta, Status: corev1.NodeStatus{Addresses: node.Status.Addresses}}
	trimmed.Name, trimmed.UID, trimmed.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	trimmed.CreationTimestamp = node.CreationTimestamp
	trimmed.Spec.PodCIDRs = node.Spec.PodCIDRs // tenants' networks must not overlap them
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady { // without the time of the heartbeat
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	if capacity, there := node.Annotations[annotationEgressConfig]; there {
		trimmed.Annotations = map[string]string{annotationEgressConfig: capacity}
	}
	return trimmed, nil
}

// readNetwork returns the ClusterNetwork, nil if there is none, and its parsed content, nil with an error if it is invalid.
func readNetwork(ctx context.Context, c client.Reader) (*networkv1.ClusterNetwork, *clusternetwork.Config, error) {
	network := &networkv1.ClusterNetwork{}
	if err := c.Get(ctx, client.ObjectKey{Name: networkv1.ClusterNetworkDefault}, network); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil, nil
		}
		return nil, nil, fmt.Errorf("read ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	parsed, err := clusternetwork.Parse(network)
	if err != nil {
		return network, nil, err
	}
	return network, &parsed, nil
}

// readConfig returns the parsed content of the ClusterNetwork. It is nil if there is none, and if it is invalid.
func readConfig(ctx context.Context, c client.Reader) (*clusternetwork.Config, error) {
	network, config, err := readNetwork(ctx, c)
	if network == nil {
		return nil, err
	}
	return config, nil // the reconciler of subnets reports why it is invalid
}

// condition returns a condition that an object should have.
func condition(kind, reason, message string, holds bool) cluster.Condition {
	return cluster.Condition{Type: kind, Reason: reason, Message: message, Holds: holds}
}

// validity returns the Valid condition of an object with these problems.
func validity(problems []plan.Problem) cluster.Condition {
	if len(problems) == 0 {
		return condition(networkv1.ConditionValid, networkv1.ReasonValid, "", true)
	}
	return condition(networkv1.ConditionValid, problems[0].Reason, clusterplan.Summary(problems), false)
}

// settledValidity reports whether an object has no problem and never had one: then it needs no Valid condition.
func settledValidity(conditions []metav1.Condition, problems []plan.Problem) bool {
	return len(problems) == 0 && meta.FindStatusCondition(conditions, networkv1.ConditionValid) == nil
}

// updateValidity updates the Valid condition of an object; conditions are the object's.
func updateValidity(
	ctx context.Context, c client.Client, obj client.Object, conditions *[]metav1.Condition, problems []plan.Problem,
) error {
	if !cluster.SetConditions(conditions, obj.GetGeneration(), validity(problems)) {
		return nil
	}
	if err := c.Status().Update(ctx, obj); err != nil {
		return fmt.Errorf("update the status of %s: %w", obj.GetName(), err)
	}
	return nil
}
