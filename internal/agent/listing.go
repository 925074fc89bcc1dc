package agent

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// beginsWithList reports whether an informer of a kind begins with a list: of the kinds that every start waits for, of which an older state
// admits nothing. With policies, pods, namespaces and VNIDs, an agent must not start from an older state than it had before, and there are
// many pods: a stream passes them one by one, while a list has all of them in memory.
func beginsWithList(kind runtime.Object) bool {
	switch kind.(type) {
	case *networkv1.ClusterNetwork, *networkv1.HostSubnet, *corev1.Node, *corev1.Service, *discoveryv1.EndpointSlice:
		return true
	default:
		return false
	}
}
