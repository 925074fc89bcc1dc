package agent

import (
	"net/netip"
	"slices"
	"testing"

	"weft.dev/weft/internal/cni"
	flannel "weft.dev/weft/internal/flannel/node"
	"weft.dev/weft/internal/network"
	neutron "weft.dev/weft/internal/neutron/node"
)

func TestReservedPorts(t *testing.T) {
	tcp := func(port uint16, at string) cni.HostPort {
		p := cni.HostPort{Port: port, Protocol: "tcp", ContainerPort: 80}
		if at != "" {
			p.Address = netip.MustParseAddr(at)
		}
		return p
	}
	for _, c := range []struct {
		health string
		port   cni.HostPort
		want   bool
	}{
		{DefaultHealthAddress, tcp(9469, ""), true},
		{DefaultHealthAddress, tcp(9469, "127.0.0.1"), true},
		{DefaultHealthAddress, tcp(9469, "0.0.0.0"), true},
		{DefaultHealthAddress, tcp(9469, "::"), false},
		{DefaultHealthAddress, tcp(9469, "192.0.2.1"), false}, // the agent does not listen at this address
		{DefaultHealthAddress, tcp(9470, ""), false},
		{DefaultHealthAddress, cni.HostPort{Port: 9469, Protocol: "udp", ContainerPort: 80}, false},
		{":9500", tcp(9500, "192.0.2.1"), true},
		{"[::]:9500", tcp(9500, "192.0.2.1"), true},
		{"0.0.0.0:9500", tcp(9500, "192.0.2.1"), true},
		{"localhost:9500", tcp(9500, "127.0.0.1"), true},
		{"", tcp(9469, ""), false},
		{"", tcp(9, ""), true},
		{DefaultHealthAddress, tcp(9, "192.0.2.1"), true},
		{DefaultHealthAddress, cni.HostPort{Port: 9, Protocol: "udp", ContainerPort: 9}, false},
	} {
		got := slices.ContainsFunc(reservedPorts(c.health, nil), func(r reservedPort) bool { return r.port.Overlaps(c.port) })
		if got != c.want {
			t.Errorf("health at %q: %s kept: %t, want %t", c.health, c.port, got, c.want)
		}
	}
}

// The ports of tunnels of all networks that the agent serves are reserved.
func TestTunnelPortsAreReserved(t *testing.T) {
	o := Options{Networks: []network.Kind{flannel.Kind(flannel.KindOptions{}), neutron.Kind("n1")}}
	for port, want := range map[uint16]string{6081: "tunnels between nodes", 4789: "tunnels between nodes", 8472: "", 53: ""} {
		got := o.reservedFor(cni.HostPort{Address: netip.MustParseAddr("192.0.2.1"), Port: port, Protocol: "udp", ContainerPort: 53}, nil)
		if got != want {
			t.Errorf("%d/udp is reserved for %q, want %q", port, got, want)
		}
	}
	udp := cni.HostPort{Port: 8472, Protocol: "udp", ContainerPort: 53}
	if got := o.reservedFor(udp, []uint16{8472}); got != "tunnels between nodes" {
		t.Errorf("flannel's port is reserved for %q", got)
	}
	if got := o.reservedFor(cni.HostPort{Port: 6081, Protocol: "tcp", ContainerPort: 80}, nil); got != "" {
		t.Errorf("6081/tcp is reserved for %q", got)
	}
}
