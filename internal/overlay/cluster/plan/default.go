package plan

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// The default ClusterNetwork is the one in OpenShift's documentation: a /23 for each node.
const (
	defaultPods       = "10.128.0.0/14"
	defaultHostBits   = 9
	defaultServices   = "172.30.0.0/16"
	createOneYourself = "no default ClusterNetwork is created: create one with other ranges (docs/install.md)"
)

// Default returns the ClusterNetwork for a cluster that has none. services is the API server's range of Services; if invalid, it is the one
// in OpenShift's documentation. Default returns nil and the problems if its ranges overlap others.
func Default(services netip.Prefix, nodes []Node) (*networkv1.ClusterNetwork, []Problem) {
	pods := netip.MustParsePrefix(defaultPods)
	if !services.IsValid() {
		services = netip.MustParsePrefix(defaultServices)
	}
	var problems []Problem
	report := func(about Object, format string, args ...any) {
		problems = append(problems, Problem{Object: about, Reason: networkv1.ReasonConflict, Message: fmt.Sprintf(format, args...) + ": " + createOneYourself})
	}
	if pods.Overlaps(services) {
		report(Object{Kind: KindClusterNetwork, Name: networkv1.ClusterNetworkDefault}, "the range of Services %s overlaps %s", services, pods)
	}
	for _, node := range nodes {
		if addr, err := netip.ParseAddr(node.Address); err == nil && (pods.Contains(addr) || services.Contains(addr)) {
			report(about(KindNode, node.Name, node.UID), "address %s of node %s lies in %s or %s", addr, node.Name, pods, services)
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: networkv1.ClusterNetworkDefault},
		Network:    defaultPods, HostSubnetLength: defaultHostBits, ServiceNetwork: services.String(), PluginName: networkv1.PluginNetworkPolicy,
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: defaultPods, HostSubnetLength: defaultHostBits}},
	}, nil
}
