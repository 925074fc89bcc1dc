package plan

import (
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

// conditions returns the conditions of an object, to be set.
func (c *compiler) conditions(list *[]metav1.Condition, generation int64) report.Conditions {
	return report.Conditions{List: list, Generation: generation, Now: c.now}
}

// vpcStatus writes the status of a VPC that exists.
func (c *compiler) vpcStatus(v *topology.VPC, result *northbound.Result) {
	object := v.Object.DeepCopy()
	s := &object.Status
	s.Standby, s.Router, s.TunnelKey = true, object.Name, v.Value.TunnelKey
	s.Subnets, s.VpcPeerings, s.ExtraExternalSubnets = []string{}, append([]string{}, result.Peers...), []string{}
	for _, subnet := range v.Subnets {
		s.Subnets = append(s.Subnets, subnet.Value.Name)
	}
	slices.Sort(s.Subnets)
	conditions := c.vpcConditions(object, v)
	if len(result.Shadowed) > 0 {
		conditions.Set(kubeovn.ConditionShadowed, kubeovn.ReasonDefaultRoute,
			"a route to 0.0.0.0/0 of the same table takes all packets, so these routes by source have no effect: "+strings.Join(result.Shadowed, ", "))
	} else {
		conditions.Remove(kubeovn.ConditionShadowed)
	}
	c.keepVPC(v, object)
}

func (c *compiler) vpcConditions(object *kubeovn.Vpc, v *topology.VPC) report.Conditions {
	conditions := c.conditions(&object.Status.Conditions, object.Generation)
	switch {
	case object.Name == kubeovn.DefaultVpc:
		conditions.Ready(kubeovn.ReasonDefaultVpc, v.Problems.Error())
	case object.DeletionTimestamp != nil && v.Named > 0:
		conditions.Ready(kubeovn.ReasonInUse, "Subnets name the Vpc; delete them")
	case c.refusals[v.Value.Owner()] != "":
		conditions.Ready(kubeovn.ReasonRefused, c.refusals[v.Value.Owner()])
	case len(v.Problems) > 0:
		conditions.Ready(kubeovn.ReasonInvalid, v.Problems.Error())
	default:
		conditions.Ready(kubeovn.ReasonReady, "")
	}
	conditions.Supported(v.Value.Unsupported)
	return conditions
}

func (c *compiler) keepVPC(v *topology.VPC, object *kubeovn.Vpc) {
	if !reflect.DeepEqual(object.Status, v.Object.Status) {
		c.plan.VpcStatus = append(c.plan.VpcStatus, object)
		c.assigns(object, object.Status.TunnelKey != v.Object.Status.TunnelKey)
	}
}

// assigns records whether the new status of an object assigns something.
func (c *compiler) assigns(object Object, does bool) {
	if does {
		c.plan.assigning[object] = struct{}{}
	}
}

// statuses writes the status of all other objects.
func (c *compiler) statuses() {
	for v := range c.chosen.VPCs {
		if !v.Exists && v.Object.Name == kubeovn.DefaultVpc {
			object := v.Object.DeepCopy()
			c.vpcConditions(object, v)
			c.keepVPC(v, object)
		}
	}
	for s := range c.chosen.Subnets {
		if s.Object.DeletionTimestamp != nil && !s.Exists {
			continue
		}
		object := s.Object.DeepCopy()
		c.subnetStatus(object, s)
		if !reflect.DeepEqual(object.Status, s.Object.Status) {
			c.plan.SubnetStatus = append(c.plan.SubnetStatus, object)
			now, before := &object.Status, &s.Object.Status
			c.assigns(object, now.TunnelKey != before.TunnelKey || now.LastIP != before.LastIP)
		}
	}
}

func (c *compiler) subnetStatus(object *kubeovn.Subnet, s *topology.Subnet) {
	status, conditions := &object.Status, c.conditions(&object.Status.Conditions, object.Generation)
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
		problems = s.Problems
	}
	switch {
	case s.Reason != "":
		conditions.Ready(s.Reason, s.Message)
	case object.DeletionTimestamp != nil:
		conditions.Ready(kubeovn.ReasonInUse, "addresses are in use: "+status.V4UsingIPRange)
	case c.refusals[s.Value.Owner()] != "":
		conditions.Ready(kubeovn.ReasonRefused, c.refusals[s.Value.Owner()])
	case len(problems) > 0:
		conditions.Ready(kubeovn.ReasonInvalid, problems.Error())
	default:
		conditions.Ready(kubeovn.ReasonReady, "")
	}
	conditions.Supported(s.Value.Unsupported)
}
