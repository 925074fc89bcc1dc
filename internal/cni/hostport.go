package cni

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// PortMapping is an element of RuntimeConfig.PortMappings as runtimes write it.
type PortMapping struct {
	// HostPort is the node's port. 0: the container's port is not published.
	HostPort int `json:"hostPort"`
	// ContainerPort is the pod's port.
	ContainerPort int `json:"containerPort"`
	// Protocol is tcp, udp or sctp, in any case; empty is tcp.
	Protocol string `json:"protocol,omitempty"`
	// HostIP is the node's address of the port; empty: all of the node's addresses; 0.0.0.0 or ::, those of one family.
	HostIP string `json:"hostIP,omitempty"`
}

// HostPort is a port of the node that is forwarded to a port of a pod.
type HostPort struct {
	// Address is the node's address of the port; invalid: all of the node's addresses; 0.0.0.0 or ::, those of one family.
	Address netip.Addr `json:"hostIP,omitzero"`
	// Port is the node's port. Protocol is "tcp", "udp" or "sctp". ContainerPort is the pod's port.
	Port          uint16 `json:"hostPort"`
	Protocol      string `json:"protocol"`
	ContainerPort uint16 `json:"containerPort"`
}

// maxHostPorts is the maximum number of host ports of one pod.
const maxHostPorts = 512

// String returns the port as "8080/tcp", "192.0.2.1:8080/tcp", or "[2001:db8::1]:8080/tcp".
func (h HostPort) String() string {
	if h.Address.IsValid() {
		return netip.AddrPortFrom(h.Address, h.Port).String() + "/" + h.Protocol
	}
	return fmt.Sprintf("%d/%s", h.Port, h.Protocol)
}

// Overlaps reports whether a packet could match both.
func (h HostPort) Overlaps(o HostPort) bool {
	return h.Port == o.Port && h.Protocol == o.Protocol && (h.At(o.Address) || o.At(h.Address))
}

// At reports whether the port is open at all addresses for which another one stands: one address of the node, or all of a family.
func (h HostPort) At(address netip.Addr) bool {
	return !h.Address.IsValid() || h.Address == address || h.Address.IsUnspecified() && address.IsValid() && h.Address.Is4() == address.Is4()
}

// AtOne reports whether the port is open at one address of the node only.
func (h HostPort) AtOne() bool { return h.Address.IsValid() && !h.Address.IsUnspecified() }

// ValidHostPorts reports whether ParsePortMappings can have returned the list.
func ValidHostPorts(list []HostPort) bool {
	if len(list) > maxHostPorts {
		return false
	}
	for i, h := range list {
		if h.Port == 0 || h.ContainerPort == 0 || !isProtocol(h.Protocol) || h.Address.IsValid() && !validHostIP(h.Address) {
			return false
		}
		if slices.Contains(list[:i], h) || slices.ContainsFunc(list[:i], h.contradicts) {
			return false
		}
	}
	return true
}

// validHostIP reports whether a host port can be at the address.
func validHostIP(a netip.Addr) bool { return !a.Is4In6() && a.Zone() == "" }

func isProtocol(s string) bool { return s == "tcp" || s == "udp" || s == "sctp" }

// contradicts reports whether both are the same port of the node, and lead to different ports of the pod. One at all addresses and one at a
// single address differ: the latter has priority.
func (h HostPort) contradicts(o HostPort) bool {
	return h.ContainerPort != o.ContainerPort && h.AtOne() == o.AtOne() && h.Overlaps(o)
}

// ParsePortMappings parses the mappings of a runtime. It leaves out mappings without a port of the node, and duplicates. An error has
// CodeInvalidConfig, or CodeUnsupportedField, and names the field. Without ipv6, a mapping at an IPv6 address is an error, and one at 0.0.0.0
// is at all addresses.
func ParsePortMappings(mappings []PortMapping, ipv6 bool) ([]HostPort, error) {
	var list []HostPort
	for i, mapping := range mappings {
		if mapping.HostPort == 0 {
			continue
		}
		port, err := mapping.parse(fmt.Sprintf("network configuration: runtimeConfig.portMappings[%d]", i), ipv6)
		if err != nil {
			return nil, err
		}
		if at := slices.IndexFunc(list, port.contradicts); at >= 0 {
			return nil, Errorf(CodeInvalidConfig, "network configuration: runtimeConfig.portMappings[%d]: host port %s leads to container port %d already",
				i, port, list[at].ContainerPort)
		}
		if slices.Contains(list, port) {
			continue
		}
		if len(list) == maxHostPorts {
			return nil, Errorf(CodeInvalidConfig, "network configuration: runtimeConfig.portMappings: a pod has at most %d host ports", maxHostPorts)
		}
		list = append(list, port)
	}
	return list, nil
}

// parse parses one mapping. field is its name in errors.
func (m PortMapping) parse(field string, ipv6 bool) (HostPort, error) {
	port := HostPort{Protocol: strings.ToLower(m.Protocol)}
	if m.Protocol == "" {
		port.Protocol = "tcp"
	}
	if !isProtocol(port.Protocol) {
		return port, Errorf(CodeInvalidConfig, "%s.protocol: %.64q: it is tcp, udp or sctp", field, m.Protocol)
	}
	for _, number := range []struct {
		name string
		from int
		to   *uint16
	}{{"hostPort", m.HostPort, &port.Port}, {"containerPort", m.ContainerPort, &port.ContainerPort}} {
		if number.from < 1 || number.from > math.MaxUint16 {
			return port, Errorf(CodeInvalidConfig, "%s.%s: %d: it is a number from 1 to %d", field, number.name, number.from, math.MaxUint16)
		}
		*number.to = uint16(number.from) //nolint:gosec // bounded
	}
	if m.HostIP == "" {
		return port, nil
	}
	address, err := netip.ParseAddr(m.HostIP)
	switch {
	case err != nil:
		return port, Errorf(CodeInvalidConfig, "%s.hostIP: %.64q is not an IP address", field, m.HostIP)
	case address.Is4In6() || address.Zone() != "":
		return port, Errorf(CodeUnsupportedField, "%s.hostIP: %s: write an IPv4 address as 192.0.2.1, and an IPv6 address without a zone", field, address)
	case !address.Is4() && !ipv6:
		return port, Errorf(CodeUnsupportedField, "%s.hostIP: %s: pods have IPv4 addresses only; leave it out, or name an IPv4 address of the node", field, address)
	case address.IsLoopback() && address != netip.AddrFrom4([4]byte{127, 0, 0, 1}):
		return port, Errorf(CodeUnsupportedField, "%s.hostIP: %s: of the loopback range, only 127.0.0.1 can have host ports", field, address)
	case ipv6 || !address.IsUnspecified():
		port.Address = address
	}
	return port, nil
}
