package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	clusterplan "weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/liveness"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/overlay/cluster/plan"
	"weft.dev/weft/internal/realised"
)

const (
	nameEgressIPs = "egressips"

	actionAssignEgressIP = "AssignEgressIP"

	// annotationEgressConfig is set on Nodes by OpenShift's cloud controllers: the number of addresses that a node can have.
	annotationEgressConfig = "cloud.network.openshift.io/egress-ipconfig"
)

// egressReconciler writes the egressIPs of HostSubnets with ranges, and reports on all egress IPs, as plan.EgressIPs decides.
type egressReconciler struct {
	client  client.Client
	report  *cluster.Reporter
	log     *slog.Logger
	metrics *metrics.Controller
	// alive detects nodes with ranges that no longer answer.
	alive   *liveness.Watcher
	changed chan event.TypedGenericEvent[*networkv1.HostSubnet]
}

func (r *egressReconciler) setUp(tools cluster.Tools) error {
	c, err := controller.NewTyped(nameEgressIPs, tools.Manager, cluster.Options(nameEgressIPs, r.metrics, r))
	if err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	r.changed = make(chan event.TypedGenericEvent[*networkv1.HostSubnet], 1)
	r.alive = &liveness.Watcher{Proven: true, Changed: func() {
		select {
		case r.changed <- event.TypedGenericEvent[*networkv1.HostSubnet]{Object: &networkv1.HostSubnet{}}:
		default: // a plan is queued already
		}
	}}
	ready := predicate.TypedFuncs[*corev1.Node]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Node]) bool {
		return realised.Ready(e.ObjectOld) != realised.Ready(e.ObjectNew) || e.ObjectOld.Annotations[annotationEgressConfig] != e.ObjectNew.Annotations[annotationEgressConfig]
	}}
	return errors.Join(
		tools.Manager.Add(manager.RunnableFunc(r.alive.Run)),
		c.Watch(source.TypedChannel(r.changed, cluster.Enqueue[*networkv1.HostSubnet]())),
		c.Watch(tools.Reading("nodes", source.TypedKind(tools.Manager.GetCache(), &corev1.Node{}, cluster.Enqueue[*corev1.Node](), ready))),
		c.Watch(tools.Reading("hostsubnets",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.HostSubnet{}, cluster.Enqueue[*networkv1.HostSubnet](), foundElsewhere()))),
		c.Watch(tools.Reading("netnamespaces",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.NetNamespace{}, cluster.Enqueue[*networkv1.NetNamespace]()))),
		c.Watch(tools.Reading("clusternetworks",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.ClusterNetwork{}, cluster.Enqueue[*networkv1.ClusterNetwork]()))),
	)
}

