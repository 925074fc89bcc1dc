package controller

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/controller/plan"
	"weft.dev/weft/internal/metrics"
)

// reporter tells by events what was given out or freed, and problems, each once while it lasts: a cluster with a lasting
// problem is still quiet.
type reporter struct {
	name    string // of the controller
	events  events.EventRecorder
	metrics *metrics.Controller
	told    map[plan.Problem]bool
}

func newReporter(name string, recorder events.EventRecorder, told *metrics.Controller) *reporter {
	return &reporter{name: name, events: recorder, metrics: told, told: map[plan.Problem]bool{}}
}

// Reasons of events that tell no problem, and what the controller was about when it sent one.
const (
	reasonGiven = "SubnetGiven"
	reasonFreed = "SubnetFreed"

	actionAssignSubnet = "AssignSubnet"
	actionAssignVNID   = "AssignVNID"

	actionJudgeFirewall = "JudgeEgressFirewall"
)

// subnets returns what tells, by an event of each HostSubnet that is written, that its subnet was given or freed. Before
// are the HostSubnets that the plan was made from.
func (r *reporter) subnets(before []networkv1.HostSubnet, result plan.SubnetPlan) func(*networkv1.HostSubnet) {
	had := make(map[string]string, len(before))
	for i := range before {
		had[before[i].Name] = before[i].Subnet
	}
	return func(hs *networkv1.HostSubnet) {
		ref := reference(plan.Object{Kind: plan.KindHostSubnet, Name: hs.Name, UID: hs.UID})
		why, freed := result.Because[hs.Name]
		switch {
		case hs.Subnet == "":
		case freed:
			r.events.Eventf(ref, nil, corev1.EventTypeNormal, reasonFreed, actionAssignSubnet, "%s", noted("subnet "+hs.Subnet+" is free again: "+why))
		case had[hs.Name] == "":
			r.events.Eventf(ref, nil, corev1.EventTypeNormal, reasonGiven, actionAssignSubnet, "subnet %s is given to %s", hs.Subnet, hs.Name)
		}
	}
}

// tell sends an event for each problem that there was not at the last call, and returns those.
func (r *reporter) tell(problems []plan.Problem, action string) []plan.Problem {
	var fresh []plan.Problem
	told := make(map[plan.Problem]bool, len(problems))
	reasons := map[string]int{}
	for _, p := range problems {
		if told[p] {
			continue
		}
		told[p] = true
		reasons[p.Reason]++
		if !r.told[p] {
			fresh = append(fresh, p)
			r.events.Eventf(reference(p.Object), nil, corev1.EventTypeWarning, p.Reason, action, "%s", noted(p.Message))
		}
	}
	r.told = told
	r.metrics.Problems(r.name, reasons)
	return fresh
}

// reference names an object for an event.
func reference(o plan.Object) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{Kind: o.Kind, Name: o.Name, UID: o.UID, APIVersion: networkv1.GroupVersion().String()}
	if o.Kind == plan.KindNode || o.Kind == plan.KindNamespace {
		ref.APIVersion = "v1"
	}
	return ref
}

// condition is one condition that an object should have.
type condition struct {
	name, reason, message string
	holds                 bool
}

// setConditions sets conditions in place, and reports whether that changed any.
func setConditions(conditions *[]metav1.Condition, generation int64, wanted ...condition) bool {
	changed := false
	for _, c := range wanted {
		status := metav1.ConditionFalse
		if c.holds {
			status = metav1.ConditionTrue
		}
		changed = meta.SetStatusCondition(conditions, metav1.Condition{
			Type: c.name, Status: status, Reason: c.reason, Message: bounded(c.message), ObservedGeneration: generation,
		}) || changed
	}
	return changed
}

// validity returns the Valid condition of an object with these problems.
func validity(problems []plan.Problem) condition {
	if len(problems) == 0 {
		return condition{networkv1.ConditionValid, networkv1.ReasonValid, "", true}
	}
	return condition{networkv1.ConditionValid, problems[0].Reason, plan.Summary(problems), false}
}

// settledValidity reports whether an object has no problem and never had one: then it needs no Valid condition.
func settledValidity(conditions []metav1.Condition, problems []plan.Problem) bool {
	return len(problems) == 0 && meta.FindStatusCondition(conditions, networkv1.ConditionValid) == nil
}

// updateValidity brings the Valid condition of an object up to date; conditions are those of the object.
func updateValidity(
	ctx context.Context, c client.Client, obj client.Object, conditions *[]metav1.Condition, problems []plan.Problem,
) error {
	if !setConditions(conditions, obj.GetGeneration(), validity(problems)) {
		return nil
	}
	if err := c.Status().Update(ctx, obj); err != nil {
		return fmt.Errorf("update the status of %s: %w", obj.GetName(), err)
	}
	return nil
}

// bounded cuts a message to what a condition holds.
func bounded(message string) string {
	const most = 32768 // metav1.Condition's limit, in bytes
	if len(message) > most {
		return message[:most]
	}
	return message
}

// noted cuts a message to what an event holds.
func noted(message string) string {
	const most = 1024 // an Event's limit for its note, in bytes
	if len(message) <= most {
		return message
	}
	const cut = "..."
	return strings.ToValidUTF8(message[:most-len(cut)], "") + cut
}

// about returns the problems of one object.
func about(problems []plan.Problem, kind, name string) []plan.Problem {
	var found []plan.Problem
	for _, p := range problems {
		if p.Kind == kind && p.Name == name {
			found = append(found, p)
		}
	}
	return found
}
