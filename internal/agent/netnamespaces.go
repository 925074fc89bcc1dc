package agent

import (
	"context"
	"fmt"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// sharedWatch is a watch of one kind that several look at, each for as long as it has to: the watch begins with the first and ends
// with the last.
type sharedWatch struct {
	cache cache.Cache
	kind  client.Object

	mu    sync.Mutex
	users int
}

// add has a handler told of all objects, and of their changes. It does not wait for the first.
func (w *sharedWatch) add(ctx context.Context, handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	informer, err := w.cache.GetInformer(ctx, w.kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", w.kind, err)
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", w.kind, err)
	}
	w.users++
	return registration, nil
}

// remove has a handler told no more.
func (w *sharedWatch) remove(ctx context.Context, registration toolscache.ResourceEventHandlerRegistration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	informer, err := w.cache.GetInformer(ctx, w.kind, cache.BlockUntilSynced(false))
	if err == nil {
		err = informer.RemoveEventHandler(registration)
	}
	if err == nil && w.users == 1 {
		err = w.cache.RemoveInformer(ctx, w.kind)
	}
	if err != nil {
		return fmt.Errorf("ending the watch of %T: %w", w.kind, err)
	}
	w.users--
	return nil
}
