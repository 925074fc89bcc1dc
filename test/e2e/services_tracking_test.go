//go:build lab

package e2e

import (
	"context"
	"strings"
	"testing"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/traffic"
)

// Traffic that is not a Service's passes unchanged and without connection tracking, unless it goes directly to a port where endpoints of
// a Service answer. ICMP errors about it arrive.
func TestOnlyServicesAreTracked(t *testing.T) {
	s := newServiceScene(t, "tracked")
	vip := port(s.simple(t, "tracked", nil, at(s.here), at(s.there)), 80)
	settles(t, s.near.Netns, vip, "here", "there")
	settles(t, s.far.Netns, vip, "here", "there")
	const other = 7070 // no Service has an endpoint there
	clients := []string{s.near.Netns, s.far.Netns, s.cluster.Node(1).Netns, s.cluster.Node(2).Netns}
	for _, p := range []*lab.Pod{s.here, s.there} {
		startSourceServer(t, p.Netns, p.Name, other)
		for _, from := range clients {
			for _, network := range []string{"tcp", "udp"} {
				for _, number := range []uint16{other, sourcePort} {
					to := port(p.IPs[0], number)
					await(t, network+" straight to "+to.String(), func(ctx context.Context) error {
						_, err := traffic.Ask(ctx, from, network, to)
						return err
					})
				}
				refused(t, from, port(p.IPs[0], 9), network)
			}
		}
	}
	for _, n := range s.cluster.Nodes() {
		shown := false
		out := mustRun(t, n.Enter("ovs-appctl", "dpctl/dump-conntrack", "zone=65280"))
		for line := range strings.Lines(out) {
			shown = shown || strings.Contains(line, "dst="+vip.Addr().String()+",")
			if strings.Contains(line, "port=7070") || strings.Contains(line, "port=9,") || strings.Contains(line, "port=9)") {
				t.Errorf("%s tracks a connection that is not a Service's: %s", n.Name, line)
			}
		}
		if !shown {
			t.Errorf("%s does not show the Service's connections", n.Name)
		}
	}
}
