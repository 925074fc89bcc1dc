package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A node's tunnels end at its first IPv4 InternalIP, whatever other addresses it has before.
func TestNodeAddress(t *testing.T) {
	internal := func(text string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: text}
	}
	other := corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.7"}
	for name, c := range map[string]struct {
		addresses []corev1.NodeAddress
		want      string
	}{
		"IPv4":                    {[]corev1.NodeAddress{other, internal("192.0.2.1"), internal("192.0.2.2")}, "192.0.2.1"},
		"dual stack, IPv4 first":  {[]corev1.NodeAddress{internal("192.0.2.1"), internal("fd00::1")}, "192.0.2.1"},
		"dual stack, IPv6 first":  {[]corev1.NodeAddress{internal("fd00::1"), other, internal("192.0.2.1")}, "192.0.2.1"},
		"IPv6, for the message":   {[]corev1.NodeAddress{internal("fd00::1"), internal("fd00::2"), other}, "fd00::1"},
		"nonsense, for the same":  {[]corev1.NodeAddress{internal("worker-1")}, "worker-1"},
		"no internal address yet": {[]corev1.NodeAddress{other}, ""},
	} {
		if got := nodeValue(&corev1.Node{Status: corev1.NodeStatus{Addresses: c.addresses}}); got.Address != c.want {
			t.Errorf("%s: %q, want %q", name, got.Address, c.want)
		}
	}
}
