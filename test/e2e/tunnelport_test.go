//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/probe"
)

// A change of vxlanPort waits for every node to have closed the new port to its pods, and says for which; then all tunnels move. Pods reach
// each other before, while it waits, and after, and none gets a packet into a tunnel at any time, whichever port it sends to.
func TestTunnelsMoveToAnotherPort(t *testing.T) {
	const other = 4790
	s := newStage(t)
	c := s.cluster
	networks := objects(t, c, network, "clusternetworks")
	set := func(port int) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"vxlanPort":%d}`, port)
		if _, err := networks.Patch(t.Context(), networkv1.ClusterNetworkDefault, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	at := func(ctx context.Context, port int) error {
		for _, n := range c.Nodes() {
			if err := probe.TunnelsAt(ctx, n, port); err != nil {
				return err
			}
		}
		return nil
	}
	opened := func(n lab.Node, port int) {
		t.Helper()
		await(t, n.Name+" closes the port of before no more", func(ctx context.Context) error {
			if flows := probe.StateIn(ctx, n, "flows"); strings.Contains(flows, fmt.Sprintf("tp_dst=%d", port)) {
				return fmt.Errorf("flows name port %d", port)
			}
			return nil
		})
	}
	hosts := objects(t, c, network, "hostsubnets")
	settled := func() {
		t.Helper()
		await(t, "both nodes tell one port", func(ctx context.Context) error {
			for _, n := range c.Nodes() {
				object, err := hosts.Get(ctx, n.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if ports, _, err := unstructured.NestedSlice(object.Object, "status", "vxlanPorts"); err != nil || len(ports) != 1 {
					return errors.Join(fmt.Errorf("%s tells %v", n.Name, ports), err)
				}
			}
			return nil
		})
	}
	defer func() {
		set(vxlanPort)
		await(t, "tunnels at the port of before", func(ctx context.Context) error { return at(ctx, vxlanPort) })
		ping(t, s.attacker.Netns, s.remote.IPs[0])
		settled()
		for _, n := range c.Nodes() {
			opened(n, other)
		}
	}()

	settled()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	attacks := make(chan error, 1)
	frames := tunnelFrames(t, s.scene, vxlanPort, other)
	var sent int
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ; ; sent++ {
			select {
			case <-ctx.Done():
				attacks <- nil
				return
			case <-tick.C:
			}
			if err := s.raw.Send(frames[sent%len(frames)].Data); err != nil && !errors.Is(err, unix.ENOBUFS) {
				attacks <- err
				return
			}
		}
	}()

	goOn := hang(t, c, "n2/weft-agent")
	defer goOn()
	set(other)
	await(t, "n1 has closed the new port, and waits for n2", func(ctx context.Context) error {
		if log := logOf(t, c, "n1/weft-agent"); !strings.Contains(log, "nodes=n2") {
			return fmt.Errorf("n1 says nothing of n2")
		}
		if flows := probe.StateIn(ctx, c.Node(1), "flows"); !strings.Contains(flows, fmt.Sprintf("tp_dst=%d", other)) {
			return fmt.Errorf("no flow names port %d", other)
		}
		return at(ctx, vxlanPort)
	})
	ping(t, s.attacker.Netns, s.remote.IPs[0])
	goOn()
	took := await(t, "all tunnels at the new port", func(ctx context.Context) error { return at(ctx, other) })
	ping(t, s.attacker.Netns, s.remote.IPs[0])
	for _, n := range c.Nodes() {
		opened(n, vxlanPort)
	}

	// What is sent there from a known node's address arrives: so would the attacker's, had it left its node.
	control, err := hostile.Tunnelled("control", 0, s.scene.Attacker, s.scene.Remote)
	if err != nil {
		t.Fatal(err)
	}
	sendUDP(t, c.Node(1).Netns, netip.AddrPortFrom(c.Node(2).IP, other), control.Data)
	if _, ok := s.ears["remote's eth0"].Await(control.Marker, patience); !ok {
		t.Error("a known node's tunnel packet does not arrive: the others' silence says nothing")
	}
	stop()
	if err := <-attacks; err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		for _, ear := range []string{"remote's eth0", "neighbour's eth0"} {
			if _, ok := s.ears[ear].Find(f.Marker); ok {
				t.Errorf("%s: heard at %s", f.Name, ear)
			}
		}
	}
	t.Logf("%d tunnel packets sent by a pod; the tunnels moved %s after the last node could", sent, took.Round(time.Millisecond))
}

// tunnelFrames are the tunnel packets that a pod may try to send to ports.
func tunnelFrames(t *testing.T, scene hostile.Scene, ports ...uint16) []hostile.Frame {
	t.Helper()
	var frames []hostile.Frame
	for _, port := range ports {
		scene.VXLANPort = port
		all, err := hostile.Frames(scene)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.Class == hostile.ClassTunnelled {
				f.Name = fmt.Sprintf("%s, port %d", f.Name, port)
				frames = append(frames, f)
			}
		}
	}
	return frames
}
