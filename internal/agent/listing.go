package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
)

// lister is a ListerWatcher that begins with a list, which the API server answers from its cache. client-go would first request a stream of
// events instead (WatchList, KEP-3157), and a list only if the API server cannot stream, for example with etcd 3.4: two requests for each
// kind at every start. Where the stream works, it ends only when the API server's cache has caught up with etcd. Its advantage is less
// memory of the API server, which newer API servers also save with lists (KEP-5116).
type lister struct {
	toolscache.ListerWatcher
	toolscache.ListerWatcherWithContext
}

// IsWatchListSemanticsUnSupported implements the interface of k8s.io/client-go/util/watchlist.
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// newInformer returns an informer that begins with a list.
func newInformer(
	from toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(lister{from, toolscache.ToListerWatcherWithContext(from)}, example, resync, indexers)
}
