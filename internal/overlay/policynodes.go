package overlay

import (
	"net/netip"
	"slices"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/policy"
)

// Nodes are peers of policies by the labels of one namespace, that of hosts' networks, as OpenShift has it: who has routers on nodes'
// networks gives that namespace a label, and lets in what has it. To the index a node is as a pod there. It is none by any other
// way: what comes from a node is also what that node has masqueraded.

// nodesOf returns the addresses by which the nodes of a network come to pods, and are reached by them. Hosts that are no Nodes are left
// out: there is nobody who runs the cluster's pods there.
func nodesOf(local *clusternetwork.HostSubnet, remotes []clusternetwork.HostSubnet) map[policy.Key][]netip.Addr {
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

// followNodes brings policies in step with the nodes that there are, where nothing else of the network changes.
func (n *Network) followNodes(s *settings, remotes []clusternetwork.HostSubnet) {
	if !s.policies() {
		return
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	n.enforcer.SetNodes(nodesOf(&s.view.Local, remotes))
	n.enforcer.Place(podRanges(remotes))
	n.enforcer.Narrow(false)
	if n.enforcer.HandOver() {
		n.purges.Later()
	}
}
