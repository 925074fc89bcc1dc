//go:build lab

package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// trio is a client pod on the first node, and a server pod on each node.
type trio struct {
	asks, near, far *lab.Pod
}

func newTrio(t *testing.T, c *lab.Cluster, name string) trio {
	t.Helper()
	pods := addPods(t, c, [2]string{"n1", name + "-a"}, [2]string{"n1", name + "-b"}, [2]string{"n2", name + "-far"})
	tr := trio{asks: pods[0], near: pods[1], far: pods[2]}
	echo(t, tr.near.Netns, tr.near.IPs[0])
	echo(t, tr.far.Netns, tr.far.IPs[0])
	echo(t, tr.asks.Netns, tr.asks.IPs[0])
	echo(t, c.Outside.Netns, c.Outside.IP)
	tr.reaches(t, c)
	return tr
}

// reaches waits until the client reaches both servers and the outside, and both nodes reach the client. It returns how long that took.
func (tr trio) reaches(t *testing.T, c *lab.Cluster) time.Duration {
	t.Helper()
	begin := time.Now()
	ping(t, tr.asks.Netns, tr.near.IPs[0])
	ping(t, tr.asks.Netns, tr.far.IPs[0])
	ping(t, c.Node(1).Netns, tr.asks.IPs[0])
	ping(t, c.Node(2).Netns, tr.asks.IPs[0])
	ping(t, tr.asks.Netns, c.Outside.IP)
	return time.Since(begin)
}

// A switch whose daemon dies comes back by itself, complete with its flows, its ports and the host's interface.
func TestSwitchKilled(t *testing.T) {
	c := cluster(t)
	tr := newTrio(t, c, "switch")
	n := c.Node(1)
	want := settledState(t, n)
	began := time.Now()
	kill(t, c, "n1/ovs-vswitchd", syscall.SIGKILL)
	daemon := time.Since(began)
	tr.reaches(t, c)
	reached := time.Since(began)
	awaitState(t, n, want, "ovs-vswitchd was killed")
	t.Logf("ovs-vswitchd back after %s, all pods reached after %s, state as before after %s", daemon.Round(time.Millisecond),
		reached.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	fresh := addPod(t, c, "n1", "switch-fresh")
	echo(t, fresh.Netns, fresh.IPs[0])
	ping(t, tr.far.Netns, fresh.IPs[0])
}

// When the switch's database dies, traffic continues. Pods can be attached again as soon as it is back.
func TestDatabaseKilled(t *testing.T) {
	c := cluster(t)
	tr := newTrio(t, c, "database")
	n := c.Node(1)
	l := newLoad(t, c, "database-load")
	l.control(t, 3*time.Second)
	want := settledState(t, n)
	watch := watchFlows(t, n)
	var back time.Duration
	var fresh *lab.Pod
	l.during(t, "database killed", func() {
		began := time.Now()
		kill(t, c, "n1/ovsdb-server", syscall.SIGKILL)
		awaitState(t, n, want, "ovsdb-server was killed")
		fresh = addPod(t, c, "n1", "database-fresh")
		back = time.Since(began)
	})
	echo(t, fresh.Netns, fresh.IPs[0])
	ping(t, tr.far.Netns, fresh.IPs[0])
	if err := watch.Check(t.Context(), nil); err != nil {
		t.Error(err)
	}
	t.Logf("a pod was attached again %s after the database was killed; %s", back.Round(time.Millisecond), watch)
}

// Everything that is removed or changed by hand is restored.
func TestByHand(t *testing.T) {
	c := cluster(t)
	tr := newTrio(t, c, "by-hand")
	n := c.Node(1)
	gateway := gatewayOf(tr.asks).IP.String()
	for _, damage := range []struct {
		name    string
		command []string
	}{
		{"all-flows-deleted", []string{"ovs-ofctl", "-O", "OpenFlow15", "del-flows", "br0"}},
		{"a-table-deleted", []string{"ovs-ofctl", "-O", "OpenFlow15", "del-flows", "br0", "table=20"}},
		{"a-flow-altered", []string{"ovs-ofctl", "-O", "OpenFlow15", "mod-flows", "br0", "table=90,actions=drop"}},
		{"a-flow-added", []string{"ovs-ofctl", "-O", "OpenFlow15", "add-flow", "br0", "table=0,priority=5000,ip,actions=drop"}},
		{"the-bridge-deleted", []string{"ovs-vsctl", "del-br", "br0"}},
		{"the-tunnel-deleted", []string{"ovs-vsctl", "del-port", "br0", "vxlan0"}},
		{"tun0-deleted", []string{"ovs-vsctl", "del-port", "br0", "tun0"}},
		{"the-bridge-opened", []string{"ovs-vsctl", "set-fail-mode", "br0", "standalone"}},
		{"a-controller-set", []string{"ovs-vsctl", "set-controller", "br0", "tcp:127.0.0.1:6653"}},
		{"the-address-removed", []string{"ip", "addr", "del", gateway + "/23", "dev", "tun0"}},
		{"a-route-removed", []string{"ip", "route", "del", "10.128.0.0/14", "dev", "tun0"}},
		{"tun0-set-down", []string{"ip", "link", "set", "tun0", "down"}},
		{"rules-flushed", []string{"nft", "flush", "table", "inet", "weft"}},
		{"rules-deleted", []string{"nft", "delete", "table", "inet", "weft"}},
		{"the-ruleset-flushed", []string{"nft", "flush", "ruleset"}},
	} {
		t.Run(damage.name, func(t *testing.T) {
			want := settledState(t, n)
			if damage.name == "the-ruleset-flushed" {
				t.Cleanup(func() { restoreGuard(t, n) })
			}
			mustRun(t, n.Enter(damage.command...))
			back := awaitState(t, n, want, damage.name)
			tr.reaches(t, c)
			t.Logf("restored after %s", back.Round(time.Millisecond))
		})
	}
	if _, err := traffic.PingICMP(t.Context(), n.Netns, tr.asks.IPs[0], 84); err != nil {
		t.Error(err)
	}
}

// Changes by hand of a pod's link on the node are undone.
func TestPodLinkByHand(t *testing.T) {
	c := cluster(t)
	tr := newTrio(t, c, "link-by-hand")
	_, name, err := probe.HostEnd(tr.asks)
	if err != nil {
		t.Fatal(err)
	}
	n := tr.asks.Node
	show := n.Enter("ip", "-o", "link", "show", "dev", name)
	want := mustRun(t, show)
	for _, change := range [][]string{{"down"}, {"mtu", "1300"}, {"group", "0"}, {"down", "mtu", "1300", "group", "0"}} {
		t.Run(strings.Join(change, "-"), func(t *testing.T) {
			mustRun(t, n.Enter(append([]string{"ip", "link", "set", "dev", name}, change...)...))
			await(t, "the link as before", func(ctx context.Context) error {
				have, err := run(ctx, show)
				if err == nil && have != want {
					err = fmt.Errorf("the link is %s, want %s", have, want)
				}
				return err
			})
			tr.reaches(t, c)
		})
	}
}

// restoreGuard restores the lab's own rules, which Weft does not manage.
func restoreGuard(t *testing.T, n lab.Node) {
	t.Helper()
	rules := `table inet weft-lab { chain prerouting { type filter hook prerouting priority -450; policy accept; meta iifgroup 77 drop; }; }
table arp weft-lab { chain input { type filter hook input priority -450; policy accept; meta iifgroup 77 drop; }; }`
	if _, err := run(context.Background(), n.Enter("nft", rules)); err != nil {
		t.Error(err)
	}
}
