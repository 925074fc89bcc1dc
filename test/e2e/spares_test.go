//go:build lab

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/traffic"
)

// sparesOf lists the names of the ports that are made ahead on a node.
func sparesOf(t *testing.T, n lab.Node) []string {
	t.Helper()
	out := mustRun(t, n.Enter("ovs-vsctl", "--columns=name,external_ids", "--format=csv", "--no-headings", "list", "Interface"))
	var names []string
	for line := range strings.Lines(out) {
		if name, ids, _ := strings.Cut(line, ","); strings.Contains(ids, "spare/"+name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A port that no pod has is closed: whoever gets hold of its other end reaches nobody, whatever he sends, and be it what a
// pod of that address might.
func TestSpareIsClosed(t *testing.T) {
	s := newStage(t)
	n := s.cluster.Node(1)
	settledState(t, n)
	name := sparesOf(t, n)[0] + "c"
	mustRun(t, n.Enter("ip", "link", "set", name, "up"))
	defer func() { mustRun(t, n.Enter("ip", "link", "set", name, "down")) }()
	raw, err := traffic.OpenRaw(n.Netns, name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	scene := s.scene
	scene.Attacker = end(netip.PrefixFrom(s.attacker.IPs[0], 23).Masked().Addr().Next().Next())
	frames, err := hostile.Frames(scene)
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []hostile.End{scene.Neighbour, scene.Remote, scene.Gateway} {
		for _, from := range []hostile.End{scene.Attacker, s.scene.Attacker} {
			frame, err := hostile.Honest("from-a-spare-"+from.IP.String()+"-to-"+to.IP.String(), from, to.MAC, netip.AddrPortFrom(to.IP, discard))
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, frame)
		}
	}
	s.honest(t, "-before")
	for _, f := range frames {
		if err := raw.Send(f.Data); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	// The switch takes what comes in by this port in order: the last of it has been judged when the port has seen it all.
	await(t, "the switch with all frames", func(ctx context.Context) error {
		return received(ctx, n, strings.TrimSuffix(name, "c"), len(frames))
	})
	s.honest(t, "-after")
	for _, f := range frames {
		if by := s.heard(f.Marker); len(by) > 0 {
			t.Errorf("%s: %s: heard by %v", f.Class, f.Name, by)
		}
	}
	s.unharmed(t)
}

// received returns an error until the switch has taken so many packets in by a port.
func received(ctx context.Context, n lab.Node, port string, count int) error {
	out, err := run(ctx, n.Enter("ovs-ofctl", "-O", "OpenFlow15", "dump-ports", "br0", strings.TrimPrefix(port, "weft-p")))
	if err != nil {
		return err
	}
	_, after, _ := strings.Cut(out, "rx pkts=")
	number, _, _ := strings.Cut(after, ",")
	have, err := strconv.Atoi(number)
	if err == nil && have < count {
		err = fmt.Errorf("%d packets, want %d", have, count)
	}
	return err
}

// Ports made ahead that somebody takes away, or takes part of, come back, and pods are attached meanwhile.
func TestSparesByHand(t *testing.T) {
	c := cluster(t)
	n := c.Node(1)
	for name, damage := range map[string]func(spares []string){
		"links-deleted": func(spares []string) {
			for _, spare := range spares {
				mustRun(t, n.Enter("ip", "link", "del", spare))
			}
		},
		"ports-deleted": func(spares []string) {
			for _, spare := range spares[:4] {
				mustRun(t, n.Enter("ovs-vsctl", "del-port", "br0", spare))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := settledState(t, n)
			damage(sparesOf(t, n))
			began := time.Now()
			p := addPods(t, c, [2]string{"n1", name})[0]
			t.Logf("a pod was attached after %s", time.Since(began).Round(time.Millisecond))
			echo(t, p.Netns, p.IPs[0])
			ping(t, n.Netns, p.IPs[0])
			delPod(t, p)
			awaitState(t, n, want, name)
		})
	}
}
