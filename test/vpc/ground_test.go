//go:build lab

package vpc

import (
	"context"
	"fmt"
	"testing"

	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
)

// TestGround proves what the tests of VPCs rely on, without Weft: OVN forwards between the nodes of a lab, and a macvlan of a node's ens37
// reaches the host in the outside network and the lab's outside, which see its address.
func TestGround(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := labs.Up(ctx, t, lab.Config{WeftBin: weftBin, Name: "vpcground", Nodes: 2, Runtime: plan.RuntimeCNI, VPC: true, NoWeft: true})
	nbctl := append([]string{"ovn-nbctl", "--db=unix:" + plan.New(c.Config).RunPath("ovn", "nb.sock")}, "--timeout=60")
	must(ctx, t, append(nbctl, "ls-add", "s1")...)
	for i, n := range c.Nodes() {
		port, address := fmt.Sprintf("p%d", i+1), fmt.Sprintf("10.0.1.1%d", i+1)
		mac := fmt.Sprintf("0a:00:00:00:01:0%d", i+1)
		must(ctx, t, append(nbctl, "lsp-add", "s1", port, "--", "lsp-set-addresses", port, mac+" "+address)...)
		for _, argv := range [][]string{
			{"ip", "netns", "add", "pod"},
			{"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", "pod"},
			{"ip", "-n", "pod", "link", "set", "eth0", "address", mac, "mtu", "1400", "up"},
			{"ip", "-n", "pod", "addr", "add", address + "/24", "dev", "eth0"},
			{"ip", "link", "set", port, "up"},
			{"ovs-vsctl", "add-port", "br-int", port, "--", "set", "Interface", port, "external_ids:iface-id=" + port},
			{"ip", "link", "add", "link", "ens37", "name", "out0", "type", "macvlan", "mode", "bridge"},
			{"ip", "link", "set", "out0", "netns", "pod"},
			{"ip", "-n", "pod", "link", "set", "out0", "up"},
			{"ip", "-n", "pod", "addr", "add", fmt.Sprintf("192.168.100.23%d/24", i), "dev", "out0"},
			{"ip", "-n", "pod", "route", "add", "default", "via", "192.168.100.1"},
		} {
			must(ctx, t, n.Enter(argv...)...)
		}
	}
	testwait.Eventually(t, "10.0.1.11 reaches 10.0.1.12 on the other node", func() error {
		_, err := probe.Output(ctx, c.Node(1).Enter("ip", "netns", "exec", "pod", "ping", "-n", "-c", "1", "-W", "2", "10.0.1.12")...)
		return err
	})
	for i, n := range c.Nodes() {
		for _, to := range []lab.Outside{c.External, c.Outside} {
			testwait.Eventually(t, n.Name+" to "+to.URL, func() error {
				seen, err := probe.Output(ctx, n.Enter("ip", "netns", "exec", "pod", "curl", "-s", "-S", "--max-time", "5", to.URL)...)
				if want := fmt.Sprintf("192.168.100.23%d", i); err == nil && seen != want {
					err = fmt.Errorf("saw %s, want %s", seen, want)
				}
				return err
			})
		}
	}
}
