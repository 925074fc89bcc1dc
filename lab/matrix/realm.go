package matrix

import (
	"fmt"
	"net/netip"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
)

// Names of networks, as in attachment records.
const (
	overlayNetwork = "overlay"
	flannelNetwork = "flannel"
)

// realm is one pod network of the lab, with the nodes' own addresses in it.
type realm struct {
	name     string
	device   string                // the host's link to the pods
	gateways map[string]netip.Addr // of that link, by node
	tunnels  map[string]netip.Addr // source addresses of hosts towards pods of other nodes, by node
	// keepsSources says that what a node forwards to its own pods keeps its source address: only the node itself has the node's.
	keepsSources bool
}

// newRealms returns the networks of a lab, the default one first.
func newRealms(network plan.Network, plugin string) []*realm {
	realmOf := func(name, device string) *realm {
		return &realm{name: name, device: device, gateways: map[string]netip.Addr{}, tunnels: map[string]netip.Addr{}}
	}
	overlay, flannel := realmOf(overlayNetwork, tun), realmOf(flannelNetwork, cni)
	overlay.keepsSources = plugin == networkv1.PluginNetworkPolicy
	switch network {
	case plan.NetworkFlannel:
		return []*realm{flannel}
	case plan.NetworkBoth:
		return []*realm{overlay, flannel}
	default:
		return []*realm{overlay}
	}
}

// add reads a node's addresses in the network.
func (r *realm) add(n lab.Node, backend string) error {
	var err error
	if r.gateways[n.Name], err = gateway(n, r.device); err != nil {
		return err
	}
	r.tunnels[n.Name] = r.gateways[n.Name]
	if r.name == flannelNetwork && backend == "vxlan" {
		r.tunnels[n.Name], err = gateway(n, tunnel)
	} else if r.name == flannelNetwork {
		r.tunnels[n.Name] = n.IP
	}
	return err
}

// hairpin is the source address that a pod sees when it reaches itself through a Service. It cannot be the pod's own, or the pod would
// answer itself directly. On a flannel network kube-proxy masquerades the connection with the bridge's address.
func (r *realm) hairpin(p Party) netip.Addr {
	if r.name == flannelNetwork {
		return r.gateways[p.Node]
	}
	return netip.AddrFrom4([4]byte{169, 254, 0, 1})
}

// members returns the parties that are pods of the network.
func (r *realm) members(parties []Party) []Party {
	var out []Party
	for _, p := range parties {
		if p.network == r.name {
			out = append(out, p)
		}
	}
	return out
}

// betweenNetworks lists the paths from each node's first pod on one network to pods on another, on the same node and on the next one. For
// a network, pods of another network are outside: their source is their node's address in it, unless it keeps sources.
func betweenNetworks(from, to *realm, pods, hosts []Party) []Way {
	first := func(r *realm, node string) (Party, bool) {
		for _, p := range r.members(pods) {
			if p.Node == node {
				return p, true
			}
		}
		return Party{}, false
	}
	var out []Way
	add := func(node, at, where string, source netip.Addr) {
		a, found := first(from, node)
		b, also := first(to, at)
		if found && also {
			out = append(out, Way{Kind: fmt.Sprintf("pod on %s to one on %s, %s node", from.name, to.name, where), From: a, To: b, Source: source})
		}
	}
	for i := range hosts {
		source := to.gateways[hosts[i].Node]
		if a, found := first(from, hosts[i].Node); found && to.keepsSources {
			source = a.IP
		}
		add(hosts[i].Node, hosts[i].Node, "same", source)
		if next := hosts[(i+1)%len(hosts)].Node; next != hosts[i].Node {
			add(hosts[i].Node, next, "other", to.tunnels[hosts[i].Node])
		}
	}
	return out
}

// toHostPorts lists the paths from outside to pods' host ports. The pod sees the client's own address.
func toHostPorts(from Party, hosts, pods []Party) []Way {
	var out []Way
	for _, p := range pods {
		for _, h := range hosts {
			if p.hostPort == 0 || h.Node != p.Node {
				continue
			}
			to := Party{Name: fmt.Sprintf("%s:%d", h.Name, p.hostPort), Node: h.Node, IP: h.IP, kind: host, port: p.hostPort, answers: p.answers}
			out = append(out, Way{Kind: "outside to a host port", From: from, To: to, Source: from.IP})
		}
	}
	return out
}

// all lists every measured path.
func (s *scene) all() []Way {
	var out []Way
	for _, r := range s.realms {
		pods := r.members(s.pods)
		out = append(out, ways(pods, s.hosts, s.outside, r.gateways, r.tunnels)...)
		out = append(out, serviceWays(pods, s.services, r.hairpin)...)
	}
	for _, from := range s.realms {
		for _, to := range s.realms {
			if from != to {
				out = append(out, betweenNetworks(from, to, s.pods, s.hosts)...)
			}
		}
	}
	return append(out, toHostPorts(s.outside, s.hosts, s.pods)...)
}
