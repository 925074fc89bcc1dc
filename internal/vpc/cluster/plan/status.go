package plan

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// conditions returns the conditions of an object, to be set.
func (c *compiler) conditions(list *[]metav1.Condition, generation int64) report.Conditions {
	return report.Conditions{List: list, Generation: generation, Now: c.now}
}

// vpcStatus writes the status of a VPC that exists.
func (c *compiler) vpcStatus(v *vpc, result *northbound.Result) {
	object := v.object.DeepCopy()
	s := &object.Status
	s.Standby, s.Router, s.TunnelKey = true, object.Name, v.value.TunnelKey
	s.Subnets, s.VpcPeerings, s.ExtraExternalSubnets = []string{}, append([]string{}, result.Peers...), []string{}
	for _, subnet := range v.subnets {
		s.Subnets = append(s.Subnets, subnet.value.Name)
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

func (c *compiler) vpcConditions(object *kubeovn.Vpc, v *vpc) report.Conditions {
	conditions := c.conditions(&object.Status.Conditions, object.Generation)
	switch {
	case object.Name == kubeovn.DefaultVpc:
		conditions.Ready(kubeovn.ReasonDefaultVpc, v.problems.Error())
	case object.DeletionTimestamp != nil && v.named > 0:
		conditions.Ready(kubeovn.ReasonInUse, "Subnets name the Vpc; delete them")
	case c.refusals[v.value.Owner()] != "":
		conditions.Ready(kubeovn.ReasonRefused, c.refusals[v.value.Owner()])
	case len(v.problems) > 0:
		conditions.Ready(kubeovn.ReasonInvalid, v.problems.Error())
	default:
		conditions.Ready(kubeovn.ReasonReady, "")
	}
	conditions.Supported(v.value.Unsupported)
	return conditions
}

func (c *compiler) keepVPC(v *vpc, object *kubeovn.Vpc) {
	if !reflect.DeepEqual(object.Status, v.object.Status) {
		c.plan.VpcStatus = append(c.plan.VpcStatus, object)
		c.assigns(object, object.Status.TunnelKey != v.object.Status.TunnelKey)
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
	for v := range c.chosenVPCs {
		if !v.exists && v.object.Name == kubeovn.DefaultVpc {
			object := v.object.DeepCopy()
			c.vpcConditions(object, v)
			c.keepVPC(v, object)
		}
	}
	for s := range c.chosen {
		if s.object.DeletionTimestamp != nil && !s.exists {
			continue
		}
		object := s.object.DeepCopy()
		c.subnetStatus(object, s)
		if !reflect.DeepEqual(object.Status, s.object.Status) {
			c.plan.SubnetStatus = append(c.plan.SubnetStatus, object)
			now, before := &object.Status, &s.object.Status
			c.assigns(object, now.TunnelKey != before.TunnelKey || now.LastIP != before.LastIP)
		}
	}
}

func (c *compiler) subnetStatus(object *kubeovn.Subnet, s *subnet) {
	status, conditions := &object.Status, c.conditions(&object.Status.Conditions, object.Generation)
	if s.pool != nil {
		status.V4AvailableIPs, status.V4UsingIPs = s.pool.Available(), s.pool.Using()
		status.V4AvailableIPRange, status.V4UsingIPRange = s.pool.Ranges()
		status.LastIP = s.pool.Last().String()
	}
	if s.value.Definition == "" && s.exists {
		status.TunnelKey = s.value.TunnelKey
	}
	var problems objects.Problems
	if s.reason == "" {
		problems = s.problems
	}
	switch {
	case s.reason != "":
		conditions.Ready(s.reason, s.message)
	case object.DeletionTimestamp != nil:
		conditions.Ready(kubeovn.ReasonInUse, "addresses are in use: "+status.V4UsingIPRange)
	case c.refusals[s.value.Owner()] != "":
		conditions.Ready(kubeovn.ReasonRefused, c.refusals[s.value.Owner()])
	case len(problems) > 0:
		conditions.Ready(kubeovn.ReasonInvalid, problems.Error())
	default:
		conditions.Ready(kubeovn.ReasonReady, "")
	}
	conditions.Supported(s.value.Unsupported)
}
