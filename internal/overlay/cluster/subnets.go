package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	clusterplan "weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// subnetReconciler writes HostSubnets as plan.Subnets decides, and the status of the ClusterNetwork.
type subnetReconciler struct {
	client  client.Client
	live    client.Reader // the API server itself
	report  *cluster.Reporter
	log     *slog.Logger
	metrics *metrics.Controller
	// elsewhere reports whether another network is configured. Nil: no ClusterNetwork is created.
	elsewhere func(context.Context) (bool, error)

	// alloc has the position in each range. It starts again with each leader, as in OpenShift SDN.
	alloc *ipam.NodeSubnets
	// former are the subnets that this leader has seen for hosts, by name.
	former formerSubnets
}

// formerMost bounds how many subnets of removed hosts are kept.
const formerMost = 10000

// formerSubnets are the last subnets of hosts, by name.
type formerSubnets map[string]netip.Prefix

// see notes the subnets of all hosts. Those of removed hosts are kept until another host has them.
func (f formerSubnets) see(all []networkv1.HostSubnet) {
	taken := make(map[netip.Prefix]string, len(all))
	for i := range all {
		if subnet, err := clusternetwork.ParsePrefix(all[i].Subnet); err == nil {
			f[all[i].Name], taken[subnet] = subnet, all[i].Name
		}
	}
	for name, subnet := range f {
		holder, held := taken[subnet]
		if held && holder != name || !held && len(f) > len(taken)+formerMost {
			delete(f, name)
		}
	}
}

func (s *subnetReconciler) setUp(tools cluster.Tools) error {
	c, err := controller.NewTyped(nameSubnets, tools.Manager, cluster.Options(nameSubnets, s.metrics, s))
	if err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	// A kubelet's heartbeat changes nothing here.
	addressed := predicate.TypedFuncs[*corev1.Node]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Node]) bool {
		return nodeValue(e.ObjectOld) != nodeValue(e.ObjectNew)
	}}
	return errors.Join(
		c.Watch(tools.Reading("nodes", source.TypedKind(tools.Manager.GetCache(), &corev1.Node{}, cluster.Enqueue[*corev1.Node](), addressed))),
		c.Watch(tools.Reading("hostsubnets",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.HostSubnet{}, cluster.Enqueue[*networkv1.HostSubnet](), foundElsewhere()))),
		c.Watch(tools.Reading("clusternetworks",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.ClusterNetwork{}, cluster.Enqueue[*networkv1.ClusterNetwork]()))),
	)
}

// Reconcile makes a plan from the cache. If it assigns or deletes something, it is made again from the API server itself before it is
// written.
func (s *subnetReconciler) Reconcile(ctx context.Context, _ cluster.Everything) (reconcile.Result, error) {
	network, config, invalid := readNetwork(ctx, s.client)
	if invalid != nil && network == nil {
		return reconcile.Result{}, invalid
	}
	if config != nil {
		if err := s.setRanges(config.ClusterNetworks); err != nil {
			return reconcile.Result{}, err
		}
	}
	state, err := s.cached(ctx, config)
	if err != nil {
		return reconcile.Result{}, err
	}
	if s.former == nil {
		s.former = formerSubnets{}
	}
	s.former.see(state.HostSubnets)
	state.Former = s.former
	alloc := s.trial()
	result := plan.Subnets(state, alloc)
	if result.Assigns || len(result.Delete) > 0 {
		if state.HostSubnets, err = s.liveHostSubnets(ctx); err != nil {
			return reconcile.Result{}, err
		}
		if state.Nodes, err = s.confirmNodes(ctx, state.Nodes, result.Delete); err != nil {
			return reconcile.Result{}, err
		}
		confirmed := result.Delete
		alloc = s.alloc
		result = plan.Subnets(state, alloc)
		result.Delete = cluster.Within(result.Delete, confirmed)
	}
	s.count(state, alloc)
	if network == nil && s.elsewhere != nil && len(state.HostSubnets) == 0 {
		missing, err := s.createNetwork(ctx, state.Nodes)
		if err != nil {
			return cluster.Settle(err)
		}
		result.Problems = append(result.Problems, missing...)
	}
	for _, p := range s.report.Report(s.problems(network, invalid, result.Problems), actionAssignSubnet) {
		s.log.WarnContext(ctx, "problem", "message", p.Message, "kind", p.Kind, "name", p.Name, "reason", p.Reason)
	}
	if network == nil {
		s.log.InfoContext(ctx, "waiting for the ClusterNetwork", "name", networkv1.ClusterNetworkDefault)
	}
	return cluster.Settle(
		cluster.Write(ctx, s.client, s.log, result.Writes, subnetEvents(s.report, state.HostSubnets, result)),
		s.updateNetworkStatus(ctx, network, invalid, result.Problems),
		s.updateHostSubnetStatus(ctx, state.HostSubnets, result),
	)
}

// count reports how many subnets are assigned, and how many are free.
func (s *subnetReconciler) count(state plan.SubnetState, alloc *ipam.NodeSubnets) {
	if state.Config == nil {
		s.metrics.Subnets(0, 0)
		return
	}
	given := 0
	for i := range state.HostSubnets {
		if subnet, err := netip.ParsePrefix(state.HostSubnets[i].Subnet); err == nil && state.Config.Contains(subnet.Masked()) {
			given++
		}
	}
	s.metrics.Subnets(given, alloc.Free())
}

// problems adds the ClusterNetwork's own problem to those of a plan.
func (s *subnetReconciler) problems(network *networkv1.ClusterNetwork, invalid error, problems []plan.Problem) []plan.Problem {
	if network == nil || invalid == nil {
		return problems
	}
	return append(slices.Clone(problems), plan.Problem{
		Object:  plan.Object{Kind: plan.KindClusterNetwork, Name: network.Name, UID: network.UID},
		Reason:  networkv1.ReasonInvalid,
		Message: invalid.Error(),
	})
}

