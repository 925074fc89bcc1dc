package kubestore

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// pageSize is the number of Nodes of a request: a Node of a real cluster has some 10 KB, of which a lease needs a few hundred bytes.
const pageSize = 500

// lister lists Nodes in pages, and strips each page before it requests the next one: so the memory does not depend on the size of the cluster's
// Nodes. client-go would request a list from the API server's cache, or a stream of events, and neither has pages.
type lister struct {
	cache.ListerWatcher
	cache.ListerWatcherWithContext
	strip func(any) (any, error)
}

// IsWatchListSemanticsUnSupported implements the interface of k8s.io/client-go/util/watchlist.
func (*lister) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext implements cache.ListerWatcherWithContext.
func (l *lister) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	all := &corev1.NodeList{}
	options.ResourceVersion, options.ResourceVersionMatch, options.Limit = "", "", pageSize
	for {
		listed, err := l.ListerWatcherWithContext.ListWithContext(ctx, options)
		if err != nil {
			return nil, err
		}
		page, ok := listed.(*corev1.NodeList)
		if !ok {
			return nil, fmt.Errorf("list Nodes: the answer is a %T", listed)
		}
		for i := range page.Items {
			stripped, err := l.strip(&page.Items[i])
			if err != nil {
				return nil, err
			}
			if node, ok := stripped.(*corev1.Node); ok {
				all.Items = append(all.Items, *node)
			}
		}
		if all.ListMeta = page.ListMeta; page.Continue == "" {
			return all, nil
		}
		options.Continue = page.Continue
	}
}
