//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/probe"
)

// The port of the tunnels is fixed. The API server refuses a change. If a ClusterNetwork is deleted and created with another port, agents
// refuse that and report it. Pods reach each other all the while, and none gets a packet into a tunnel.
func TestTunnelPortIsFixed(t *testing.T) {
	const other = 4790
	s := newStage(t)
	c := s.cluster
	networks := objects(t, c, network, "clusternetworks")
	_, err := networks.Patch(t.Context(), networkv1.ClusterNetworkDefault, types.MergePatchType, fmt.Appendf(nil, `{"vxlanPort":%d}`, other), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "vxlanPort cannot change") {
		t.Fatalf("another port: %v, want a refusal by the API server", err)
	}
	object, err := networks.Get(t.Context(), networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again := func(port int64) {
		t.Helper()
		if err := networks.Delete(t.Context(), networkv1.ClusterNetworkDefault, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		created := object.DeepCopy()
		created.SetResourceVersion("")
		created.SetUID("")
		delete(created.Object, "status")
		created.Object["vxlanPort"] = port
		if _, err := networks.Create(t.Context(), created, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	hosts := objects(t, c, network, "hostsubnets")
	says := func(what, status, words string) {
		t.Helper()
		await(t, what, func(ctx context.Context) error {
			for _, n := range c.Nodes() {
				host, err := hosts.Get(ctx, n.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				var hs networkv1.HostSubnet
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(host.Object, &hs); err != nil {
					return err
				}
				step := meta.FindStatusCondition(hs.Status.Conditions, networkv1.ConditionEnginesInStep)
				if step == nil || string(step.Status) != status || !strings.Contains(step.Message, words) {
					return fmt.Errorf("%s: %+v", n.Name, step)
				}
			}
			return nil
		})
	}
	defer func() {
		again(vxlanPort)
		says("no node reports a refused port", "True", "")
	}()
	frames := tunnelFrames(t, s.scene, vxlanPort, other)
	again(other)
	says("each node reports the refused port", "False", fmt.Sprintf("vxlanPort: %d is refused, tunnels stay at port %d", other, vxlanPort))
	for _, n := range c.Nodes() {
		if err := probe.TunnelsAt(t.Context(), n, vxlanPort); err != nil {
			t.Error(err)
		}
	}
	ping(t, s.attacker.Netns, s.remote.IPs[0])
	for _, f := range frames {
		if err := s.raw.Send(f.Data); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
	}
	// Packets from a node's address to the port arrive: so would the attacker's, if they had left its node.
	control, err := hostile.Tunnelled("control", 0, s.scene.Attacker, s.scene.Remote)
	if err != nil {
		t.Fatal(err)
	}
	sendUDP(t, c.Node(1).Netns, netip.AddrPortFrom(c.Node(2).IP, vxlanPort), control.Data)
	if _, ok := s.sniffers["remote's eth0"].Await(control.Marker, patience); !ok {
		t.Error("a node's tunnel packet did not arrive, so the absence of the others proves nothing")
	}
	for _, f := range frames {
		for _, sniffer := range []string{"remote's eth0", "neighbour's eth0"} {
			if _, ok := s.sniffers[sniffer].Find(f.Marker); ok {
				t.Errorf("%s: received at %s", f.Name, sniffer)
			}
		}
	}
}

// tunnelFrames are the tunnel packets that a pod may try to send to these ports.
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
