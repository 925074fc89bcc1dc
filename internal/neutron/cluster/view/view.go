// Package view is what the API server has about a Network's ports: the ports themselves, the pods that need them, and the nodes.
package view

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/objects"
	"weft.dev/weft/internal/placement"
)

// PodFields are what placement reads of Pods.
func PodFields() *cluster.PodFields {
	return &cluster.PodFields{Annotations: []string{placement.AnnotationNetwork}}
}

// Places decides which Network a pod is on, as the agents do.
type Places struct {
	cluster placement.Cluster
}

// otherNetworks represents the network of pods that are on none of OpenStack's.
const otherNetworks = "other"

// NewPlaces reads the Networks that exist.
func NewPlaces(ctx context.Context, reader client.Reader) (*Places, error) {
	var list stackubev1.NetworkList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list the Networks: %w", err)
	}
	return &Places{placement.Cluster{
		Default: otherNetworks, Known: []string{otherNetworks, objects.NetworkKind}, Binders: []placement.Binder{objects.Binder(list.Items)},
	}}, nil
}

// Of returns the Network of a pod; none for pods that do not run, or are on other networks.
func (p *Places) Of(pod *corev1.Pod, namespace *corev1.Namespace) (key types.NamespacedName, found bool) {
	if pod.Spec.NodeName == "" || pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return key, false
	}
	decision := placement.Decide(
		placement.Pod{Namespace: pod.Namespace, Name: pod.Name, Annotations: pod.Annotations},
		placement.Namespace{Name: namespace.Name, Annotations: namespace.Annotations, Labels: namespace.Labels}, p.cluster)
	if decision.Network != objects.NetworkKind || decision.Refuse != "" {
		return key, false
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: decision.Part}, decision.Part != ""
}

// View is the state of a Network's ports in the API server.
type View struct {
	Key     types.NamespacedName
	Network *stackubev1.Network  // nil: it does not exist
	Ports   []weftv1.NeutronPort // with the Network's name, also of a former Network
	// Demand is what the pods of each node need.
	Demand map[string]ahead.Demand
	Hosts  map[string]string // of nodes: their names in Neutron, "" if the agent has not reported one
	// Taken are the addresses of all Networks' ports, by the Network that has them.
	Taken map[NodeAddress]types.NamespacedName
}

// NodeAddress is an address on a node: nodes route each address to one pod, of any network.
type NodeAddress struct {
	Node string
	Addr netip.Addr
}

// Read reads the view of a Network.
func Read(ctx context.Context, reader client.Reader, key types.NamespacedName) (*View, error) {
	v := &View{Key: key, Demand: map[string]ahead.Demand{}, Hosts: map[string]string{}, Taken: map[NodeAddress]types.NamespacedName{}}
	var network stackubev1.Network
	switch err := reader.Get(ctx, key, &network); {
	case err == nil:
		v.Network = &network
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read Network %s: %w", key, err)
	}
	if err := v.readPorts(ctx, reader); err != nil {
		return nil, err
	}
	if err := v.readNodes(ctx, reader); err != nil {
		return nil, err
	}
	return v, v.readPods(ctx, reader)
}

func (v *View) readPorts(ctx context.Context, reader client.Reader) error {
	var ports weftv1.NeutronPortList
	if err := reader.List(ctx, &ports); err != nil {
		return fmt.Errorf("list the NeutronPorts: %w", err)
	}
	for i := range ports.Items {
		p := &ports.Items[i]
		of := types.NamespacedName{Namespace: p.Spec.Network.Namespace, Name: p.Spec.Network.Name}
		if of == v.Key {
			v.Ports = append(v.Ports, *p)
		}
		for _, a := range p.Spec.Addresses {
			if prefix, err := netip.ParsePrefix(a.Address); err == nil {
				v.Taken[NodeAddress{p.Spec.Node, prefix.Addr()}] = of
			}
		}
	}
	return nil
}