// Reconcile makes a plan from the cache and writes it. If the cache is behind, the API server refuses the write, and the next plan is made
// from the newer cache.
func (r *egressReconciler) Reconcile(ctx context.Context, _ cluster.Everything) (reconcile.Result, error) {
	config, err := readConfig(ctx, r.client)
	if err != nil {
		return reconcile.Result{}, err
	}
	if config == nil {
		return reconcile.Result{}, nil
	}
	if !config.Mode.HasVNIDs() { // egress IPs need VNIDs
		r.report.Report(nil, actionAssignEgressIP)
		r.alive.Watch(nil)
		return reconcile.Result{}, nil
	}
	state, problems, err := r.cached(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !r.ask(&state) {
		return reconcile.Result{}, nil
	}
	result := plan.EgressIPs(state)
	for _, p := range r.report.Report(append(problems, result.Problems...), actionAssignEgressIP) {
		r.log.WarnContext(ctx, "problem", "message", p.Message, "kind", p.Kind, "name", p.Name, "reason", p.Reason)
	}
	settled, err := cluster.Settle(cluster.Write(ctx, r.client, r.log, result.Writes, nil), r.updateStatus(ctx, state.NetNamespaces, &result))
	if err == nil && result.Again && settled.RequeueAfter == 0 {
		settled.RequeueAfter = cluster.Again // the write that took addresses off causes an event, usually earlier
	}
	return settled, err
}

// cached reads the state from the cache.
func (r *egressReconciler) cached(ctx context.Context) (plan.EgressIPState, []plan.Problem, error) {
	var nodes corev1.NodeList
	var hostSubnets networkv1.HostSubnetList
	var netNamespaces networkv1.NetNamespaceList
	if err := errors.Join(r.client.List(ctx, &nodes), r.client.List(ctx, &hostSubnets), r.client.List(ctx, &netNamespaces)); err != nil {
		return plan.EgressIPState{}, nil, fmt.Errorf("read Nodes, HostSubnets and NetNamespaces from the cache: %w", err)
	}
	state := plan.EgressIPState{
		HostSubnets: hostSubnets.Items, NetNamespaces: netNamespaces.Items, Offline: map[string]bool{}, Capacity: map[string]int{},
	}
	var problems []plan.Problem
	for i := range nodes.Items {
		node := &nodes.Items[i]
		state.Offline[node.Name] = !realised.Ready(node)
		capacity, limited, err := egressCapacity(node)
		if err != nil {
			problems = append(problems, plan.Problem{
				Object: plan.Object{Kind: plan.KindNode, Name: node.Name, UID: node.UID}, Reason: networkv1.ReasonInvalid,
				Message: fmt.Sprintf("annotation %s: %v: the node counts as one without a limit", annotationEgressConfig, err),
			})
		}
		if limited {
			state.Capacity[node.Name] = capacity
		}
	}
	return state, problems, nil
}

// ask probes the nodes with ranges, and adds to the state those that do not answer, or have not yet: the previous leader's knowledge is
// lost. If none answers, this controller is probably cut off, and only the API server's state counts. It returns false until every node has
// a verdict; r.changed reports the next change.
func (r *egressReconciler) ask(state *plan.EgressIPState) (known bool) {
	hosts := map[string]netip.Addr{}
	for i := range state.HostSubnets {
		hs := &state.HostSubnets[i]
		if addr, err := netip.ParseAddr(hs.HostIP); err == nil && len(hs.EgressCIDRs) > 0 {
			hosts[hs.Name] = addr
		}
	}
	r.alive.Watch(slices.Collect(maps.Values(hosts)))
	unproven, gone, answers := map[string]bool{}, map[string]bool{}, false
	for name, addr := range hosts {
		answered, known := r.alive.Answered(addr)
		if !known {
			return false
		}
		unproven[name], gone[name] = !answered, r.alive.Gone(addr)
		answers = answers || answered && !gone[name]
	}
	if !answers {
		return true
	}
	state.Unproven = unproven
	for name := range hosts {
		state.Offline[name] = state.Offline[name] || gone[name]
	}
	return true
}

// egressCapacity returns how many egress IPs the cloud permits a node.
func egressCapacity(node *corev1.Node) (capacity int, limited bool, err error) {
	text, there := node.Annotations[annotationEgressConfig]
	if !there {
		return 0, false, nil
	}
	var config []struct {
		Capacity struct {
			IP   *int `json:"ip"`
			IPv4 *int `json:"ipv4"`
		} `json:"capacity"`
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return 0, false, fmt.Errorf("not a JSON list of interfaces: %w", err)
	}
	if len(config) == 0 {
		return 0, false, errors.New("it has no interface")
	}
	for _, n := range []*int{config[0].Capacity.IP, config[0].Capacity.IPv4} {
		if n != nil {
			return max(0, *n), true, nil
		}
	}
	return 0, false, nil
}

// updateStatus writes on NetNamespaces which of their egress IPs are in use, and why others are not.
func (r *egressReconciler) updateStatus(ctx context.Context, all []networkv1.NetNamespace, result *plan.EgressIPPlan) error {
	var errs []error
	for i := range all {
		nn := &all[i]
		used, wants := result.InUse[nn.Name]
		if has := meta.FindStatusCondition(nn.Status.Conditions, networkv1.ConditionEgressIPsInUse) != nil; !wants && !has {
			continue
		}
		nn = nn.DeepCopy()
		var changed bool
		if wants {
			changed = cluster.SetConditions(&nn.Status.Conditions, nn.Generation, egressCondition(used, clusterplan.About(result.Problems, plan.KindNetNamespace, nn.Name)))
		} else {
			changed = meta.RemoveStatusCondition(&nn.Status.Conditions, networkv1.ConditionEgressIPsInUse)
		}
		if !changed {
			continue
		}
		if err := r.client.Status().Update(ctx, nn); err != nil {
			errs = append(errs, fmt.Errorf("update the status of NetNamespace %s: %w", nn.Name, err))
		}
	}
	return errors.Join(errs...)
}

// egressCondition returns the condition of a NetNamespace that wants egress IPs.
func egressCondition(used string, problems []plan.Problem) cluster.Condition {
	c := condition(networkv1.ConditionEgressIPsInUse, networkv1.ReasonInUse, used, true)
	if used == "" {
		c = condition(networkv1.ConditionEgressIPsInUse, networkv1.ReasonEgressIPUnassigned, "nothing leaves the cluster from this namespace", false)
	}
	if len(problems) > 0 {
		c.Holds, c.Reason = false, problems[0].Reason
		c.Message = clusterplan.Summary(problems)
		if used != "" {
			c.Message = "in use: " + used + "; " + c.Message
		}
	}
	return c
}
