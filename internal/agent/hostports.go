package agent

import (
	"net"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/liveness"
	"weft.dev/weft/internal/overlay"
)

// reservedPorts returns the ports of the node that no pod may use, for an agent that serves its health at this address.
func reservedPorts(healthAddress string) []overlay.ReservedPort {
	reserved := []overlay.ReservedPort{{
		// Other nodes treat a node that does not answer there as gone, and its egress IPs as served elsewhere.
		Port: cni.HostPort{Port: liveness.Port, Protocol: "tcp"}, For: "other nodes, which ask there whether this one is alive",
	}}
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
	return append(reserved, overlay.ReservedPort{Port: health, For: "the agent's health and metrics"})
}

// reservedFor returns what a port of the node is reserved for; "" if it is not reserved.
func (a *agent) reservedFor(port cni.HostPort) string {
	for _, r := range reservedPorts(a.opts.HealthAddress) {
		if r.Port.Overlaps(port) {
			return r.For
		}
	}
	return ""
}
