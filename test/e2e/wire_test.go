//go:build lab

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/traffic"
)

// In both modes with VNIDs, also with NetworkPolicies, the VNI of a packet between nodes is the VNID of the sender's namespace. In the flat
// network it is 0.
func TestVNIOnTheWire(t *testing.T) {
	c := cluster(t)
	e := &estate{cluster: c}
	e.flatAgain(t)
	addProject(t, c, projectA)
	pods := &policyScene{cluster: c}
	from := pods.pod(t, lab.PodSpec{Node: "n1", Namespace: projectA, Name: "wire-from"})
	to := pods.pod(t, lab.PodSpec{Node: "n2", Namespace: projectA, Name: "wire-to"})
	echo(t, to.Netns, to.IPs[0])
	// The port of the uplink, where frames still have their tunnel's header.
	sniffer, err := traffic.Listen(c.Node(2).Netns, traffic.Capture{Device: "eth0", Incoming: true, Keep: func(frame []byte) bool {
		return bytes.Contains(frame, []byte("wire-test"))
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sniffer.Close() })
	const tunnelAt = 14 + 20 + 8 // behind Ethernet, IPv4 and UDP
	for _, mode := range []string{networkv1.PluginSubnet, networkv1.PluginMultitenant, networkv1.PluginNetworkPolicy} {
		switch mode {
		case networkv1.PluginMultitenant:
			e.setMode(t, mode)
		case networkv1.PluginNetworkPolicy:
			byPolicies(t, c)
		}
		await(t, "packets with the VNI of mode "+mode, func(ctx context.Context) error {
			want := int64(0)
			if mode != networkv1.PluginSubnet {
				have, err := objects(t, c, network, "netnamespaces").Get(ctx, projectA, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if want, _, _ = unstructured.NestedInt64(have.Object, "netid"); want == 0 {
					return errors.New("the project has VNID 0")
				}
			}
			content := fmt.Appendf(nil, "wire-test %s %d", mode, time.Now().UnixNano())
			sendUDP(t, from.Netns, addrPort(to), content)
			frame, ok := sniffer.Await(content, time.Second)
			if !ok {
				return errors.New("no packet arrives at the other node")
			}
			if got := int64(binary.BigEndian.Uint32(frame[tunnelAt+vniAt:]) >> 8); got != want {
				return fmt.Errorf("the VNI is %d, want %d", got, want)
			}
			return nil
		})
		ping(t, from.Netns, to.IPs[0])
	}
}
