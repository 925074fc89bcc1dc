//go:build lab

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/pages"
	"weft.dev/weft/test/traffic"
)

// hasMTU returns an error unless a device has this MTU. enter enters the device's namespace.
func hasMTU(ctx context.Context, enter func(argv ...string) []string, device string, mtu int) error {
	link, err := run(ctx, enter("ip", "-o", "link", "show", device))
	if err == nil && !strings.Contains(link, fmt.Sprintf(" mtu %d ", mtu)) {
		err = fmt.Errorf("%s does not have MTU %d: %s", device, mtu, link)
	}
	return err
}

// nodesHaveMTU waits until tun0 of every node has this MTU.
func nodesHaveMTU(t *testing.T, c *lab.Cluster, mtu int) {
	t.Helper()
	for _, n := range c.Nodes() {
		await(t, "the MTU of tun0 of "+n.Name, func(ctx context.Context) error { return hasMTU(ctx, n.Enter, "tun0", mtu) })
	}
}

// The command of docs/operations.md lowers the MTU: tun0 and new pods have it, and running pods keep theirs. Both kinds of pods reach each
// other, with whole packets of the lower MTU and by TCP, which adapts its segments. A pod that is recreated, as the page says, has the
// lower MTU.
func TestMTUChange(t *testing.T) {
	c := cluster(t)
	tr := newTrio(t, c, "mtu")
	networks := objects(t, c, network, "clusternetworks")
	good, err := networks.Get(t.Context(), networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("lowered", func(t *testing.T) {
		t.Cleanup(func() { restore(t, networks, good) })
		const lower = 1400 // as on the page
		pages.Begin(t, pages.Runner{Root: root, Bin: c.Config.WeftBin, Lab: c.Name()}, "e2e")(t.Context(), "clusternetwork default")
		nodesHaveMTU(t, c, lower)
		fresh := addPod(t, c, "n2", "mtu-fresh")
		delPod(t, tr.near)
		again := addPod(t, c, "n1", "mtu-near")
		for pod, mtu := range map[*lab.Pod]int{tr.asks: podMTU, tr.far: podMTU, fresh: lower, again: lower} {
			if err := hasMTU(t.Context(), pod.Enter, "eth0", mtu); err != nil {
				t.Errorf("pod %s: %v", pod.Name, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for _, pair := range [][2]*lab.Pod{{tr.asks, fresh}, {fresh, tr.asks}, {tr.asks, again}, {again, tr.far}, {tr.asks, tr.far}} {
			from, to := pair[0], pair[1]
			if _, err := traffic.PingICMP(ctx, from.Netns, to.IPs[0], lower); err != nil {
				t.Errorf("%s to %s, %d bytes: %v", from.Name, to.Name, lower, err)
			}
			at := netip.AddrPortFrom(to.IPs[0], echoPort+1)
			sink, err := traffic.NewSink(to.Netns, at)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := traffic.Send(ctx, from.Netns, at, 1<<20); err != nil {
				t.Errorf("%s to %s by TCP: %v", from.Name, to.Name, err)
			}
			if err := sink.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	nodesHaveMTU(t, c, podMTU)
}
