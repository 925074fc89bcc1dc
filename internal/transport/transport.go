// Package transport has the transport protocols of Kubernetes' objects.
package transport

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Protocol is a transport protocol, by its number in an IP header.
type Protocol uint8

// The protocols that Services and NetworkPolicies name.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Of returns the protocol that an object names, or false for an unknown one.
func Of(name corev1.Protocol) (Protocol, bool) {
	switch name {
	case corev1.ProtocolTCP:
		return TCP, true
	case corev1.ProtocolUDP:
		return UDP, true
	case corev1.ProtocolSCTP:
		return SCTP, true
	default:
		return 0, false
	}
}

// String returns the protocol's name as Kubernetes writes it.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return string(corev1.ProtocolTCP)
	case UDP:
		return string(corev1.ProtocolUDP)
	case SCTP:
		return string(corev1.ProtocolSCTP)
	default:
		return "protocol " + strconv.Itoa(int(p))
	}
}
