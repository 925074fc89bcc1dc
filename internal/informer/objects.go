package informer

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LastState returns the object that an informer reports; for a deletion that the watch missed, the last known state.
func LastState(reported any) any {
	if missed, is := reported.(cache.DeletedFinalStateUnknown); is {
		return missed.Obj
	}
	return reported
}

// Read reads an object from a cache of informers, and reports whether it exists. What is read belongs to the cache and must not be changed.
func Read(ctx context.Context, store client.Reader, key client.ObjectKey, into client.Object) (exists bool, err error) {
	err = store.Get(ctx, key, into, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %T %s: %w", into, key, err)
	}
	return true, nil
}
