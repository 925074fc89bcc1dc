package cluster

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/neutron/objects"
)

// What ranges of the cluster are, as errors name them.
const (
	theNodes    = "the nodes' addresses"
	thePods     = "the nodes' pod ranges"
	theServices = "the Services' range"
)

// serviceCIDR is the ServiceCIDR that the API server makes of its own range.
const serviceCIDR = "kubernetes"

// reservedReader reads the ranges that no tenant's network may overlap, because nodes route them.
type reservedReader struct {
	cached, live client.Reader
	// more are ranges of the cluster's other networks. Nil: none.
	more func(context.Context, client.Reader) (map[string][]netip.Prefix, error)
}

func (r *reservedReader) read(ctx context.Context) (objects.Reserved, error) {
	reserved := objects.Reserved{}
	if r.more != nil {
		more, err := r.more(ctx, r.cached)
		if err != nil {
			return nil, err
		}
		maps.Copy(reserved, more)
	}
	var nodes corev1.NodeList
	if err := r.cached.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	for i := range nodes.Items {
		addNode(reserved, &nodes.Items[i])
	}
	var services networkingv1.ServiceCIDR
	err := r.live.Get(ctx, client.ObjectKey{Name: serviceCIDR}, &services)
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) { // releases before 1.33 have none
		return nil, fmt.Errorf("read ServiceCIDR %s: %w", serviceCIDR, err)
	}
	reserved[theServices] = append(reserved[theServices], prefixes(services.Spec.CIDRs)...)
	for _, ranges := range reserved { // the cache lists nodes in any order
		slices.SortFunc(ranges, netip.Prefix.Compare)
	}
	return reserved, nil
}

func addNode(reserved objects.Reserved, node *corev1.Node) {
	for _, a := range node.Status.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == corev1.NodeInternalIP {
			reserved[theNodes] = append(reserved[theNodes], netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	reserved[thePods] = append(reserved[thePods], prefixes(node.Spec.PodCIDRs)...)
}

// prefixes leaves out what is no range: Kubernetes has checked these fields.
func prefixes(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}
