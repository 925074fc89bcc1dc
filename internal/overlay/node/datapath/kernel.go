package datapath

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
)

// Kernel is the node's own kernel, which tracks the connections to host ports.
type Kernel struct{}

// ForgetHostPorts implements hostports.Connections. TCP is left out: a client that connects again begins a new connection. Packets of UDP
// and SCTP would continue with the former one.
func (Kernel) ForgetHostPorts(ports ...cni.HostPort) error {
	var udp, sctp []netip.AddrPort
	for _, port := range ports {
		at := netip.AddrPortFrom(port.Address, port.Port)
		switch port.Protocol {
		case "udp":
			udp = append(udp, at)
		case "sctp":
			sctp = append(sctp, at)
		}
	}
	return errors.Join(link.ForgetTo(unix.IPPROTO_UDP, udp...), link.ForgetTo(unix.IPPROTO_SCTP, sctp...))
}

// ForgetTranslatedTo implements hostports.Connections.
func (Kernel) ForgetTranslatedTo(pods ...netip.Addr) error { return link.ForgetLedTo(pods...) }

// Uplink implements egress.Uplink by the node's own interface and kernel.
type Uplink struct{}

// Announce implements egress.Uplink.
func (Uplink) Announce(device string, addresses ...netip.Addr) error {
	return link.Announce(device, addresses...)
}

// Forget implements egress.Uplink.
func (Uplink) Forget(addresses ...netip.Addr) error { return link.ForgetTranslated(addresses...) }
