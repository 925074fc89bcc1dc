package node

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/steps"
)

// FollowPresence calls found with the overlay's presence once it is known, and again on each change of the ClusterNetwork.
func (o *Objects) FollowPresence(ctx context.Context, found func(network.Presence)) error {
	informer, err := o.cache.GetInformer(ctx, &networkv1.ClusterNetwork{}, cache.BlockUntilSynced(true))
	if err != nil {
		return steps.UnlessEnded(ctx, err)
	}
	look := func(any) {
		var object networkv1.ClusterNetwork
		err := o.cache.Get(ctx, client.ObjectKey{Name: defaultClusterNetwork}, &object)
		p := network.Presence{Present: err == nil, Cluster: true, Why: "there is no ClusterNetwork " + defaultClusterNetwork}
		if p.Present {
			p.Why, p.Default = "ClusterNetwork "+defaultClusterNetwork, object.Annotations[placement.AnnotationDefault] == "true"
		}
		found(p)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, now any) { look(now) }, DeleteFunc: look,
	})
	if err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	look(nil)
	return nil
}
