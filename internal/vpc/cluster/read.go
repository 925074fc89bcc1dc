package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
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
		eips     kubeovn.IptablesEIPList
		snats    kubeovn.IptablesSnatRuleList
		dnats    kubeovn.IptablesDnatRuleList
		fips     kubeovn.IptablesFIPRuleList
		sets     appsv1.StatefulSetList
		errs     []error
	)
	definitions := nat.DefinitionList()
	for _, list := range []client.ObjectList{&vpcs, &subnets, &gateways, &ips, &pods, &spaces, &eips, &snats, &dnats, &fips, definitions, &sets} {
		if err := from.List(ctx, list); err != nil {
			errs = append(errs, fmt.Errorf("list %T: %w", list, err))
		}
	}
	config := map[string]map[string]string{}
	for _, name := range []string{kubeovn.NATGatewayConfigMap, kubeovn.NATConfigMap} {
		var object corev1.ConfigMap
		err := from.Get(ctx, client.ObjectKey{Namespace: kubeovn.ConfigNamespace, Name: name}, &object)
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("read ConfigMap %s/%s: %w", kubeovn.ConfigNamespace, name, err))
		}
		config[name] = object.Data
	}
	sets.Items = slices.DeleteFunc(sets.Items, func(s appsv1.StatefulSet) bool {
		return !strings.HasPrefix(s.Name, nat.PodPrefix) || s.Labels[nat.Label] == ""
	})
	return &plan.Objects{
		Vpcs: vpcs.Items, Subnets: subnets.Items, Gateways: gateways.Items, IPs: ips.Items, Pods: pods.Items, Namespaces: spaces.Items,
		EIPs: eips.Items, SNATs: snats.Items, DNATs: dnats.Items, FIPs: fips.Items, Definitions: nat.Definitions(definitions), Workloads: sets.Items,
		NAT: objects.ParseNATConfig(config[kubeovn.NATGatewayConfigMap], config[kubeovn.NATConfigMap]), Now: metav1.Now(),
	}, errors.Join(errs...)
}

// confirming reads what things are given out in from the API server itself, and the rest from the cache.
type confirming struct{ cached, live client.Reader }

// Get implements client.Reader.
func (c *confirming) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return c.cached.Get(ctx, key, object, options...) //nolint:wrapcheck // the caller says what it reads
}

// List implements client.Reader.
func (c *confirming) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch list.(type) {
	case *kubeovn.VpcList, *kubeovn.SubnetList, *kubeovn.VpcNatGatewayList, *kubeovn.IPList, *kubeovn.IptablesEIPList:
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
