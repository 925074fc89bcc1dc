package node

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// beginsWithOldList reports whether an informer of a kind may begin with a list of an older state than etcd's: of the kinds that every start
// waits for, of which an older state admits nothing. With policies, pods, namespaces and VNIDs, an agent must not start from an older state
// than it had before.
func beginsWithOldList(kind runtime.Object) bool {
	switch kind.(type) {
	case *networkv1.ClusterNetwork, *networkv1.HostSubnet, *corev1.Node, *corev1.Service, *discoveryv1.EndpointSlice:
		return true
	default:
		return false
	}
}