func (s *subnetReconciler) setRanges(ranges []ipam.Range) error {
	var err error
	if s.alloc == nil {
		s.alloc, err = ipam.NewNodeSubnets(ranges)
	} else {
		err = s.alloc.SetRanges(ranges)
	}
	if err != nil {
		return fmt.Errorf("use the cluster network: %w", err)
	}
	return nil
}

// trial returns an allocator for a plan that is not written.
func (s *subnetReconciler) trial() *ipam.NodeSubnets {
	if s.alloc == nil {
		return nil
	}
	return s.alloc.Clone()
}

func (s *subnetReconciler) cached(ctx context.Context, config *clusternetwork.Config) (plan.SubnetState, error) {
	var nodes corev1.NodeList
	var hostSubnets networkv1.HostSubnetList
	if err := errors.Join(s.client.List(ctx, &nodes), s.client.List(ctx, &hostSubnets)); err != nil {
		return plan.SubnetState{}, fmt.Errorf("read nodes and HostSubnets from the cache: %w", err)
	}
	state := plan.SubnetState{Config: config, HostSubnets: hostSubnets.Items}
	for i := range nodes.Items {
		state.Nodes = append(state.Nodes, nodeValue(&nodes.Items[i]))
	}
	return state, nil
}

func (s *subnetReconciler) liveHostSubnets(ctx context.Context) ([]networkv1.HostSubnet, error) {
	var all []networkv1.HostSubnet
	err := cluster.Pages(ctx, s.live, func() *networkv1.HostSubnetList { return &networkv1.HostSubnetList{} },
		func(l *networkv1.HostSubnetList) { all = append(all, l.Items...) })
	return all, err
}

// confirmNodes reads, from the API server itself, the Nodes of HostSubnets that would be deleted, and corrects the list.
func (s *subnetReconciler) confirmNodes(ctx context.Context, nodes []plan.Node, deletions []*networkv1.HostSubnet) ([]plan.Node, error) {
	for _, hs := range deletions {
		var node corev1.Node
		found, err := cluster.Exists(ctx, s.live, &node, hs.Name)
		if err != nil {
			return nil, err
		}
		nodes = slices.DeleteFunc(nodes, func(n plan.Node) bool { return n.Name == hs.Name })
		if found {
			nodes = append(nodes, nodeValue(&node))
		}
	}
	return nodes, nil
}

// nodeValue returns what a plan needs of a Node. Its address is its first IPv4 InternalIP: in dual stack, the first of all may be IPv6. Without
// one it is the first of all, for the message.
func nodeValue(node *corev1.Node) plan.Node {
	value := plan.Node{Name: node.Name, UID: node.UID, Created: node.CreationTimestamp.Time}
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		if parsed, err := netip.ParseAddr(address.Address); err == nil && parsed.Is4() {
			value.Address = address.Address
			break
		}
		value.Address = cmp.Or(value.Address, address.Address)
	}
	return value
}

// updateNetworkStatus writes on the ClusterNetwork whether it is valid and whether every node has a subnet.
func (s *subnetReconciler) updateNetworkStatus(
	ctx context.Context, network *networkv1.ClusterNetwork, invalid error, problems []plan.Problem,
) error {
	if network == nil {
		return nil
	}
	valid := condition(networkv1.ConditionValid, networkv1.ReasonValid, "", true)
	ready := condition(networkv1.ConditionReady, networkv1.ReasonAllocated, "every node has a subnet", true)
	if invalid != nil {
		valid = condition(networkv1.ConditionValid, networkv1.ReasonInvalid, invalid.Error(), false)
		ready = condition(networkv1.ConditionReady, networkv1.ReasonInvalid, "no subnet is given out until the ClusterNetwork is valid", false)
	} else if reason, summary := worst(problems); reason != "" {
		ready = condition(networkv1.ConditionReady, reason, summary, false)
	}
	network = network.DeepCopy()
	if !cluster.SetConditions(&network.Status.Conditions, network.Generation, valid, ready) {
		return nil
	}
	if err := s.client.Status().Update(ctx, network); err != nil {
		return fmt.Errorf("update the status of ClusterNetwork %s: %w", network.Name, err)
	}
	return nil
}

// worst returns the most important reason among problems of nodes and subnets, and a summary of all.
func worst(problems []plan.Problem) (reason, summary string) {
	for _, reason := range []string{networkv1.ReasonConflict, networkv1.ReasonExhausted, networkv1.ReasonIncomplete} {
		if slices.ContainsFunc(problems, func(p plan.Problem) bool { return p.Reason == reason }) {
			return reason, clusterplan.Summary(problems)
		}
	}
	return "", ""
}

// updateHostSubnetStatus writes on HostSubnets what is wrong with them, except on those that the plan writes: their writes cause the next
// plan.
func (s *subnetReconciler) updateHostSubnetStatus(ctx context.Context, all []networkv1.HostSubnet, result plan.SubnetPlan) error {
	written := map[string]bool{}
	for _, hs := range slices.Concat(result.Delete, result.Update) {
		written[hs.Name] = true
	}
	var errs []error
	for i := range all {
		hs := &all[i]
		problems := clusterplan.About(result.Problems, plan.KindHostSubnet, hs.Name)
		if written[hs.Name] || settledValidity(hs.Status.Conditions, problems) {
			continue
		}
		hs = hs.DeepCopy()
		errs = append(errs, updateValidity(ctx, s.client, hs, &hs.Status.Conditions, problems))
	}
	return errors.Join(errs...)
}
