package host

import (
	"fmt"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
)

// Sets in the table inet weft-neutron: the pods' ports to which host ports are translated, and the addresses of Services.
const (
	published = "published"
	services  = "services"
)

// toHostPort matches packets that are translated to a pod's port, as long as host ports are translated to it. A Service that kube-proxy
// translates to that port opens nothing in addition. Packets to a Service's cluster address do not match: they are for the endpoint, which may
// be another tenant's pod with this address on another node.
const toHostPort = `oifname "` + Device + `" ct direction original ct status dnat ct original ip daddr != @` + services +
	` ip daddr . meta l4proto . th dport @` + published

// Published returns what the host ports of a pod with one address add to the node's rules: two elements for each port.
func Published(of *hostport.Published) map[nft.Key]nft.Item {
	fragment := of.Elements(table)
	for _, port := range of.Ports {
		passes := &nft.Element{
			Family: nft.FamilyInet, Table: table, Set: published, Owner: of.Note(),
			Match: []string{of.Addresses[0].String(), port.Protocol, strconv.Itoa(int(port.ContainerPort))},
		}
		fragment[passes.Key()] = passes
	}
	return fragment
}

func hostPortSets() []nft.Item {
	return append(hostport.Maps(table, hostport.IPv4()),
		&nft.Set{Family: nft.FamilyInet, Table: table, Name: services, Type: "ipv4_addr"},
		&nft.Set{Family: nft.FamilyInet, Table: table, Name: published, Type: "ipv4_addr . inet_proto . inet_service"},
	)
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

// hostPortChains translates host ports to pods: not those in the tenants' packets, in packets of tunnels, or at Services' addresses. Sources
// become the host's two addresses, because pods have a route by the host to no others.
func hostPortChains(tunnels []uint16) []hostport.Chain {
	// kube-proxy may put the Services' addresses on the node and translate them only later (IPVS).
	received, own := hostport.Chains([]hostport.Family{hostport.IPv4()}, tunnels, "ip daddr @"+services+" return")
	received.Rules = append([]string{fmt.Sprintf(`iifname "%s" return`, Device)}, received.Rules...)
	sources := nft.Chain{Family: nft.FamilyInet, Name: "hostports-from", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: priorityFirst}
	return []hostport.Chain{received, own, {Chain: sources, Rules: []string{
		toHostPort + " fib saddr type local snat ip to " + pipeline.HostAddress().String(),
		toHostPort + " snat ip to " + pipeline.OutsideAddress().String(),
	}}}
}
