package networks

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/steps"
)

// servedRetry is the interval of checks whether the API server serves a network's kinds. No watch reports a CRD that is installed later.
const servedRetry = time.Minute

// watch watches the objects that determine whether the network is configured, once the API server serves their kinds. Until then the
// network is not present.
func (n *Networks) watch(ctx context.Context, at Running, k *kind, signal toolscache.ResourceEventHandler) error {
	for _, object := range k.Presence {
		n.awaitServed(ctx, at, k, object)
		k.waits(fmt.Sprintf("the API server has not sent the list of %T yet", object))
		informer, err := k.objects.GetInformer(ctx, object, cache.BlockUntilSynced(true))
		if err != nil {
			return steps.UnlessEnded(ctx, err)
		}
		if _, err := informer.AddEventHandler(signal); err != nil {
			return fmt.Errorf("network %s: watching the API server: %w", k.Name, err)
		}
	}
	k.mu.Lock()
	k.watched = true
	k.mu.Unlock()
	steps.Wake(k.wake)
	return nil
}

// waits records why the network's presence is not known yet.
func (k *kind) waits(why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unknown = why
}

// binds reports whether the network's bindings can be read and apply. They apply even while the network is not present: a pod that is bound
// to it is then refused, and not placed elsewhere.
func (k *kind) binds() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Bind != nil && (k.watched || k.presence.Present)
}

// awaitServed returns once the API server serves the kind of an object, or ctx ends.
func (n *Networks) awaitServed(ctx context.Context, at Running, k *kind, object client.Object) {
	for {
		err := informer.Served(ctx, k.api, object)
		if err == nil || ctx.Err() != nil {
			return
		}
		k.waits(fmt.Sprintf("reading %T: %v", object, err))
		retry := steps.LastRetry
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			retry = servedRetry
			k.absent(fmt.Sprintf("the API server does not serve %T", object))
			steps.Wake(n.changed)
			if !HasRecords(n.options.Store, k.Name) {
				at.Engines.Handovers.Done(k.Name)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

// absent records that the network is not present, and why.
func (k *kind) absent(why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.presence, k.known = network.Presence{Why: why}, true
	if k.network == nil {
		k.why = why
	}
}

// look decides whether the network is present. What depends on presence is brought in step only if it has changed: events of the objects come
// much more often.
func (n *Networks) look(ctx context.Context, k *kind) (network.Presence, error) {
	limited, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	presence, err := k.Present(limited, k.objects)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.unknown = err.Error()
		return k.presence, err
	}
	why := k.why
	if !presence.Present && k.network == nil {
		why = cmp.Or(presence.Why, "it is not configured")
	}
	if !k.known || why != k.why || !reflect.DeepEqual(presence, k.presence) {
		steps.Wake(n.changed)
	}
	k.presence, k.known, k.why = presence, true, why
	return presence, nil
}

// decided returns nil if the network's presence is known, else why it is not.
func (k *kind) decided() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known {
		return nil
	}
	return fmt.Errorf("network %s: %s", k.Name, k.unknown)
}
