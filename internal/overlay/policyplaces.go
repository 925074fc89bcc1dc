package overlay

import (
	"net/netip"
	"slices"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/policy"
)

// podRanges returns the ranges of the pods of other nodes, by the nodes' names.
func podRanges(remotes []clusternetwork.HostSubnet) map[string][]netip.Prefix {
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

// place sets the ranges of the pods of other nodes, and feeds the index with the pods of those nodes whose ranges changed. A pod's status is
// written by its node and may outlive the node's HostSubnet: of a remote pod's addresses only those in the HostSubnet of its node count.
func (x *policies) place(ranges map[string][]netip.Prefix) {
	was := x.ranges
	x.ranges = ranges
	for node, pods := range x.byNode {
		if slices.Equal(was[node], ranges[node]) {
			continue
		}
		for key := range pods {
			x.feed(key)
		}
	}
}

// placed returns those of a remote pod's addresses that count: in the HostSubnet of its node, and neither its gateway nor its first or last.
func (x *policies) placed(pod *policy.Pod) []netip.Addr {
	var addresses []netip.Addr
	for _, address := range pod.Addresses {
		if slices.ContainsFunc(x.ranges[pod.Node], func(subnet netip.Prefix) bool { return forPods(subnet, address) }) {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// forPods reports whether a node may give an address of its subnet to a pod.
func forPods(subnet netip.Prefix, address netip.Addr) bool {
	first := subnet.Addr()
	return subnet.Contains(address) && address != first && address != first.Next() && subnet.Contains(address.Next())
}

// remember takes over a pod object, nil if it is gone, and keeps the index of pods by node.
func (x *policies) remember(key policy.Key, pod *PolicyPod) {
	if was := x.pods[key]; was != nil {
		delete(x.byNode[was.Node], key)
		if len(x.byNode[was.Node]) == 0 {
			delete(x.byNode, was.Node)
		}
	}
	if pod == nil {
		delete(x.pods, key)
		return
	}
	x.pods[key] = pod
	if x.byNode[pod.Node] == nil {
		x.byNode[pod.Node] = map[policy.Key]struct{}{}
	}
	x.byNode[pod.Node][key] = struct{}{}
}
