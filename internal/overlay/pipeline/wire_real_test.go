//go:build real

package pipeline_test

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/overlay/pipeline"
)

// In both modes with VNIDs the VNI on the wire is the sender's VNID, and the source VNID of a packet from the tunnel is its VNI. In a flat
// network both are 0.
func TestVNIDsOnTheWire(t *testing.T) {
	for mode, carries := range map[pipeline.Mode]bool{pipeline.ModeSubnet: false, pipeline.ModeMultitenant: true, pipeline.ModeNetworkPolicy: true} {
		c := sample(true)
		c.Mode = mode
		sw := startWith(t, allFlows(c), 2)
		out := sw.trace(t, "in_port=4,tcp,dl_src=0a:58:0a:80:00:06,dl_dst=0a:58:0a:80:00:01,nw_src=10.128.0.6,nw_dst=10.129.0.7,tcp_dst=80,tcp_flags=syn", "--ct-next", "trk,new")
		if got := strings.Contains(out.text, "TUN_ID[0..31] is now 0x4d"); got != carries {
			t.Errorf("%s: the VNI is the pod's VNID: %t, want %t\n%s", mode, got, carries, out.text)
		}
		in := sw.trace(t, "in_port=1,tcp,tun_src=192.0.2.2,tun_dst=192.0.2.1,tun_id=0x4d,dl_src=0a:58:0a:81:00:07,dl_dst=0a:58:0a:80:00:06,nw_src=10.129.0.7,nw_dst=10.128.0.6,tcp_dst=80,tcp_flags=syn",
			"--ct-next", "trk,new")
		if got := strings.Contains(in.text, "REG0[] is now 0x4d"); got != carries {
			t.Errorf("%s: the source VNID is the VNI: %t, want %t\n%s", mode, got, carries, in.text)
		}
		if len(in.outputs) != 1 {
			t.Errorf("%s: a packet of the same project leaves by %v, want one port", mode, in.outputs)
		}
	}
}
