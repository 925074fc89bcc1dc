package hostsubnet

import (
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// TunnelPort is the UDP port of the node's tunnels. It is fixed once the node has a HostSubnet. A packet from a pod to the tunnel port of
// another node would arrive there from a known node's address, so all nodes use one port and close it to their pods. The API server refuses
// a change of vxlanPort. This type covers a ClusterNetwork that was deleted and created again with another port.
type TunnelPort struct {
	log *slog.Logger

	mu sync.Mutex
	// port is the port in effect with the HostSubnet of this UID; 0: none yet.
	port uint16
	uid  types.UID
	// refused is the message for a change that is refused; "": there is none.
	refused string
}

// NewTunnelPort returns a port that no HostSubnet has settled yet.
func NewTunnelPort(log *slog.Logger) *TunnelPort { return &TunnelPort{log: log} }

// Settle returns the port in effect: this agent's, else the port that an earlier agent of the node reported, else the ClusterNetwork's.
func (p *TunnelPort) Settle(wanted uint16, own *networkv1.HostSubnet) uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.port == 0 || p.uid != own.UID {
		p.port, p.uid = wanted, own.UID
		if reported := own.Status.VXLANPorts; len(reported) > 0 && reported[0] > 0 && reported[0] <= 65535 {
			p.port = uint16(reported[0])
		}
	}
	before := p.refused
	p.refused = ""
	if wanted != p.port {
		p.refused = fmt.Sprintf("ClusterNetwork %s: vxlanPort: %d is refused, tunnels stay at port %d: set it to %d again; "+
			"for another port, remove Weft from all nodes (weft cleanup), delete the ClusterNetwork and the HostSubnets, and install it again",
			networkv1.ClusterNetworkDefault, wanted, p.port, p.port)
	}
	if p.refused != "" && p.refused != before {
		p.log.Error("change of vxlanPort refused", "vxlan_port", wanted, "in_effect", p.port)
	}
	return p.port
}

// Reported returns the port for the node's HostSubnet: the port in effect; nil before there is one.
func (p *TunnelPort) Reported() []uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.port == 0 {
		return nil
	}
	return []uint16{p.port}
}

// Refusal returns the message for a change that is refused; "" for none.
func (p *TunnelPort) Refusal() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}
