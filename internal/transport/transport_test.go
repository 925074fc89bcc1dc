package transport_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/internal/transport"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[corev1.Protocol]transport.Protocol{"TCP": 6, "UDP": 17, "SCTP": 132} {
		got, known := transport.Of(name)
		if got != want || !known {
			t.Errorf("%q is %d, %v, want %d", name, got, known, want)
		}
		if got.String() != string(name) {
			t.Errorf("%d is called %q, want %q", got, got, name)
		}
	}
	for _, name := range []corev1.Protocol{"", "tcp", "ICMP", " "} {
		if got, known := transport.Of(name); known {
			t.Errorf("%q is %d, want it to be unknown", name, got)
		}
	}
	if got := transport.Protocol(1).String(); got != "protocol 1" {
		t.Errorf("protocol 1 is called %q", got)
	}
}
