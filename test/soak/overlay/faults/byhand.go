package faults

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
)

// guard is the lab's own rules for the userspace datapath, which are lost when all rules are flushed by hand.
const guard = `table inet weft-lab { chain prerouting { type filter hook prerouting priority -450; policy accept; meta iifgroup 77 drop; }; }
table arp weft-lab { chain input { type filter hook input priority -450; policy accept; meta iifgroup 77 drop; }; }`

// byHand are removals and changes by hand on a node.
func byHand() []Fault {
	command := func(name string, spares losses.Scope, opens bool, argv ...string) Fault {
		return Fault{Name: name, Spares: spares, Opens: opens, Do: func(ctx context.Context, _ *Scene, n lab.Node) (string, error) {
			_, err := probe.Run(ctx, n.Enter(argv...))
			return "", err
		}}
	}
	ofctl := func(name string, spares losses.Scope, opens bool, argv ...string) Fault {
		return command(name, spares, opens, append([]string{"ovs-ofctl", "-O", "OpenFlow15"}, argv...)...)
	}
	return []Fault{
		ofctl("all flows deleted", losses.Far, false, "del-flows", "br0"),
		ofctl("a table deleted", losses.Far, false, "del-flows", "br0", "table=20"),
		ofctl("a flow altered to drop", losses.Far, false, "mod-flows", "br0", "table=90,actions=drop"),
		ofctl("a flow altered to let everything in", losses.All, true, "--strict", "mod-flows", "br0", "table=20,priority=0,actions=NORMAL"),
		ofctl("a dropping flow added", losses.Far, false, "add-flow", "br0", "table=0,priority=5000,ip,actions=drop"),
		ofctl("a switching flow added", losses.Far, true, "add-flow", "br0", "table=0,priority=60000,actions=NORMAL"),
		ofctl("the note of the flows' hash deleted", losses.All, false, "del-flows", "br0", "table=253"),
		ofctl("all groups deleted", losses.Far, false, "del-groups", "br0"),
		ofctl("a group added", losses.All, false, "add-group", "br0", "group_id=77777,type=all,bucket=actions=drop"),
		command("the bridge deleted", losses.Far, false, "ovs-vsctl", "del-br", "br0"),
		command("the tunnel's port deleted", losses.Far, false, "ovs-vsctl", "del-port", "br0", "vxlan0"),
		command("the tunnel's options altered", losses.Local, false, "ovs-vsctl", "set", "Interface", "vxlan0", "options:remote_ip=192.0.2.1"),
		command("the host's port deleted", losses.Far, false, "ovs-vsctl", "del-port", "br0", "tun0"),
		{Name: "a pod's port deleted", Spares: losses.Far, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			_, name, err := probe.HostEnd(s.Cast.Pod("b1"))
			if err != nil {
				return "", err
			}
			_, err = probe.Run(ctx, n.Enter("ovs-vsctl", "del-port", "br0", name))
			return name, err
		}},
		{Name: "a pod's link set down on the node", Spares: losses.Far, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			_, name, err := probe.HostEnd(s.Cast.Pod("b1"))
			if err != nil {
				return "", err
			}
			_, err = probe.Run(ctx, n.Enter("ip", "link", "set", name, "down"))
			return name, err
		}},
		command("a stray port added", losses.All, false, "ovs-vsctl", "add-port", "br0", "wtstray", "--", "set", "Interface", "wtstray", "type=internal"),
		// The switch empties its tables whenever the mode changes (connmgr_set_fail_mode in Open vSwitch). For most packets, but not all, its
		// flow cache bridges that. Until the agent restores the mode, the bridge forwards everything.
		command("the bridge set to fail open", losses.Far, true, "ovs-vsctl", "set-fail-mode", "br0", "standalone"),
		command("a controller set on the bridge", losses.Far, false, "ovs-vsctl", "set-controller", "br0", "tcp:127.0.0.1:6653"),
		{Name: "the gateway's address removed", Spares: losses.All, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			gateway := netip.PrefixFrom(netip.PrefixFrom(s.Cast.Pod("attacker").IPs[0], 23).Masked().Addr().Next(), 23)
			_, err := probe.Run(ctx, n.Enter("ip", "addr", "del", gateway.String(), "dev", "tun0"))
			return "", err
		}},
		command("a route removed", losses.All, false, "ip", "route", "del", "10.128.0.0/14", "dev", "tun0"),
		command("tun0 set down", losses.All, false, "ip", "link", "set", "tun0", "down"),
		command("tun0's MTU altered", losses.All, false, "ip", "link", "set", "tun0", "mtu", "1400"),
		command("rules flushed", losses.All, true, "nft", "flush", "table", "inet", "weft"),
		command("rules deleted", losses.All, true, "nft", "delete", "table", "inet", "weft"),
		{Name: "the whole ruleset flushed", Spares: losses.All, Opens: true, Do: func(ctx context.Context, _ *Scene, n lab.Node) (string, error) {
			if _, err := probe.Run(ctx, n.Enter("nft", "flush", "ruleset")); err != nil {
				return "", err
			}
			_, err := probe.Run(ctx, n.Enter("nft", guard)) // the lab's rules, which Weft does not restore
			return "", err
		}},
		{Name: "another firewall that drops what is forwarded", Spares: losses.All, Do: otherFirewall},
	}
}

// otherFirewall starts a firewall like Docker's, and ends it.
func otherFirewall(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	defer func() {
		_, delErr := probe.Run(context.WithoutCancel(ctx), n.Enter("nft", "delete", "table", "ip", "wtother"))
		err = errors.Join(err, delErr)
	}()
	rules := `table ip wtother { chain FORWARD { type filter hook forward priority 0; policy drop; }; chain INPUT { type filter hook input priority 0; policy accept; }; }`
	if _, err := probe.Run(ctx, n.Enter("nft", rules)); err != nil {
		return "", err
	}
	begun := time.Now()
	err = s.Cast.Reach(ctx)
	return "opened after " + time.Since(begun).Round(time.Millisecond).String(), err
}
