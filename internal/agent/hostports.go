package agent

import (
	"net"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/agent/networks"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/liveness"
)

// reservedPort is a port of the node that no pod may have as a host port.
type reservedPort struct {
	port cni.HostPort
	// user is what it is reserved for: "the agent's health and metrics".
	user string
}

// reservedPorts returns the ports of the node that no pod may have, for an agent that serves its health at this address, on a node with
// tunnels at these UDP ports.
func reservedPorts(healthAddress string, tunnels []uint16) []reservedPort {
	reserved := []reservedPort{{
		// Other nodes treat a node that does not answer there as gone, and its egress IPs as served elsewhere.
		port: cni.HostPort{Port: liveness.Port, Protocol: "tcp"}, user: "other nodes, which ask there whether this one is alive",
	}}
	for _, port := range tunnels {
		// Host ports are translated before the kernel delivers a packet to a tunnel: a pod would receive what the node's other pods receive.
		reserved = append(reserved, reservedPort{cni.HostPort{Port: port, Protocol: "udp"}, "tunnels between nodes"})
	}
	at, number, err := net.SplitHostPort(healthAddress)
	if err != nil {
		return reserved // no address, or an invalid one, with which the agent does not start
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 {
		return reserved
	}
	health := cni.HostPort{Port: uint16(port), Protocol: "tcp"} //nolint:gosec // parsed as 16 bits
	if address, err := netip.ParseAddr(at); err == nil && address.Is4() && !address.IsUnspecified() {
		health.Address = address
	}
	return append(reserved, reservedPort{health, "the agent's health and metrics"})
}

// reservedFor returns what a port of the node is reserved for; "" if it is not reserved.
func (o *Options) reservedFor(port cni.HostPort, configured []uint16) string {
	for _, r := range reservedPorts(o.HealthAddress, append(networks.ClosedPorts(o.Networks), configured...)) {
		if r.port.Overlaps(port) {
			return r.user
		}
	}
	return ""
}

// reserved does the same with the ports of tunnels that networks' objects configure.
func (a *agent) reserved(port cni.HostPort) string {
	return a.opts.reservedFor(port, a.networks.TunnelPorts())
}
