package cluster

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// foundElsewhere ignores updates of what agents report about their nodes, except egress IPs that they cannot hold: nothing else changes a
// plan. The controller's own condition counts, so that it is restored.
func foundElsewhere() predicate.TypedPredicate[*networkv1.HostSubnet] {
	return predicate.TypedFuncs[*networkv1.HostSubnet]{UpdateFunc: func(e event.TypedUpdateEvent[*networkv1.HostSubnet]) bool {
		if e.ObjectOld.ResourceVersion == e.ObjectNew.ResourceVersion {
			return true // a resync: everything is checked again
		}
		return !reflect.DeepEqual(withoutFindings(e.ObjectOld), withoutFindings(e.ObjectNew))
	}}
}

// withoutFindings returns a HostSubnet without what its agent wrote and without what every write changes.
func withoutFindings(hs *networkv1.HostSubnet) *networkv1.HostSubnet {
	mine := hs.DeepCopy()
	mine.ResourceVersion, mine.ManagedFields = "", nil
	mine.Status = networkv1.HostSubnetStatus{RefusedEgressIPs: hs.Status.RefusedEgressIPs}
	if valid := meta.FindStatusCondition(hs.Status.Conditions, networkv1.ConditionValid); valid != nil {
		mine.Status.Conditions = append(mine.Status.Conditions, *valid)
	}
	return mine
}
