package realised

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// Follow adds all nodes to a tally, updates it with each change of a node's report, and returns when done returns true.
func Follow(ctx context.Context, objects client.WithWatch, tally *Tally, done func(Count) bool) error {
	var list networkv1.HostSubnetList
	if err := objects.List(ctx, &list); err != nil {
		return fmt.Errorf("listing HostSubnets: %w", err)
	}
	for i := range list.Items {
		tally.Take(&list.Items[i])
	}
	if done(tally.Count()) {
		return nil
	}
	events, err := Watch(ctx, objects, &networkv1.HostSubnetList{}, list.ResourceVersion)
	if err != nil {
		return err
	}
	defer events.Stop()
	for {
		event, err := Next(ctx, events)
		if err != nil {
			return err
		}
		hs, ok := event.Object.(*networkv1.HostSubnet)
		switch {
		case !ok:
			continue
		case event.Type == watch.Deleted:
			tally.Drop(hs.Name)
		default:
			tally.Take(hs)
		}
		if done(tally.Count()) {
			return nil
		}
	}
}

// Watch watches objects since a version, and reconnects when a connection ends.
func Watch(ctx context.Context, objects client.WithWatch, list client.ObjectList, since string) (watch.Interface, error) {
	begin := func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		return objects.Watch(ctx, list, &client.ListOptions{Raw: &options})
	}
	events, err := watchtools.NewRetryWatcherWithContext(ctx, since, &toolscache.ListWatch{WatchFuncWithContext: begin})
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", list, err)
	}
	return events, nil
}

var errWatch = errors.New("the watch of the API server ended")

// Next returns the next event.
func Next(ctx context.Context, events watch.Interface) (watch.Event, error) {
	select {
	case event, ok := <-events.ResultChan():
		switch {
		case ctx.Err() != nil:
			return event, context.Cause(ctx)
		case !ok:
			return event, errWatch
		case event.Type == watch.Error:
			return event, fmt.Errorf("%w: %v", errWatch, event.Object)
		}
		return event, nil
	case <-ctx.Done():
		return watch.Event{}, context.Cause(ctx)
	}
}
