package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// reporter plans the status of Vpcs and Subnets.
type reporter struct {
	plan     *Plan
	refusals map[string]string // why rows of an owner were refused
	now      metav1.Time
}

// conditions returns the conditions of an object, to be set.
func (r *reporter) conditions(list *[]metav1.Condition, generation int64) report.Conditions {
	return report.Conditions{List: list, Generation: generation, Now: r.now}
}

// router plans the status of a VPC with rows, which the result has.
func (r *reporter) router(v *topology.VPC, result *northbound.Result) {
	object := v.Object.DeepCopy()
	s := &object.Status
	s.Standby, s.Router, s.TunnelKey = true, object.Name, v.Value.TunnelKey
	s.Subnets, s.VpcPeerings, s.ExtraExternalSubnets = []string{}, append([]string{}, result.Peers...), []string{}
	for _, subnet := range v.Subnets {
		s.Subnets = append(s.Subnets, subnet.Value.Name)
	}
	slices.Sort(s.Subnets)
	conditions := r.vpcConditions(object, v)
	if len(result.Shadowed) > 0 {
		conditions.Set(kubeovn.ConditionShadowed, kubeovn.ReasonDefaultRoute,
			"a route to 0.0.0.0/0 of the same table takes all packets, so these routes by source have no effect: "+strings.Join(result.Shadowed, ", "))
	} else {
		conditions.Remove(kubeovn.ConditionShadowed)
	}
	r.keepVPC(v, object)
}

func (r *reporter) vpcConditions(object *kubeovn.Vpc, v *topology.VPC) report.Conditions {
	conditions := r.conditions(&object.Status.Conditions, object.Generation)
	switch {
	case object.Name == kubeovn.DefaultVpc:
		conditions.Ready(kubeovn.ReasonDefaultVpc, v.Problems.Error())
	case object.DeletionTimestamp != nil && v.Named > 0:
		conditions.Ready(kubeovn.ReasonInUse, "Subnets name the Vpc; delete them")
	case r.refusals[v.Value.Owner()] != "":
		conditions.Ready(kubeovn.ReasonRefused, r.refusals[v.Value.Owner()])
	case len(v.Problems) > 0:
		conditions.Ready(kubeovn.ReasonInvalid, v.Problems.Error())
	default:
		conditions.Ready(kubeovn.ReasonReady, "")
	}
	conditions.Supported(v.Value.Unsupported)
	return conditions
}

func (r *reporter) keepVPC(v *topology.VPC, object *kubeovn.Vpc) {
	if reflect.DeepEqual(object.Status, v.Object.Status) {
		return
	}
	r.plan.VpcStatus = append(r.plan.VpcStatus, object)
	if object.Status.TunnelKey != v.Object.Status.TunnelKey {
		r.plan.assigning[object] = struct{}{}
	}
}

// defaultVPC plans the status of the Vpc of Kube-OVN's pod network, which is not served.
func (r *reporter) defaultVPC(v *topology.VPC) {
	object := v.Object.DeepCopy()
	r.vpcConditions(object, v)
	r.keepVPC(v, object)
}

// subnet plans the status of a Subnet.
func (r *reporter) subnet(s *topology.Subnet) {
	object := s.Object.DeepCopy()
	r.subnetStatus(object, s)
	if reflect.DeepEqual(object.Status, s.Object.Status) {
		return
	}
	r.plan.SubnetStatus = append(r.plan.SubnetStatus, object)
	if now, before := &object.Status, &s.Object.Status; now.TunnelKey != before.TunnelKey || now.LastIP != before.LastIP {
		r.plan.assigning[object] = struct{}{}
	}
}

func (r *reporter) subnetStatus(object *kubeovn.Subnet, s *topology.Subnet) {
	status, conditions := &object.Status, r.conditions(&object.Status.Conditions, object.Generation)
	if s.Pool != nil {
		status.V4AvailableIPs, status.V4UsingIPs = s.Pool.Available(), s.Pool.Using()
		status.V4AvailableIPRange, status.V4UsingIPRange = s.Pool.Ranges()
		status.LastIP = s.Pool.Last().String()
	}
	if s.Value.Definition == "" && s.Exists {
		status.TunnelKey = s.Value.TunnelKey
	}
	var problems objects.Problems
	if s.Reason == "" {
		problems = slices.Concat(s.Problems, s.Outdated)
	}
	switch {
	case object.DeletionTimestamp != nil && s.Pool == nil:
		conditions.Ready(kubeovn.ReasonInUse, fmt.Sprintf("pods that have addresses of the Subnet: %d; delete them. The Subnet cannot be used: %s", s.Holders, s.Message))
	case s.Reason != "":
		conditions.Ready(s.Reason, s.Message)
	case object.DeletionTimestamp != nil:
		conditions.Ready(kubeovn.ReasonInUse, "addresses are in use: "+status.V4UsingIPRange)
	case r.refusals[s.Value.Owner()] != "":
		conditions.Ready(kubeovn.ReasonRefused, r.refusals[s.Value.Owner()])
	case len(problems) > 0:
		conditions.Ready(kubeovn.ReasonInvalid, problems.Error())
	default:
		conditions.Ready(kubeovn.ReasonReady, "")
	}
	conditions.Supported(s.Value.Unsupported)
}
