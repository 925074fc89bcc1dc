package cluster

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/metrics"
)

// Reporter sends one event for each problem, not repeated while the problem lasts.
type Reporter struct {
	name       string // of the controller
	apiVersion string // of objects without an APIVersion
	events     events.EventRecorder
	metrics    *metrics.Controller
	reported   map[plan.Problem]bool
}

// NewReporter returns the reporter of a controller. Objects without an APIVersion get this one, except those of the core API.
func NewReporter(name, apiVersion string, recorder events.EventRecorder, counters *metrics.Controller) *Reporter {
	return &Reporter{name: name, apiVersion: apiVersion, events: recorder, metrics: counters, reported: map[plan.Problem]bool{}}
}

// Normal sends an event of type Normal about an object.
func (r *Reporter) Normal(object plan.Object, reason, action, message string) {
	r.events.Eventf(r.reference(object), nil, corev1.EventTypeNormal, reason, action, "%s", Note(message))
}

// Report sends an event for each problem that did not exist at the last call, and returns these problems.
func (r *Reporter) Report(problems []plan.Problem, action string) []plan.Problem {
	var fresh []plan.Problem
	lasting := make(map[plan.Problem]bool, len(problems))
	reasons := map[string]int{}
	for _, p := range problems {
		if lasting[p] {
			continue
		}
		lasting[p] = true
		reasons[p.Reason]++
		if !r.reported[p] {
			fresh = append(fresh, p)
			r.events.Eventf(r.reference(p.Object), nil, corev1.EventTypeWarning, p.Reason, action, "%s", Note(p.Message))
		}
	}
	r.reported = lasting
	r.metrics.Problems(r.name, reasons)
	return fresh
}

// reference returns the reference to an object for an event.
func (r *Reporter) reference(o plan.Object) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID, APIVersion: o.APIVersion}
	switch {
	case ref.APIVersion != "":
	case slices.Contains([]string{"Node", "Namespace", "Pod", "Service", "ConfigMap"}, o.Kind):
		ref.APIVersion = "v1"
	default:
		ref.APIVersion = r.apiVersion
	}
	return ref
}

// Condition is a wanted condition of an object.
type Condition struct {
	// Type, Reason and Message are those of the condition.
	Type, Reason, Message string
	// Holds says that the status is True.
	Holds bool
}

// SetConditions sets conditions in place, and reports whether any has changed.
func SetConditions(conditions *[]metav1.Condition, generation int64, wanted ...Condition) bool {
	changed := false
	for _, c := range wanted {
		status := metav1.ConditionFalse
		if c.Holds {
			status = metav1.ConditionTrue
		}
		changed = meta.SetStatusCondition(conditions, metav1.Condition{
			Type: c.Type, Status: status, Reason: c.Reason, Message: bounded(c.Message), ObservedGeneration: generation,
		}) || changed
	}
	return changed
}

// bounded cuts a message to the maximum length in a condition.
func bounded(message string) string {
	const most = 32768 // metav1.Condition's limit, in bytes
	if len(message) > most {
		return message[:most]
	}
	return message
}

// Note cuts a message to the maximum length in an event.
func Note(message string) string {
	const most = 1024 // an Event's limit for its note, in bytes
	if len(message) <= most {
		return message
	}
	const cut = "..."
	return strings.ToValidUTF8(message[:most-len(cut)], "") + cut
}
