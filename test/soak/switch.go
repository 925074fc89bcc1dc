package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
)

// guard is the lab's own rules for the userspace datapath, which are lost when all rules are flushed by hand.
const guard = `table inet weft-lab { chain prerouting { type filter hook prerouting priority -450; policy accept; meta iifgroup 77 drop; }; }
table arp weft-lab { chain input { type filter hook input priority -450; policy accept; meta iifgroup 77 drop; }; }`

// byHand are removals and changes by hand on a node.
func byHand() []fault {
	command := func(name string, spares losses.Scope, opens bool, argv ...string) fault {
		return fault{name: name, spares: spares, opens: opens, do: func(ctx context.Context, _ *soak, n lab.Node) (string, error) {
			_, err := probe.Run(ctx, n.Enter(argv...))
			return "", err
		}}
	}
	ofctl := func(name string, spares losses.Scope, opens bool, argv ...string) fault {
		return command(name, spares, opens, append([]string{"ovs-ofctl", "-O", "OpenFlow15"}, argv...)...)
	}
	return []fault{
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
		{name: "a pod's port deleted", spares: losses.Far, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			_, name, err := probe.HostEnd(s.cast.pods["b1"])
			if err != nil {
				return "", err
			}
			_, err = probe.Run(ctx, n.Enter("ovs-vsctl", "del-port", "br0", name))
			return name, err
		}},
		{name: "a pod's link set down on the node", spares: losses.Far, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			_, name, err := probe.HostEnd(s.cast.pods["b1"])
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
		{name: "the gateway's address removed", spares: losses.All, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			gateway := netip.PrefixFrom(s.siege.scene.Gateway.IP, 23)
			_, err := probe.Run(ctx, n.Enter("ip", "addr", "del", gateway.String(), "dev", "tun0"))
			return "", err
		}},
		command("a route removed", losses.All, false, "ip", "route", "del", "10.128.0.0/14", "dev", "tun0"),
		command("tun0 set down", losses.All, false, "ip", "link", "set", "tun0", "down"),
		command("tun0's MTU altered", losses.All, false, "ip", "link", "set", "tun0", "mtu", "1400"),
		command("rules flushed", losses.All, true, "nft", "flush", "table", "inet", "weft"),
		command("rules deleted", losses.All, true, "nft", "delete", "table", "inet", "weft"),
		{name: "the whole ruleset flushed", spares: losses.All, opens: true, do: func(ctx context.Context, _ *soak, n lab.Node) (string, error) {
			if _, err := probe.Run(ctx, n.Enter("nft", "flush", "ruleset")); err != nil {
				return "", err
			}
			_, err := probe.Run(ctx, n.Enter("nft", guard)) // the lab's rules, which Weft does not restore
			return "", err
		}},
		{name: "another firewall that drops what is forwarded", spares: losses.All, do: otherFirewall},
	}
}

// otherFirewall starts a firewall like Docker's, and ends it.
func otherFirewall(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	defer func() {
		_, delErr := probe.Run(context.WithoutCancel(ctx), n.Enter("nft", "delete", "table", "ip", "wtother"))
		err = errors.Join(err, delErr)
	}()
	rules := `table ip wtother { chain FORWARD { type filter hook forward priority 0; policy drop; }; chain INPUT { type filter hook input priority 0; policy accept; }; }`
	if _, err := probe.Run(ctx, n.Enter("nft", rules)); err != nil {
		return "", err
	}
	begun := time.Now()
	err = s.cast.reach(ctx)
	return "opened after " + time.Since(begun).Round(time.Millisecond).String(), err
}

// halfRecord truncates a pod's record as a power cut would. The agent rebuilds it from the runtime's result of the ADD, and the pod is
// not affected.
func halfRecord(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	p, err := s.pod(ctx, n, "half")
	if err != nil {
		return "", err
	}
	path, raw, err := recordOf(p)
	if err != nil {
		return "", err
	}
	if err := s.whileAway(ctx, n, func() error { return os.WriteFile(path, raw[:len(raw)/2], 0o600) }); err != nil {
		return "", err
	}
	if _, err := probe.Await(ctx, probe.Patience, "the agent rebuilding "+path, func(context.Context) error {
		rebuilt, err := os.ReadFile(path)
		if err == nil && !json.Valid(rebuilt) {
			err = errors.New("the record is not whole")
		}
		return err
	}); err != nil {
		return "", err
	}
	if err := s.cast.reached(ctx, p); err != nil {
		return "", err
	}
	if err := probe.Detach(ctx, p); err != nil {
		return "", err
	}
	broken := filepath.Join(filepath.Dir(path), "broken", filepath.Base(path))
	if _, err := os.Stat(broken); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is left of a record that was rebuilt (%w)", broken, err)
	}
	return "", nil
}

