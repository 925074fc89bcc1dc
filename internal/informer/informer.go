// Package informer reads objects from the API server: informers that begin with a list, and whether a kind is served.
package informer

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// listTimeout bounds one request of a list of the latest state: a request that stays without an answer is repeated.
const listTimeout = 30 * time.Second

// lister is a ListerWatcher that begins with a list, which the API server answers from its cache. client-go would first request a stream of
// events instead (WatchList, KEP-3157), and a list only if the API server cannot stream, for example with etcd 3.4: two requests for each
// kind at every start. Where the stream works, it ends only when the API server's cache has caught up with etcd. A stream has no time limit
// but the watch's, 5 to 10 minutes, for which an informer without an answer would wait.
type lister struct {
	cache.ListerWatcher
	cache.ListerWatcherWithContext
}

// IsWatchListSemanticsUnSupported implements the interface of k8s.io/client-go/util/watchlist.
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// latest is a lister whose first list is of etcd's state. The API server's cache can be older than what a program has read before.
type latest struct{ lister }

// ListWithContext implements cache.ListerWatcherWithContext.
func (l latest) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.ResourceVersion == "0" { // any state
		options.ResourceVersion = "" // the latest
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return l.lister.ListWithContext(ctx, options)
}

// Constructor returns an informer. The informers of one constructor learn from each other that the API server answers again (outage.go).
type Constructor = func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer

// New returns a constructor of informers that begin with a list: of any state that the API server has for the kinds that old reports, and of
// the latest state for others.
func New(old func(runtime.Object) bool) Constructor {
	shared := newOutage()
	return func(from cache.ListerWatcher, example runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		begins := lister{from, cache.ToListerWatcherWithContext(from)}
		var requests cache.ListerWatcherWithContext = begins
		if !old(example) {
			requests = latest{begins}
		}
		return cache.NewSharedIndexInformer(&patient{lister: begins, requests: requests, shared: shared}, example, resync, indexers)
	}
}

// Latest returns a constructor of informers that begin with a list of the latest state.
func Latest() Constructor { return New(func(runtime.Object) bool { return false }) }

// servedTimeout bounds a request of Served: one that stays without an answer is repeated by the caller.
const servedTimeout = 30 * time.Second

// Served returns nil if the API server serves the kind of an object. If it does not, meta.IsNoMatchError or apierrors.IsNotFound is true for
// the error.
func Served(ctx context.Context, api client.Client, object client.Object) error {
	gvk, err := apiutil.GVKForObject(object, api.Scheme())
	if err != nil {
		return err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	ctx, cancel := context.WithTimeout(ctx, servedTimeout)
	defer cancel()
	err = api.List(ctx, list, client.Limit(1))
	if apierrors.IsForbidden(err) { // the program may read only some of the objects: those that it watches
		return nil
	}
	return err
}
