package host

import (
	"fmt"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
)

// Names in the table inet weft-neutron for host ports: the pod's port for each host port, at all addresses of the node and at one, and what
// passes.
const (
	hostPorts   = "hostports"
	hostPortsAt = "hostports-at"
	published   = "published"
	// services are the addresses of Services.
	services = "services"
)

// toHostPort matches packets that are translated to a pod's port, as long as host ports are translated to it. A Service that kube-proxy
// translates to that port opens nothing in addition.
const toHostPort = `oifname "` + Device + `" ct direction original ct status dnat ip daddr . meta l4proto . th dport @` + published

// maxNote limits the note of an element (nft.Element).
const maxNote = 120

// Published are the node's ports that are translated to a pod.
type Published struct {
	// Pod is the pod's namespace/name, for readers of the rules.
	Pod string
	// Address is the pod's.
	Address netip.Addr
	// Ports are the node's ports, with the pod's.
	Ports []cni.HostPort
}

// Rules returns what they add to the node's rules: two elements for each port.
func (p Published) Rules() map[nft.Key]nft.Item {
	fragment := map[nft.Key]nft.Item{}
	note := "pod " + p.Pod
	note = note[:min(len(note), maxNote)]
	number := func(n uint16) string { return strconv.Itoa(int(n)) }
	for _, port := range p.Ports {
		leads := &nft.Element{
			Family: nft.FamilyInet, Table: table, Set: hostPorts, Match: []string{port.Protocol, number(port.Port)},
			Value: []string{p.Address.String(), number(port.ContainerPort)}, Owner: note,
		}
		if port.Address.IsValid() {
			leads.Set, leads.Match = hostPortsAt, append([]string{port.Address.String()}, leads.Match...)
		}
		passes := &nft.Element{
			Family: nft.FamilyInet, Table: table, Set: published, Owner: note,
			Match: []string{p.Address.String(), port.Protocol, number(port.ContainerPort)},
		}
		fragment[leads.Key()], fragment[passes.Key()] = leads, passes
	}
	return fragment
}

func hostPortSets() []nft.Item {
	return []nft.Item{
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: hostPorts, Type: "inet_proto . inet_service", Value: "ipv4_addr . inet_service"},
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: hostPortsAt, Type: "ipv4_addr . inet_proto . inet_service", Value: "ipv4_addr . inet_service"},
		&nft.Set{Family: nft.FamilyInet, Table: table, Name: services, Type: "ipv4_addr"},
		&nft.Set{Family: nft.FamilyInet, Table: table, Name: published, Type: "ipv4_addr . inet_proto . inet_service"},
	}
}

// Service returns what a Service adds to the node's rules: its addresses lead to no host port.
func Service(addresses []netip.Addr) map[nft.Key]nft.Item {
	fragment := map[nft.Key]nft.Item{}
	for _, a := range addresses {
		if a.Is4() {
			e := &nft.Element{Family: nft.FamilyInet, Table: table, Set: services, Match: []string{a.String()}}
			fragment[e.Key()] = e
		}
	}
	return fragment
}

// hostPortRules translates host ports to pods: only packets for an address of the node itself; of the loopback range only 127.0.0.1, and
// only for the node. Packets of tunnels and those to
// Services' addresses are never translated. Sources become the host's two addresses, because pods have a route by the host to no others.
func hostPortRules(tunnels []uint16) map[nft.Chain][]string {
	var lead []string
	for _, port := range tunnels {
		lead = append(lead, fmt.Sprintf("udp dport %d return", port))
	}
	lead = append(lead,
		// kube-proxy may put the Services' addresses on the node and translate them only later (IPVS).
		"ip daddr @"+services+" return",
		"meta nfproto ipv4 fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @"+hostPortsAt,
		"meta nfproto ipv4 fib daddr type local dnat ip to meta l4proto . th dport map @"+hostPorts,
	)
	nat := func(name string, hook nft.Hook, priority int) nft.Chain {
		return nft.Chain{Family: nft.FamilyInet, Name: name, Type: nft.TypeNAT, Hook: hook, Priority: priority}
	}
	return map[nft.Chain][]string{
		nat("hostports-in", nft.HookPrerouting, priorityDNAT): append([]string{
			fmt.Sprintf(`iifname "%s" return`, Device), "ip daddr 127.0.0.0/8 return",
		}, lead...),
		nat("hostports-out", nft.HookOutput, priorityDNAT): append([]string{"ip daddr 127.0.0.0/8 ip daddr != 127.0.0.1 return"}, lead...),
		nat("hostports-from", nft.HookPostrouting, priorityFirst): {
			toHostPort + " fib saddr type local snat ip to " + pipeline.HostAddress().String(),
			toHostPort + " snat ip to " + pipeline.OutsideAddress().String(),
		},
	}
}