func (v *View) readNodes(ctx context.Context, reader client.Reader) error {
	var nodes corev1.NodeList
	if err := reader.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	for i := range nodes.Items {
		v.Hosts[nodes.Items[i].Name] = ""
	}
	var reports weftv1.NodeNetworkList
	if err := reader.List(ctx, &reports); err != nil {
		return fmt.Errorf("list the NodeNetworks: %w", err)
	}
	for i := range reports.Items {
		if _, there := v.Hosts[reports.Items[i].Name]; there {
			v.Hosts[reports.Items[i].Name] = Hostname(&reports.Items[i])
		}
	}
	return nil
}

// Hostname returns a node's name in Neutron, from its agent's report.
func Hostname(report *weftv1.NodeNetwork) string {
	if s := Section(report); s != nil {
		return s.Hostname
	}
	return ""
}

// Section returns a node agent's report about OpenStack's networks; nil if there is none.
func Section(report *weftv1.NodeNetwork) *weftv1.NeutronNode {
	for i := range report.Status.Networks {
		if s := &report.Status.Networks[i]; s.Name == weftv1.NetworkNeutron {
			return s.Neutron
		}
	}
	return nil
}

func (v *View) readPods(ctx context.Context, reader client.Reader) error {
	where, err := NewPlaces(ctx, reader)
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{}
	if err := reader.Get(ctx, client.ObjectKey{Name: v.Key.Namespace}, namespace); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("read namespace %s: %w", v.Key.Namespace, err)
	}
	type attachment struct { // a node's agent writes the status, and counts only for pods of its node
		pod  types.UID
		node string
	}
	attached := map[attachment]bool{}
	for i := range v.Ports {
		if pod := v.Ports[i].Status.Pod; pod != nil {
			attached[attachment{types.UID(pod.UID), v.Ports[i].Spec.Node}] = true
		}
	}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, client.InNamespace(v.Key.Namespace)); err != nil {
		return fmt.Errorf("list the pods of namespace %s: %w", v.Key.Namespace, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if at, found := where.Of(pod, namespace); !found || at != v.Key {
			continue
		}
		d := v.Demand[pod.Spec.NodeName]
		d.Pods++
		if !attached[attachment{pod.UID, pod.Spec.NodeName}] && pod.DeletionTimestamp.IsZero() {
			d.Waiting++
		}
		v.Demand[pod.Spec.NodeName] = d
	}
	return nil
}

// Gone reports whether the Network has no ports any more: it is being deleted, or does not exist.
func (v *View) Gone() bool { return v.Network == nil || !v.Network.DeletionTimestamp.IsZero() }

// Current reports whether a port is this Network's, and stays.
func (v *View) Current(p *weftv1.NeutronPort) bool {
	return !v.Gone() && p.Spec.Network.UID == string(v.Network.UID) && p.DeletionTimestamp.IsZero()
}

// Nodes returns the nodes that have pods or ports of the Network, sorted.
func (v *View) Nodes() []string {
	names := map[string]bool{}
	for name := range v.Demand {
		names[name] = true
	}
	for i := range v.Ports {
		names[v.Ports[i].Spec.Node] = true
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	return sorted
}

// PortsOf returns a node's ports as the plan needs them. stuck reports whether a port that is not ACTIVE is stuck.
func (v *View) PortsOf(node string, stuck func(id string) bool) []ahead.Port {
	var all []ahead.Port
	for i := range v.Ports {
		p := &v.Ports[i]
		if p.Spec.Node == node && !v.Gone() && p.Spec.Network.UID == string(v.Network.UID) {
			leaving := !p.DeletionTimestamp.IsZero()
			all = append(all, ahead.Port{
				ID: p.Name, Leaving: leaving, Attached: p.Status.Pod != nil, Since: since(p).Time, Used: p.Status.ReleasedAt != nil,
				Active: p.Spec.Active, Stuck: !leaving && !p.Spec.Active && stuck(p.Name),
			})
		}
	}
	return all
}

func since(p *weftv1.NeutronPort) metav1.Time {
	if p.Status.ReleasedAt != nil {
		return *p.Status.ReleasedAt
	}
	return p.CreationTimestamp
}
