package cluster

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

// read returns all objects that a plan is made from.
func (r *reconciler) read(ctx context.Context, from client.Reader) (*plan.Objects, error) {
	var (
		vpcs     kubeovn.VpcList
		subnets  kubeovn.SubnetList
		gateways kubeovn.VpcNatGatewayList
		ips      kubeovn.IPList
		pods     corev1.PodList
		spaces   corev1.NamespaceList
		errs     []error
	)
	for _, list := range []client.ObjectList{&vpcs, &subnets, &gateways, &ips, &pods, &spaces} {
		if err := from.List(ctx, list); err != nil {
			errs = append(errs, fmt.Errorf("list %T: %w", list, err))
		}
	}
	return &plan.Objects{
		Vpcs: vpcs.Items, Subnets: subnets.Items, Gateways: gateways.Items, IPs: ips.Items, Pods: pods.Items, Namespaces: spaces.Items,
		Now: metav1.Now(),
	}, errors.Join(errs...)
}

// confirming reads what things are given out in from the API server itself, and the rest from the cache.
type confirming struct{ cached, live client.Reader }

// Get implements client.Reader.
func (c *confirming) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return c.live.Get(ctx, key, object, options...) //nolint:wrapcheck // the caller says what it reads
}

// List implements client.Reader.
func (c *confirming) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch list.(type) {
	case *kubeovn.VpcList, *kubeovn.SubnetList, *kubeovn.VpcNatGatewayList, *kubeovn.IPList:
		return c.live.List(ctx, list, options...) //nolint:wrapcheck // the caller says what it lists
	default:
		return c.cached.List(ctx, list, options...) //nolint:wrapcheck // the caller says what it lists
	}
}

// LeaseTerm returns the term of a leadership by a lease: the number of its transitions, which grows with each new holder.
func LeaseTerm(namespace, name string) func(context.Context, client.Reader) (uint64, error) {
	return func(ctx context.Context, live client.Reader) (uint64, error) {
		lease := &coordinationv1.Lease{}
		if err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, lease); err != nil {
			return 0, fmt.Errorf("read lease %s/%s: %w", namespace, name, err)
		}
		if lease.Spec.LeaseTransitions == nil || *lease.Spec.LeaseTransitions < 0 {
			return 1, nil
		}
		return uint64(*lease.Spec.LeaseTransitions) + 1, nil
	}
}
