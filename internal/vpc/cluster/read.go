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
	"k8s.io/utils/ptr"
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

// confirming reads what things are given out in, and what gateways are turned off by, from the API server itself, and the rest from the
// cache.
type confirming struct{ cached, live client.Reader }

// Get implements client.Reader: of ConfigMaps.
func (c *confirming) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return c.live.Get(ctx, key, object, options...) //nolint:wrapcheck // the caller says what it reads
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

// confirm asks the API server itself for the pods of IP objects that are to be deleted, and returns those that need their addresses: pods that
// the cache does not have yet. Their addresses must not be given to others.
func (r *reconciler) confirm(ctx context.Context, ips []*kubeovn.IP) ([]corev1.Pod, error) {
	var missing []corev1.Pod
	for _, ip := range ips {
		if ip.Spec.Namespace == "" || ip.Spec.PodName == "" {
			continue // no pod has it
		}
		var pod corev1.Pod
		err := r.tools.Live.Get(ctx, client.ObjectKey{Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName}, &pod)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("confirm that the pod of IP %s is gone: %w", ip.Name, err)
		}
		if err == nil && plan.Needs(&pod, ip) {
			missing = append(missing, pod)
		}
	}
	return missing, nil
}

// LeaseTerm returns the term of a leadership by a lease, which grows with each new holder: when the lease was created, and the number of its
// transitions since. A lease that was deleted counts its transitions from the start. Another replica's leadership has no term here: a
// replica that has lost the lease without having noticed must not take the term of the one that has it.
func LeaseTerm(namespace, name, identity string) func(context.Context, client.Reader) (uint64, error) {
	return func(ctx context.Context, live client.Reader) (uint64, error) {
		lease := &coordinationv1.Lease{}
		if err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, lease); err != nil {
			return 0, fmt.Errorf("read lease %s/%s: %w", namespace, name, err)
		}
		if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != identity {
			return 0, fmt.Errorf("lease %s/%s: %w: %q holds it", namespace, name, ErrNotLeading, holder)
		}
		created := max(lease.CreationTimestamp.Unix(), 0)
		transitions := max(ptr.Deref(lease.Spec.LeaseTransitions, 0), 0)
		return uint64(created)<<transitionBits | uint64(min(transitions, 1<<transitionBits-1)), nil //nolint:gosec // neither is negative
	}
}

// transitionBits are those of a term that count transitions of one lease: a million.
const transitionBits = 20

// ErrNotLeading means that another replica holds the lease.
var ErrNotLeading = errors.New("this replica does not lead")
