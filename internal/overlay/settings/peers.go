package settings

import (
	"net/netip"
	"slices"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/policy"
)

// Nodes are peers of policies by the labels of the namespace for hosts' networks, as in OpenShift: an administrator with routers on nodes'
// networks labels that namespace, and policies admit it by its label. In the policy index, a node is a pod of that namespace. No other
// selector selects nodes, because packets from a node's address include what that node has masqueraded.

// NodesOf returns the addresses that the nodes of a network send to pods from, and are reached at by pods. Hosts without a Node are left
// out: they run no pods of the cluster.
func NodesOf(local *clusternetwork.HostSubnet, remotes []clusternetwork.HostSubnet) map[policy.Key][]netip.Addr {
	nodes := make(map[policy.Key][]netip.Addr, 1+len(remotes))
	add := func(host *clusternetwork.HostSubnet) {
		addresses := []netip.Addr{host.HostIP, host.Subnet.Masked().Addr().Next()}
		slices.SortFunc(addresses, netip.Addr.Compare)
		nodes[policy.Key{Namespace: networkv1.HostNetworkNamespace, Name: "node/" + string(host.UID)}] = addresses // no pod's name has a slash
	}
	add(local)
	for i := range remotes {
		if remotes[i].NodeUID != "" {
			add(&remotes[i])
		}
	}
	return nodes
}

// PodRanges returns the pod subnets of other nodes, by the nodes' names.
func PodRanges(remotes []clusternetwork.HostSubnet) map[string][]netip.Prefix {
	ranges := make(map[string][]netip.Prefix, len(remotes))
	for i := range remotes {
		if host := &remotes[i]; host.Subnet.IsValid() {
			ranges[host.Host] = append(ranges[host.Host], host.Subnet.Masked())
		}
	}
	for _, list := range ranges {
		slices.SortFunc(list, netip.Prefix.Compare)
	}
	return ranges
}
