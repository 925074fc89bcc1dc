package status

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
)

// definitionsVersion is the API version of CustomResourceDefinitions.
func definitionsVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}
}

// watch signals changed whenever the report may have changed, until ctx ends. Kinds that are not defined yet are watched as soon as they
// are.
func (c *Cluster) watch(ctx context.Context, changed chan struct{}) error {
	defined := make(chan struct{}, 1)
	definitions := &metav1.PartialObjectMetadata{}
	definitions.SetGroupVersionKind(definitionsVersion().WithKind("CustomResourceDefinition"))
	ended := make(chan error, 1)
	go func() { ended <- c.watchKinds(ctx, c.ownDefinition, []chan struct{}{defined, changed}, definitions) }()
	for {
		watching, again := context.WithCancel(ctx)
		objects := make(chan error, 1)
		go func() {
			objects <- c.watchKinds(watching, matters, []chan struct{}{changed}, c.kinds()...)
		}()
		select {
		case <-defined:
			again()
			if err := <-objects; err != nil {
				return err
			}
		case err := <-objects:
			again()
			if ctx.Err() != nil {
				return <-ended
			}
			return err
		}
	}
}

// kinds are the kinds of objects from which a report is made.
func (c *Cluster) kinds() []client.Object {
	kinds := []client.Object{
		&corev1.Node{}, &corev1.Pod{}, &appsv1.DaemonSet{}, &appsv1.Deployment{}, &coordinationv1.Lease{},
		&networkv1.ClusterNetwork{}, &networkv1.HostSubnet{}, &weftv1.NodeNetwork{},
	}
	for _, section := range c.sections {
		for _, kind := range section.Kinds {
			kinds = append(kinds, kind.Object)
		}
	}
	return kinds
}

// watchKinds watches kinds of objects until ctx ends, and signals the changes for which matters returns true.
func (c *Cluster) watchKinds(ctx context.Context, matters func(old, now any) bool, signals []chan struct{}, kinds ...client.Object) error {
	objects, err := cache.New(c.config, cache.Options{
		Scheme: c.scheme, Mapper: c.mapper, DefaultTransform: cache.TransformStripManagedFields(),
		DefaultNamespaces: map[string]cache.Config{c.namespace: {}},
		// A kind that cannot be watched cannot be read either, and the report has that as a problem.
		DefaultWatchErrorHandler: func(context.Context, *toolscache.Reflector, error) {},
	})
	if err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	signal := func(old, now any) {
		if !matters(old, now) {
			return
		}
		for _, s := range signals {
			select {
			case s <- struct{}{}:
			default: // a signal is pending, which covers this change
			}
		}
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(now any) { signal(nil, now) }, UpdateFunc: signal, DeleteFunc: func(old any) { signal(old, nil) },
	}
	for _, kind := range kinds {
		informer, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
	}
	return objects.Start(ctx)
}

// matters ignores renewals of leases. An election changes the holder, and a holder that returns leaves a gap between renewals.
func matters(old, now any) bool {
	before, was := old.(*coordinationv1.Lease)
	after, is := now.(*coordinationv1.Lease)
	if !was || !is {
		return true
	}
	a, b := &before.Spec, &after.Spec
	if a.HolderIdentity == nil || b.HolderIdentity == nil || a.RenewTime == nil || b.RenewTime == nil || a.LeaseDurationSeconds == nil {
		return true
	}
	return *a.HolderIdentity != *b.HolderIdentity ||
		b.RenewTime.Sub(a.RenewTime.Time) > time.Duration(*a.LeaseDurationSeconds)*time.Second
}

// ownDefinition ignores the definitions of other groups. The object may be unknown if it was deleted.
func (c *Cluster) ownDefinition(old, now any) bool {
	for _, object := range []any{old, now} {
		if named, ok := object.(client.Object); ok {
			return strings.HasSuffix(named.GetName(), "."+networkv1.GroupName) || c.owned(named.GetName())
		}
	}
	return true
}
