package agent

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// lister is a ListerWatcher that begins with a list, which the API server answers from its cache. client-go would first request a stream of
// events instead (WatchList, KEP-3157), and a list only if the API server cannot stream, for example with etcd 3.4: two requests for each
// kind at every start. Where the stream works, it ends only when the API server's cache has caught up with etcd.
type lister struct {
	toolscache.ListerWatcher
	toolscache.ListerWatcherWithContext
}

// IsWatchListSemanticsUnSupported implements the interface of k8s.io/client-go/util/watchlist.
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

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

// newInformer returns an informer that begins with a list where that is right.
func newInformer(
	from toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	if beginsWithList(example) {
		from = lister{from, toolscache.ToListerWatcherWithContext(from)}
	}
	return toolscache.NewSharedIndexInformer(from, example, resync, indexers)
}
