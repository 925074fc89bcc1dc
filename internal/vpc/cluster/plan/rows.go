package plan

import (
	"maps"
	"net/netip"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// readyPorts is how many logical ports of each subnet are in the database before a pod needs them. A pod that uses one waits only for
// ovn-controller, not for a computation of northd.
const readyPorts = 8

// rows are the rows of what a plan computes.
type rows struct {
	network   *topology.Network
	fragments map[string]northbound.Rows // by owner
}

// addSwitch adds a Subnet without the ports of its pods; no rows, if it has none.
func (r *rows) addSwitch(s *topology.Subnet) {
	if !s.Switched() {
		r.fragments[s.Value.Owner()] = nil
		return
	}
	of := northbound.Switch(&s.Value, r.network.VPC(s.Value.VPC).Value.Meta)
	put := func(port northbound.Port) {
		key, row := northbound.SwitchPort(&s.Value, port)
		of[key] = row
	}
	for _, addr := range s.Pool.Ahead(readyPorts) {
		put(northbound.Port{Addr: addr})
	}
	for _, addr := range s.LanIPs { // ready before the gateways' pods
		put(northbound.Port{Addr: addr, Gateway: true})
	}
	r.fragments[s.Value.Owner()] = of
}

// addRouter adds a VPC, and records the problems that other objects cause; no rows, if it has none.
func (r *rows) addRouter(v *topology.VPC) northbound.Result {
	if !v.Exists {
		r.fragments[v.Value.Owner()] = nil
		return northbound.Result{}
	}
	n := &northbound.Network{VPC: v.Value, Remotes: map[string]objects.VPC{}}
	for _, s := range v.Subnets {
		n.Subnets = append(n.Subnets, s.Value)
	}
	for _, peering := range v.Value.Peerings {
		if remote := r.network.VPC(peering.Remote); remote != nil && remote.Exists {
			n.Remotes[peering.Remote] = remote.Value
		}
	}
	result := northbound.Router(n)
	r.fragments[v.Value.Owner()] = result.Rows
	v.Report(result.Problems)
	return result
}

// place returns the Subnet and the address of an IP object's port; nil: it has none.
func (r *rows) place(ip *kubeovn.IP) (*topology.Subnet, netip.Addr) {
	s := r.network.SubnetOf(ip.Spec.SubnetUID)
	addr, err := objects.AddressOf(ip)
	if err != nil || s == nil || !s.Switched() {
		return nil, addr
	}
	return s, addr
}

// addPort adds the port of a pod, which is closed in the given directions.
func (r *rows) addPort(s *topology.Subnet, addr netip.Addr, ip *kubeovn.IP, closed northbound.Closed) {
	port := northbound.Port{Addr: addr, Gateway: ip.Spec.NATGateway != ""}
	if ip.Spec.MacAddress != northbound.MAC(addr) { // not one of the ready ports
		port.MAC = ip.Spec.MacAddress
	}
	key, row := northbound.SwitchPort(&s.Value, port)
	of := r.fragments[s.Value.Owner()]
	of[key] = row
	if closed != (northbound.Closed{}) {
		maps.Copy(of, northbound.Isolation(&s.Value, addr, closed))
	}
}

// remove removes the rows of owners without an object, unless one of the same name and UID has rows again.
func (r *rows) remove(owners []string) {
	for _, owner := range owners {
		if _, there := r.fragments[owner]; !there {
			r.fragments[owner] = nil
		}
	}
}
