//go:build lab

package install

import (
	"context"
	"fmt"
	"testing"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

// A node without an Open vSwitch of its own gets one in a pod: pods reach each other and the outside; what is of the agent
// does not touch the switch; and a switch that is replaced has its ports and flows again.
func TestOpenVSwitchInPods(t *testing.T) {
	c := up(t, lab.Config{Nodes: 1, NoSwitch: true, WeftBin: current(t)})
	c.start("a", "n1")
	c.start("b", "n1")
	reach := func(when string) {
		t.Helper()
		for _, to := range []string{c.address("b"), c.Outside.IP.String()} {
			if _, err := c.try("", "exec", "a", "--", "ping", "-c", "2", "-W", "5", to); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	reach("installed")
	switchPod := func() string {
		t.Helper()
		return c.kubectl("-n", "weft", "get", "pods", "-l", "app.kubernetes.io/component=openvswitch", "-o", "jsonpath={.items[*].metadata.uid}")
	}
	before := switchPod()
	c.kubectl("-n", "weft", "set", "env", "daemonset/weft-agent", "UPGRADED=yes")
	c.kubectl("-n", "weft", "set", "env", "daemonset/weft-openvswitch", "UPGRADED=yes")
	c.rolledOut()
	reach("after the agent's upgrade")
	if now := switchPod(); now != before {
		t.Errorf("the upgrade replaced the switch: pods %s, were %s", now, before)
	}
	want, err := probe.SettledState(t.Context(), c.Node(1))
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl("-n", "weft", "delete", "pods", "-l", "app.kubernetes.io/component=openvswitch", "--wait")
	_, err = probe.Await(t.Context(), probe.Patience, "another pod with a switch", func(context.Context) error {
		if now := switchPod(); now == "" || now == before {
			return fmt.Errorf("pods %q, were %q", now, before)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl("-n", "weft", "wait", "--for=condition=Ready", "pods", "-l", "app.kubernetes.io/component=openvswitch", "--timeout=120s")
	back, err := probe.AwaitState(t.Context(), c.Node(1), want, "the switch's pod was replaced")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("all as it was %s after the new switch was ready", back)
	reach("after the switch's restart")
}
