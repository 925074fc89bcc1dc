// Package report has what all plans of VPCs write to objects: conditions and the finalizer.
package report

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// maxMessage is the longest message of a condition (metav1.Condition).
const maxMessage = 32768

// Object is any object of the API server.
type Object interface {
	metav1.Object
	runtime.Object
}

// Conditions are the conditions of an object, which Set changes.
type Conditions struct {
	List       *[]metav1.Condition
	Generation int64
	// Now is the time for conditions whose status changes.
	Now metav1.Time
}

// Set sets a condition. The reason decides whether it is True.
func (c Conditions) Set(kind, reason, message string) {
	status := metav1.ConditionFalse
	switch reason {
	case kubeovn.ReasonReady, kubeovn.ReasonSupported, kubeovn.ReasonMatched, kubeovn.ReasonDefaultRoute:
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(c.List, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: Bounded(message, maxMessage), ObservedGeneration: c.Generation,
		LastTransitionTime: c.Now,
	})
}

// Ready sets condition Ready.
func (c Conditions) Ready(reason, message string) { c.Set(kubeovn.ConditionReady, reason, message) }

// Supported sets condition Supported, which names the fields that are not served.
func (c Conditions) Supported(unserved []string) {
	if len(unserved) == 0 {
		c.Set(kubeovn.ConditionSupported, kubeovn.ReasonSupported, "")
		return
	}
	c.Set(kubeovn.ConditionSupported, kubeovn.ReasonUnsupported, "not served, and without effect: "+strings.Join(unserved, ", "))
}

// Remove removes a condition.
func (c Conditions) Remove(kind string) { meta.RemoveStatusCondition(c.List, kind) }

// Held reports whether an object has its finalizer.
func Held(object Object) bool { return slices.Contains(object.GetFinalizers(), kubeovn.Finalizer) }

// Hold adds the finalizer to an object, which the caller has copied.
func Hold(object Object) { object.SetFinalizers(append(object.GetFinalizers(), kubeovn.Finalizer)) }

// Release removes the finalizer from an object, which the caller has copied.
func Release(object Object) {
	object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return f == kubeovn.Finalizer }))
}

// CompareNames compares objects of one kind by their names.
func CompareNames[T metav1.Object](a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) }
