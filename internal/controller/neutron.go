package controller

import (
	"context"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	shared "weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/clusternetwork"
	neutroncluster "weft.dev/weft/internal/neutron/cluster"
)

// neutronPart returns OpenStack's part of the controller. It passes it the ranges of the overlay, which that part cannot read itself.
func neutronPart(options neutroncluster.Options) shared.Part {
	options.Reserved = overlayRanges
	return neutroncluster.Part(options)
}

// overlayRanges returns the ranges of the ClusterNetwork.
func overlayRanges(ctx context.Context, reader client.Reader) (map[string][]netip.Prefix, error) {
	var network networkv1.ClusterNetwork
	err := reader.Get(ctx, client.ObjectKey{Name: networkv1.ClusterNetworkDefault}, &network)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	config, err := clusternetwork.Parse(&network)
	if err != nil {
		return nil, fmt.Errorf("the ranges of the overlay are unknown until the object is corrected: %w", err)
	}
	ranges := map[string][]netip.Prefix{"the overlay's Services": {config.ServiceNetwork}}
	for _, entry := range config.ClusterNetworks {
		ranges["the overlay's pods"] = append(ranges["the overlay's pods"], entry.Prefix)
	}
	return ranges, nil
}
