package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
)

// Names in an installation.
const (
	// DefaultNamespace is the namespace of the installation.
	DefaultNamespace = "weft"
	agentName        = "weft-agent"
	controllerName   = "weft-controller"
)

// Facts are the objects from which a report is made.
type Facts struct {
	// Now is the API server's time.
	Now time.Time
	// Namespace is the namespace of the installation.
	Namespace string
	// Undefined are the kinds that are not defined in the API server.
	Undefined []string
	// Unreadable lists what could not be read, and why.
	Unreadable []Unreadable

	Network     *networkv1.ClusterNetwork
	HostSubnets []networkv1.HostSubnet
	Nodes       []corev1.Node
	AgentSet    *appsv1.DaemonSet
	AgentPods   []corev1.Pod
	Controller  *appsv1.Deployment
	Lease       *coordinationv1.Lease
	// NodeNetworks are the agents' reports on their nodes' networks.
	NodeNetworks []weftv1.NodeNetwork
	// Sections are the facts of the configured networks other than the overlay.
	Sections []Collected
}

// Serving returns the number of nodes whose agents report the network as ready.
func (f *Facts) Serving(network string) int {
	count := 0
	for i := range f.NodeNetworks {
		if slices.ContainsFunc(f.NodeNetworks[i].Status.Networks, func(s weftv1.NodeNetworkSection) bool {
			return s.Name == network && meta.IsStatusConditionTrue(s.Conditions, weftv1.NetworkReady)
		}) {
			count++
		}
	}
	return count
}

// Unreadable is something that the API server did not return.
type Unreadable struct {
	// What could not be read, and why.
	What string
	Err  error
}

// collector reads facts, and records what cannot be read.
type collector struct {
	reader client.Reader
	facts  *Facts
}

// Collect reads the facts. Something that cannot be read is recorded in them; an error means that nothing can be read.
func Collect(ctx context.Context, reader client.Reader, namespace string, sections ...Section) (*Facts, error) {
	c := &collector{reader: reader, facts: &Facts{Namespace: namespace}}
	if err := c.nodes(ctx); err != nil {
		return nil, err
	}
	var network networkv1.ClusterNetwork
	if c.get(ctx, "ClusterNetwork", client.ObjectKey{Name: networkv1.ClusterNetworkDefault}, &network) {
		c.facts.Network = &network
	}
	var subnets networkv1.HostSubnetList
	c.list(ctx, "HostSubnet", &subnets)
	c.facts.HostSubnets = subnets.Items
	var set appsv1.DaemonSet
	if c.get(ctx, "DaemonSet", client.ObjectKey{Namespace: namespace, Name: agentName}, &set) {
		c.facts.AgentSet = &set
		var pods corev1.PodList
		c.list(ctx, "Pod", &pods, client.InNamespace(namespace), client.MatchingLabels(set.Spec.Selector.MatchLabels))
		c.facts.AgentPods = pods.Items
	}
	var deployment appsv1.Deployment
	if c.get(ctx, "Deployment", client.ObjectKey{Namespace: namespace, Name: controllerName}, &deployment) {
		c.facts.Controller = &deployment
	}
	var lease coordinationv1.Lease
	if c.get(ctx, "Lease", client.ObjectKey{Namespace: namespace, Name: controllerName}, &lease) {
		c.facts.Lease = &lease
	}
	from := &Reader{reader: reader, facts: c.facts}
	var nodeNetworks weftv1.NodeNetworkList
	from.List(ctx, "NodeNetwork", &nodeNetworks)
	c.facts.NodeNetworks = nodeNetworks.Items
	for _, section := range sections {
		if collected := section.Collect(ctx, from); collected != nil {
			c.facts.Sections = append(c.facts.Sections, Collected{Section: section, Facts: collected})
		}
	}
	return c.facts, ctx.Err()
}

// nodes reads the Nodes. An error other than "forbidden" ends the collection.
func (c *collector) nodes(ctx context.Context) error {
	var nodes corev1.NodeList
	err := c.reader.List(ctx, &nodes)
	if apierrors.IsForbidden(err) {
		c.facts.Unreadable = append(c.facts.Unreadable, Unreadable{"Nodes", err})
		return nil
	}
	if err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	c.facts.Nodes = nodes.Items
	return nil
}

// get reads one object and reports whether it exists.
func (c *collector) get(ctx context.Context, kind string, key client.ObjectKey, into client.Object) bool {
	err := c.reader.Get(ctx, key, into)
	return c.note(kind, err)
}

func (c *collector) list(ctx context.Context, kind string, into client.ObjectList, opts ...client.ListOption) {
	c.note(kind, c.reader.List(ctx, into, opts...))
}

// note records an error, and reports whether there was an object.
func (c *collector) note(kind string, err error) bool {
	switch {
	case err == nil:
		return true
	case undefined(err):
		c.facts.Undefined = append(c.facts.Undefined, kind)
	case !apierrors.IsNotFound(err):
		c.facts.Unreadable = append(c.facts.Unreadable, Unreadable{kind, err})
	}
	return false
}

// undefined reports whether an error means that the kind of object is not defined in the API server.
func undefined(err error) bool {
	if meta.IsNoMatchError(err) {
		return true
	}
	return apierrors.IsNotFound(err) && strings.Contains(err.Error(), notServed)
}

// notServed is client-go's message for a path that the API server does not serve. The message for an object is "not found".
const notServed = "the server could not find the requested resource"
