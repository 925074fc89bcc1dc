package plan

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// maxMessage is the longest message of a condition (metav1.Condition).
const maxMessage = 32768

func compareNames[T metav1.Object](a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) }

// condition sets a condition of an object.
func (c *compiler) condition(conditions *[]metav1.Condition, generation int64, kind, reason, message string) {
	status := metav1.ConditionFalse
	switch reason {
	case kubeovn.ReasonReady, kubeovn.ReasonSupported, kubeovn.ReasonMatched, kubeovn.ReasonDefaultRoute:
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: bounded(message, maxMessage), ObservedGeneration: generation,
		LastTransitionTime: c.now,
	})
}

func (c *compiler) supported(conditions *[]metav1.Condition, generation int64, fields []string) {
	if len(fields) == 0 {
		c.condition(conditions, generation, kubeovn.ConditionSupported, kubeovn.ReasonSupported, "")
		return
	}
	c.condition(conditions, generation, kubeovn.ConditionSupported, kubeovn.ReasonUnsupported,
		"not served, and without effect: "+strings.Join(fields, ", "))
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
	c.vpcConditions(object, v)
	if len(result.Shadowed) > 0 {
		c.condition(&s.Conditions, object.Generation, kubeovn.ConditionShadowed, kubeovn.ReasonDefaultRoute,
			"a route to 0.0.0.0/0 of the same table takes all packets, so these routes by source have no effect: "+strings.Join(result.Shadowed, ", "))
	} else {
		meta.RemoveStatusCondition(&s.Conditions, kubeovn.ConditionShadowed)
	}
	c.keepVPC(v, object)
}

func (c *compiler) vpcConditions(object *kubeovn.Vpc, v *vpc) {
	conditions := &object.Status.Conditions
	switch {
	case object.Name == kubeovn.DefaultVpc:
		c.condition(conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonDefaultVpc, v.problems.Error())
	case object.DeletionTimestamp != nil && v.named > 0:
		c.condition(conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonInUse, "Subnets name the Vpc; delete them")
	case c.refusals[v.value.Owner()] != "":
		c.condition(conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonRefused, c.refusals[v.value.Owner()])
	case len(v.problems) > 0:
		c.condition(conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonInvalid, v.problems.Error())
	default:
		c.condition(conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonReady, "")
	}
	c.supported(conditions, object.Generation, v.value.Unsupported)
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
	status := &object.Status
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
		c.condition(&status.Conditions, object.Generation, kubeovn.ConditionReady, s.reason, s.message)
	case object.DeletionTimestamp != nil:
		c.condition(&status.Conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonInUse, "addresses are in use: "+status.V4UsingIPRange)
	case c.refusals[s.value.Owner()] != "":
		c.condition(&status.Conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonRefused, c.refusals[s.value.Owner()])
	case len(problems) > 0:
		c.condition(&status.Conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonInvalid, problems.Error())
	default:
		c.condition(&status.Conditions, object.Generation, kubeovn.ConditionReady, kubeovn.ReasonReady, "")
	}
	c.supported(&status.Conditions, object.Generation, s.value.Unsupported)
}