// recordOf returns the file of a pod's attachment, and its content.
func recordOf(p *lab.Pod) (path string, raw []byte, err error) {
	found, err := filepath.Glob(filepath.Join(p.Node.Dir, "root/var/lib/weft/attachments/*"))
	if err != nil {
		return "", nil, err
	}
	for _, path := range found {
		if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(p.Sandbox.ID)) {
			return path, raw, nil
		}
	}
	return "", nil, fmt.Errorf("no record of %s among %d files", p.Sandbox.ID, len(found))
}

// switchFaults are the faults of Open vSwitch.
func switchFaults() []fault {
	kill := func(name string, spares losses.Scope, programs ...string) fault {
		return fault{name: name, spares: spares, kills: programs, do: func(ctx context.Context, s *soak, _ lab.Node) (string, error) {
			var group errgroup.Group
			for _, p := range programs {
				group.Go(func() error { return probe.Kill(ctx, s.cluster, p, syscall.SIGKILL) })
			}
			return "", group.Wait()
		}}
	}
	return []fault{
		kill("ovsdb-server killed", losses.All, "n1/ovsdb-server"),
		kill("ovs-vswitchd killed", losses.Far, "n1/ovs-vswitchd"),
		kill("ovs-vswitchd and the agent killed", losses.Far, "n1/ovs-vswitchd", "n1/weft-agent"),
		kill("Open vSwitch and the agent killed", losses.Far, "n1/ovs-vswitchd", "n1/ovsdb-server", "n1/weft-agent"),
		{name: "ovs-vswitchd hangs during ADD and DEL", spares: losses.Far, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			return s.hangDuring(ctx, n, switchOf(n), 5*time.Second)
		}},
		{name: "ovsdb-server hangs during ADD and DEL", spares: losses.All, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			return s.hangDuring(ctx, n, databaseOf(n), 5*time.Second)
		}},
		{name: "ovs-vswitchd hangs while pods are deleted twice", spares: losses.Far, do: delTwiceHung},
		{name: "ovsdb-server killed during ADD and DEL", spares: losses.All, kills: []string{"n1/ovsdb-server"}, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			return s.killDuring(ctx, n, databaseOf(n))
		}},
		{name: "ovs-vswitchd killed during ADD and DEL", spares: losses.Far, kills: []string{"n1/ovs-vswitchd"}, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			return s.killDuring(ctx, n, switchOf(n))
		}},
	}
}

// hangDuring adds and deletes pods while a program hangs.
func (s *soak) hangDuring(ctx context.Context, n lab.Node, name string, length time.Duration) (string, error) {
	leaving, err := s.addSome(ctx, n, 3)
	if err != nil {
		return "", err
	}
	var requests errgroup.Group
	err = s.hang(ctx, name, length, func() error {
		s.comeAndGo(ctx, n, leaving, &requests)
		return nil
	})
	return "", errors.Join(err, requests.Wait())
}

// killDuring adds and deletes pods while a program is killed.
func (s *soak) killDuring(ctx context.Context, n lab.Node, name string) (string, error) {
	leaving, err := s.addSome(ctx, n, 3)
	if err != nil {
		return "", err
	}
	var requests errgroup.Group
	s.comeAndGo(ctx, n, leaving, &requests)
	<-time.After(s.within(20 * time.Millisecond))
	return "", errors.Join(probe.Kill(ctx, s.cluster, name, syscall.SIGKILL), requests.Wait())
}

// comeAndGo deletes pods, adds as many, and deletes these.
func (s *soak) comeAndGo(ctx context.Context, n lab.Node, leaving []*lab.Pod, requests *errgroup.Group) {
	for _, p := range leaving {
		requests.Go(func() error { return probe.Detach(ctx, p) })
		requests.Go(func() error {
			fresh, err := s.pod(ctx, n, "coming")
			if err != nil {
				return err
			}
			return errors.Join(s.cast.reached(ctx, fresh), probe.Detach(ctx, fresh))
		})
	}
}

// delTwiceHung deletes pods twice while the switch hangs. The runtime gets an answer to each DEL before its time limit.
func delTwiceHung(ctx context.Context, s *soak, n lab.Node) (string, error) {
	pods, err := s.addSome(ctx, n, 3)
	if err != nil {
		return "", err
	}
	var slowest time.Duration
	var repeated []error
	err = s.hang(ctx, switchOf(n), 0, func() error {
		var errs []error
		for range 2 {
			for _, p := range pods {
				began := time.Now()
				err := once(ctx, p)
				slowest = max(slowest, time.Since(began))
				if failure, known := probe.AsFailure(err); err != nil && (!known || failure.Code != probe.CodeTryAgain) {
					errs = append(errs, err)
				} else if err != nil {
					repeated = append(repeated, err)
				}
			}
		}
		return errors.Join(errs...)
	})
	for _, p := range pods {
		err = errors.Join(err, probe.Detach(ctx, p))
	}
	return fmt.Sprintf("slowest answer after %s; %d of 6 told to try again", slowest.Round(time.Millisecond), len(repeated)), err
}
