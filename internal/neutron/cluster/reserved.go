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

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/cluster/view"
	"weft.dev/weft/internal/neutron/objects"
)

// Descriptions of the cluster's ranges, for errors.
const (
	theNodes    = "the nodes' addresses"
	thePods     = "the nodes' pod ranges"
	theServices = "the Services' range"
	theRoutes   = "the node's routes"
	theCloud    = "OpenStack's interfaces"
	configured  = "the chart's neutron.reserved"
)

// reservedReader reads the ranges that no tenant's network may overlap, because nodes route them.
type reservedReader struct {
	cached, live client.Reader
	// more are ranges of the cluster's other networks. Nil: none.
	more func(context.Context, client.Reader) (map[string][]netip.Prefix, error)
	// allowed are the ranges that tenants' networks may use, and own those that the configuration reserves.
	allowed, own []netip.Prefix
}

// read returns the rules for networks in an OpenStack.
func (r *reservedReader) read(ctx context.Context, os *session) (*objects.Rules, error) {
	reserved := objects.Reserved{configured: slices.Clone(r.own)}
	for _, addr := range os.addresses {
		reserved[theCloud] = append(reserved[theCloud], netip.PrefixFrom(addr, addr.BitLen()))
	}
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
	var services networkingv1.ServiceCIDRList
	err := r.live.List(ctx, &services)
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) { // releases before 1.33 have none
		return nil, fmt.Errorf("list the ServiceCIDRs: %w", err)
	}
	for i := range services.Items {
		reserved[theServices] = append(reserved[theServices], prefixes(services.Items[i].Spec.CIDRs)...)
	}
	for what, ranges := range reserved { // the cache lists nodes in any order
		reserved[what] = sorted(ranges)
	}
	return &objects.Rules{Allowed: r.allowed, Reserved: reserved}, nil
}

// ofNode returns the rules for the ports of a node, from those for networks: the routes that a node reports apply only to that node.
func (r *reservedReader) ofNode(ctx context.Context, all *objects.Rules, node string) (*objects.Rules, error) {
	var report weftv1.NodeNetwork
	if err := r.cached.Get(ctx, client.ObjectKey{Name: node}, &report); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read NodeNetwork %s: %w", node, err)
	}
	section := view.Section(&report)
	if section == nil {
		return all, nil
	}
	reserved := maps.Clone(all.Reserved)
	reserved[theRoutes] = sorted(prefixes(section.Ranges))
	return &objects.Rules{Allowed: all.Allowed, Reserved: reserved}, nil
}

func sorted(ranges []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges)
}

func addNode(reserved objects.Reserved, node *corev1.Node) {
	for _, a := range node.Status.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		if err == nil {
			reserved[theNodes] = append(reserved[theNodes], netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	reserved[thePods] = append(reserved[thePods], prefixes(node.Spec.PodCIDRs)...)
}

// prefixes leaves out invalid ranges: Kubernetes has validated these fields.
func prefixes(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}
