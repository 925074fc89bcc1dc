//go:build real

package pipeline_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
)

const toGroup = "dl_dst=01:00:5e:01:02:03,"

// fromPod returns a datagram of a pod to a group.
func fromPod(pod pipeline.Pod) string {
	return fmt.Sprintf("in_port=%d,dl_src=%s,%sudp,nw_src=%s,nw_dst=239.1.2.3,udp_dst=5000", pod.OFPort, pipeline.PodMAC(pod.Addrs[0]), toGroup, pod.Addrs[0])
}

// byTunnel returns a datagram to a group from the tunnel.
func byTunnel(node, from string, vni uint32) string {
	return fmt.Sprintf("in_port=1,tun_src=%s,tun_dst=192.0.2.1,tun_id=%d,dl_src=0a:58:0a:81:00:07,%sudp,nw_src=%s,nw_dst=239.1.2.3,udp_dst=5000", node, vni, toGroup, from)
}

// TestMulticastMatrix traces in a real switch where multicast of each sender goes, in both modes.
func TestMulticastMatrix(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy} {
		c, pods := multicastSample(mode), multicastPods()
		s := startWith(t, sorted(multicastSections(c)), len(pods))
		spoofed, other := pods[0], pods[0]
		spoofed.Addrs = addrs("10.128.0.6")
		other.OFPort = pods[2].OFPort
		for _, test := range []struct {
			name, packet string
			want         []string
		}{
			{"of the first pod", fromPod(pods[0]), []string{"1", "4"}},
			{"of the second pod", fromPod(pods[1]), []string{"1", "3"}},
			{"of a project without", fromPod(pods[2]), nil},
			{"with another's address", fromPod(spoofed), nil},
			{"by another's port", fromPod(other), nil},
			{"of IGMP", strings.Replace(fromPod(pods[0]), "udp,", "ip,nw_proto=2,", 1)[:strings.LastIndex(strings.Replace(fromPod(pods[0]), "udp,", "ip,nw_proto=2,", 1), ",udp_dst")], []string{"1", "4"}},
			{"in a frame to one receiver", strings.Replace(fromPod(pods[0]), toGroup, "dl_dst=0a:58:0a:80:00:01,", 1), nil},
			{"in a broadcast", strings.Replace(fromPod(pods[0]), toGroup, "dl_dst=ff:ff:ff:ff:ff:ff,", 1), nil},
			{"a fragment", strings.Replace(fromPod(pods[0]), ",udp_dst=5000", ",nw_frag=later", 1), []string{"1", "4"}},
			{"of the host", "in_port=2,dl_src=0a:58:0a:80:00:01," + toGroup + "udp,nw_src=10.128.0.1,nw_dst=239.1.2.3,udp_dst=5000", nil},
			{"by the tunnel", byTunnel("192.0.2.2", "10.129.0.7", 42), []string{"3", "4"}},
			{"by the tunnel, of a project without", byTunnel("192.0.2.2", "10.129.0.7", 77), nil},
			{"by the tunnel, VNI 0", byTunnel("192.0.2.2", "10.129.0.7", 0), nil},
			{"by the tunnel, with an address of this node", byTunnel("192.0.2.2", "10.128.0.5", 42), nil},
			{"by the tunnel, from a foreign host", byTunnel("192.0.2.77", "10.129.0.7", 42), nil},
			{"by the tunnel, of a host that is no node", byTunnel("192.0.2.9", "10.130.0.7", 42), nil},
		} {
			o := s.trace(t, test.packet)
			got := slices.Clone(o.outputs)
			if skipped := strings.Count(o.text, notByInPort); skipped > 0 { // the sender's own port is in the list
				got = slices.DeleteFunc(got, func(port string) bool { return strings.Contains(test.packet, "in_port="+port+",") })
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s, multicast %s leaves by %v, want %v\n%s", mode, test.name, got, test.want, o.text)
			}
			if slices.Contains(test.want, "1") && (!strings.Contains(o.text, "NXM_NX_TUN_ID[0..31] is now 0x2a") || !strings.Contains(o.text, "set_field:192.0.2.2->tun_dst") || strings.Contains(o.text, "192.0.2.9")) {
				t.Errorf("%s, multicast %s goes by another tunnel\n%s", mode, test.name, o.text)
			}
		}
	}
}

// TestMulticastParts traces lists in a real switch that do not fit one flow.
func TestMulticastParts(t *testing.T) {
	const many = 2500
	c, pods := multicastSample(pipeline.ModeMultitenant), multicastPods()
	var list []pipeline.MulticastMember
	var remotes []pipeline.Remote
	for i := range many {
		list = append(list, pipeline.MulticastMember{OFPort: uint32(3 + i), Addr: netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)})})
		remotes = append(remotes, pipeline.Remote{
			UID: fmt.Sprint(i), NodeIP: netip.AddrFrom4([4]byte{192, 1, byte(i >> 8), byte(i)}),
			Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 129, byte(i >> 8), byte(i)}), 32),
		})
	}
	var flows []*openflow.Flow
	for _, rules := range [][]openflow.Rule{c.StaticRules(), c.PodRules(pods[0]), (pipeline.Multicast{Config: c}).ProjectRules(42, list), (pipeline.Multicast{Config: c}).NodesRules(remotes)} {
		for _, r := range rules {
			flows = append(flows, r.Flow)
		}
	}
	s := startWith(t, flows, len(pods))
	o := s.trace(t, fromPod(pods[0]))
	tunnels, locals := 0, map[string]bool{}
	for _, port := range o.outputs {
		if port == "1" {
			tunnels++
		} else {
			locals[port] = true
		}
	}
	// The sender's own port is in the list, and is skipped.
	if tunnels != many || len(locals) != many || !strings.Contains(o.text, notByInPort) {
		t.Errorf("%d copies by the tunnel and %d to pods, want %d and %d", tunnels, len(locals), many, many)
	}
}
