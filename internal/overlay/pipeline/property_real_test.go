//go:build real

package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// packet is a frame from a pod's port, with a few values that matter and some that must not.
type packet struct {
	port                   int
	ethSrc, ethDst         string
	src, dst               string
	proto                  string
	protoSrc, protoDst     int
	tagged, arp, fragments bool
}

func (p packet) flow() string {
	frame := fmt.Sprintf("in_port=%d,dl_src=%s,dl_dst=%s,", p.port, p.ethSrc, p.ethDst)
	if p.tagged {
		frame += "dl_vlan=7,"
	}
	if p.arp {
		return frame + fmt.Sprintf("arp,arp_op=1,arp_sha=%s,arp_spa=%s,arp_tpa=%s", p.ethSrc, p.src, p.dst)
	}
	frame += fmt.Sprintf("%s,nw_src=%s,nw_dst=%s", p.proto, p.src, p.dst)
	if p.fragments {
		return frame + ",nw_frag=later"
	}
	if p.proto == "ip" {
		return frame
	}
	return frame + fmt.Sprintf(",%s_src=%d,%s_dst=%d", p.proto, p.protoSrc, p.proto, p.protoDst)
}

// truthful reports whether the packet has the addresses of the sample's pod at its port, independently of the flows.
func (p packet) truthful() bool {
	owner := map[int][2]string{3: {"0a:58:0a:80:00:05", "10.128.0.5"}, 4: {"0a:58:0a:80:00:06", "10.128.0.6"}}
	return owner[p.port] == [2]string{p.ethSrc, p.src} && !p.tagged
}

// leavesBy returns the port that a truthful packet leaves by, 0 for none.
func (p packet) leavesBy() int {
	local := map[string]int{"10.128.0.5": 3, "10.128.0.6": 4}[p.dst]
	remote := strings.HasPrefix(p.dst, "10.129.0.") || strings.HasPrefix(p.dst, "10.130.0.")
	var out int
	switch {
	case local == p.port:
		return 0 // a packet does not leave by its input port
	case local != 0:
		out = local
	case remote:
		out = 1
	case p.dst == "10.128.0.1":
		out = 2
	case p.arp || strings.HasPrefix(p.dst, "10.1") || slices.Contains([]string{"127.0.0.1", "255.255.255.255", "224.0.0.1", "0.0.0.0"}, p.dst):
		return 0
	default:
		out = 2
	}
	if p.arp {
		return out
	}
	ports := p.proto == "udp" && !p.fragments
	if p.ethDst[:2] == "01" || p.ethDst[:2] == "ff" || ports && p.protoSrc == 67 && p.protoDst == 68 || ports && p.protoDst == 4789 && out == 2 {
		return 0
	}
	return out
}

// Every packet of a pod leaves by the port that a simple implementation of the rules returns. A packet that is not truthful leaves by none,
// and does not get beyond table 20.
func TestPodsProperty(t *testing.T) {
	s := start(t, sample(false))
	macs := []string{"0a:58:0a:80:00:05", "0a:58:0a:80:00:06", "0a:58:0a:80:00:01", "0a:58:0a:81:00:07", "02:00:00:00:00:01", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff"}
	ips := []string{
		"10.128.0.5", "10.128.0.6", "10.128.0.1", "10.128.0.99", "10.129.0.7", "10.130.0.7", "10.131.0.7", "172.30.0.1", "192.0.2.1", "192.0.2.2",
		"198.51.100.10", "127.0.0.1", "255.255.255.255", "224.0.0.1", "0.0.0.0",
	}
	ports := []int{0, 53, 67, 68, 80, 4789, 65535}
	rapid.Check(t, func(r *rapid.T) {
		p := packet{
			port:   rapid.SampledFrom([]int{3, 4, 9}).Draw(r, "port"),
			ethSrc: rapid.SampledFrom(macs).Draw(r, "ethSrc"), ethDst: rapid.SampledFrom(macs).Draw(r, "ethDst"),
			src: rapid.SampledFrom(ips).Draw(r, "src"), dst: rapid.SampledFrom(ips).Draw(r, "dst"),
			proto:    rapid.SampledFrom([]string{"ip", "tcp", "udp"}).Draw(r, "proto"),
			protoSrc: rapid.SampledFrom(ports).Draw(r, "protoSrc"), protoDst: rapid.SampledFrom(ports).Draw(r, "protoDst"),
			tagged: rapid.IntRange(0, 9).Draw(r, "tagged") == 9, arp: rapid.Bool().Draw(r, "arp"),
			fragments: rapid.Bool().Draw(r, "fragments"),
		}
		if rapid.Bool().Draw(r, "honest") {
			p.port, p.ethSrc, p.src = 3, macs[0], ips[0]
		}
		o := s.trace(t, p.flow())
		var want []string
		if out := p.leavesBy(); p.truthful() && out != 0 {
			want = []string{fmt.Sprint(out)}
		}
		if !p.truthful() && strings.Contains(" "+o.tables+" ", " 30 ") {
			r.Fatalf("%s gets beyond table 20\n%s", p.flow(), o.text)
		}
		if got := o.leaving(); !slices.Equal(got, want) {
			r.Fatalf("%s leaves by %v, want %v\n%s", p.flow(), got, want, o.text)
		}
	})
}
