package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// createNetwork creates the default ClusterNetwork in a cluster without one, if no other network is configured and no host has a subnet:
// one that was deleted from a running cluster must be created again by the administrator. It returns the problems that prevent it.
func (s *subnetReconciler) createNetwork(ctx context.Context, nodes []plan.Node) ([]plan.Problem, error) {
	there, err := configured(ctx, s.live)
	if err != nil || there {
		return nil, err // the watch is behind
	}
	var subnets networkv1.HostSubnetList
	if err := s.live.List(ctx, &subnets, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("list HostSubnets: %w", err)
	}
	elsewhere, err := s.elsewhere(ctx)
	if err != nil || elsewhere || len(subnets.Items) > 0 {
		return nil, err
	}
	services, err := s.services(ctx)
	if err != nil {
		return nil, err
	}
	network, problems := plan.Default(services, nodes)
	if network == nil {
		return problems, nil
	}
	if err := s.client.Create(ctx, network); err != nil {
		return nil, fmt.Errorf("create ClusterNetwork %s: %w", network.Name, err)
	}
	message := fmt.Sprintf("created, because no network is configured: pods have %s, Services %s", network.Network, network.ServiceNetwork)
	s.log.InfoContext(ctx, "created the default ClusterNetwork", "network", network.Network, "service_network", network.ServiceNetwork)
	s.report.Normal(plan.Object{Kind: plan.KindClusterNetwork, Name: network.Name, UID: network.UID}, reasonCreated, actionCreateNetwork, message)
	return nil, nil
}

// services returns the API server's first IPv4 range of Services; invalid if the API server has no ServiceCIDR.
func (s *subnetReconciler) services(ctx context.Context) (netip.Prefix, error) {
	var ranges networkingv1.ServiceCIDR
	err := s.live.Get(ctx, client.ObjectKey{Name: serviceCIDR}, &ranges)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err): // releases before 1.33
		return netip.Prefix{}, nil
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("read ServiceCIDR %s: %w", serviceCIDR, err)
	}
	var errs []error
	for _, text := range ranges.Spec.CIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err == nil && prefix.Addr().Is4() {
			return prefix.Masked(), nil
		}
		errs = append(errs, err)
	}
	return netip.Prefix{}, errors.Join(append(errs, fmt.Errorf("ServiceCIDR %s has no IPv4 range: create a ClusterNetwork", serviceCIDR))...)
}

// serviceCIDR is the ServiceCIDR that the API server creates for its own range.
const serviceCIDR = "kubernetes"

const (
	reasonCreated       = "Created"
	actionCreateNetwork = "CreateClusterNetwork"
)
