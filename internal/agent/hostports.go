package agent

import (
	"net"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/liveness"
	"weft.dev/weft/internal/overlay"
)

// reservedPorts returns the ports of the node that no pod may have, for an agent that serves its health at that address.
func reservedPorts(healthAddress string) []overlay.ReservedPort {
	reserved := []overlay.ReservedPort{{
		// Other nodes take one that does not answer there for gone, and its egress addresses elsewhere.
		Port: cni.HostPort{Port: liveness.Port, Protocol: "tcp"}, For: "other nodes, which ask there whether this one is alive",
	}}
	at, number, err := net.SplitHostPort(healthAddress)
	if err != nil {
		return reserved // none, or the agent does not start
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

// reservedFor says for what a port of the node is kept from pods: "" if it is not.
func (a *agent) reservedFor(port cni.HostPort) string {
	for _, r := range reservedPorts(a.opts.HealthAddress) {
		if r.Port.Overlaps(port) {
			return r.For
		}
	}
	return ""
}
