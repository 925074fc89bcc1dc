//go:build real

package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// In every mode, pods reach neither the metadata service, except its name server, nor the ports that serve ignition files: neither
// directly, nor at the gateway of this node or of another. The host receives such a packet only to reject it.
func TestPodsReachNoNodeSecrets(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeSubnet, pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy} {
		c := sample(true)
		c.Mode = mode
		sw := startWith(t, allFlows(c), 2)
		const (
			pod = "in_port=3,dl_src=0a:58:0a:80:00:05,dl_dst=0a:58:0a:80:00:01,nw_src=10.128.0.5,"
			far = "in_port=1,tun_src=192.0.2.2,tun_dst=192.0.2.1,tun_id=0,dl_src=0a:58:0a:81:00:05,dl_dst=0a:58:0a:80:00:01,nw_src=10.129.0.5,"
		)
		for flow, reaches := range map[string]bool{
			"tcp," + pod + "nw_dst=169.254.169.254,tcp_dst=80,tcp_flags=syn":              false,
			"tcp," + pod + "nw_dst=169.254.169.254,tcp_dst=80,tcp_flags=ack":              false,
			"udp," + pod + "nw_dst=169.254.169.254,udp_dst=80":                            false,
			"icmp," + pod + "nw_dst=169.254.169.254,icmp_type=8":                          false,
			"udp," + pod + "nw_dst=169.254.169.254,nw_frag=later":                         false,
			"udp," + pod + "nw_dst=169.254.169.254,udp_dst=53":                            true,
			"tcp," + pod + "nw_dst=169.254.169.254,tcp_dst=53,tcp_flags=syn":              true,
			"tcp," + pod + "nw_dst=169.254.169.253,tcp_dst=80,tcp_flags=syn":              true,
			"tcp," + pod + "nw_dst=192.0.2.1,tcp_dst=22623,tcp_flags=syn":                 false,
			"tcp," + pod + "nw_dst=192.0.2.2,tcp_dst=22624,tcp_flags=syn":                 false,
			"tcp," + pod + "nw_dst=192.0.2.2,tcp_dst=22625,tcp_flags=syn":                 true,
			"tcp," + pod + "nw_dst=192.0.2.2,tcp_dst=22623,tcp_flags=0x0c2":               false, // SYN with ECN
			"tcp," + pod + "nw_dst=198.51.100.1,tcp_src=80,tcp_dst=22623,tcp_flags=0x012": true,  // a reply to a client outside
			"tcp," + pod + "nw_dst=10.128.0.1,tcp_dst=22623,tcp_flags=syn":                false,
			"tcp," + pod + "nw_dst=10.128.0.1,tcp_dst=80,tcp_flags=syn":                   true,
			"tcp," + far + "nw_dst=10.128.0.1,tcp_dst=22623,tcp_flags=syn":                false,
		} {
			o := sw.trace(t, flow, "--ct-next", "trk,new", "--ct-next", "trk,new")
			rejected := strings.Contains(o.text, "0a:58:00:00:00:01->eth_src")
			if got := slices.Contains(o.outputs, "2") && !rejected; got != reaches {
				t.Errorf("%s: %s: reaches the host: %t, want %t: %s", mode, flow, got, reaches, o.tables)
			}
			if !reaches && !rejected {
				t.Errorf("%s: %s: is not rejected: %s", mode, flow, o.tables)
			}
		}
	}
}

// A Service leads pods neither to the metadata service, except its name server, nor to the closed ports of nodes: its endpoint is checked as
// if the pod had connected to it.
func TestServicesLeadToNoNodeSecrets(t *testing.T) {
	n := startNode(t, 1)
	n.in(n.NetNS, "nft", rejectRules())
	n.in(n.NetNS, "ip", "addr", "add", "169.254.169.254/32", "dev", "lo")
	endpoints := map[string]bool{
		"192.0.2.1:22623": false, "192.0.2.1:22624": false, "192.0.2.1:22625": true, "169.254.169.254:80": false, "169.254.169.254:53": true,
	}
	var list []service.VirtualAddress
	addresses := map[string]string{}
	for endpoint := range endpoints {
		n.serve(n.NetNS, "host", "tcp", endpoint)
		name, address := fmt.Sprintf("s%d", len(list)), fmt.Sprintf("172.30.0.%d", 40+len(list))
		addresses[endpoint] = address + ":80"
		list = append(list, vip(name, address, transport.TCP, 80, endpoint))
	}
	n.apply(list...)
	for endpoint, passes := range endpoints {
		got, err := n.ask("a", "tcp", addresses[endpoint])
		if passes && (err != nil || got != "host sees 10.128.0.5") || !passes && !refused(err) {
			t.Errorf("a Service with endpoint %s: %q (%v), passes: want %t", endpoint, got, err, passes)
		}
	}
}
