//go:build lab

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/test/traffic"
)

// When a node dies, another node with an address of the project takes over its share of the outgoing traffic. If the controller assigns
// the addresses, another node gets the dead node's address. The test needs three nodes, and so its own lab.
func TestEgressIPFailover(t *testing.T) {
	config := lab.Config{Name: *labName + "f", Nodes: 3, Runtime: plan.RuntimeCNI, WeftBin: *weftBin}
	if config.WeftBin == "" {
		var err error
		if config.WeftBin, err = build(t.Context(), t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), config.Name, nil); err != nil {
			t.Error(err)
		}
	})
	c, err := lab.Up(t.Context(), config, func(report.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	s := &failover{newEgressScene(t, c, networkv1.PluginMultitenant)}
	s.takeOver(t)
	s.reassign(t)
	s.stay(t)
}

// failover is the scene of a lab in which nodes with egress IPs die.
type failover struct{ *egressScene }

// takeOver: one of two nodes with addresses of the project dies.
func (s *failover) takeOver(t *testing.T) {
	t.Helper()
	s.want(t, egressA, egressOne, egressTwo)
	s.host(t, "n2", egressOne)
	s.host(t, "n3", egressTwo)
	targets := s.crowd(t)
	var conns []*traffic.Conn // of a1, by n3
	await(t, "connections through both nodes", func(ctx context.Context) error {
		seen := map[string]int{}
		for _, target := range targets {
			conn, err := traffic.Dial(ctx, s.pods["a1"].Netns, "tcp", target)
			if err != nil {
				return err
			}
			answer, err := conn.Ask()
			if err == nil && answer.Source.String() == egressTwo {
				conns = append(conns, conn)
			} else {
				err = errors.Join(err, conn.Close())
			}
			if err != nil {
				return err
			}
			seen[answer.Source.String()]++
		}
		if len(seen) != 2 || seen[egressOne] == 0 || seen[egressTwo] == 0 {
			return fmt.Errorf("the sources are %v", seen)
		}
		return nil
	})
	s.cut(t, "n2", func(began time.Time) {
		lost := s.leaveBy(t, "all connections of a1 leave by n3", targets, egressTwo)
		t.Logf("a node with a share died: after %s all connections leave by the other node; %d were lost before, %d were made in the last round",
			time.Since(began).Round(time.Millisecond), lost, len(targets))
		for _, conn := range conns {
			if answer, err := conn.Ask(); err != nil || answer.Source.String() != egressTwo {
				t.Errorf("a connection through the node that still runs: %v, %v", answer, err)
			}
			_ = conn.Close()
		}
	})
	s.host(t, "n2")
	s.host(t, "n3")
}

// reassign: a node with an address from the controller dies.
func (s *failover) reassign(t *testing.T) {
	t.Helper()
	s.want(t, egressA, egressThree)
	for _, name := range []string{"n2", "n3"} {
		s.set(t, "hostsubnets", name, "egressCIDRs", "172.31.0.96/28")
	}
	s.sees(t, "the address assigned to a node", "a1 "+egressThree)
	holder := ""
	await(t, "a HostSubnet that lists the address", func(ctx context.Context) error {
		lists, err := s.lists(ctx, t)
		if err != nil {
			return err
		}
		for name, ips := range lists {
			if slices.Contains(ips, egressThree) {
				holder = name
				return nil
			}
		}
		return errors.New("no HostSubnet lists the address")
	})
	s.cut(t, holder, func(began time.Time) {
		await(t, "the address assigned to another node", func(ctx context.Context) error {
			if got := s.seen(ctx, "a1", "tcp"); got != egressThree {
				return fmt.Errorf("the source is %s", got)
			}
			return nil
		})
		t.Logf("the node with the address died: another node holds the address after %s", time.Since(began).Round(time.Millisecond))
	})
}

// lists returns the addresses in HostSubnets.
func (s *failover) lists(ctx context.Context, t *testing.T) (map[string][]string, error) {
	t.Helper()
	list, err := objects(t, s.cluster, network, "hostsubnets").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	lists := map[string][]string{}
	for i := range list.Items {
		ips, _, err := unstructured.NestedStringSlice(list.Items[i].Object, "egressIPs")
		if err != nil {
			return nil, err
		}
		lists[list.Items[i].GetName()] = ips
	}
	return lists, nil
}

// assigned waits until nodes have the given addresses.
func (s *failover) assigned(t *testing.T, when string, want map[string][]string) {
	t.Helper()
	await(t, when, func(ctx context.Context) error {
		lists, err := s.lists(ctx, t)
		for node, ips := range want {
			if slices.Sort(lists[node]); err == nil && !slices.Equal(lists[node], ips) {
				err = fmt.Errorf("%v", lists)
			}
		}
		return err
	})
}

// stay: an address that only one node can have remains there while the node is not ready. It does not move when the node dies, and is in
// use again as soon as the node is back. An address that another node can have moves there.
func (s *failover) stay(t *testing.T) {
	t.Helper()
	s.set(t, "hostsubnets", "n3", "egressCIDRs")
	s.host(t, "n3")
	s.set(t, "hostsubnets", "n2", "egressCIDRs", egressTwo+"/32", egressThree+"/32")
	s.want(t, egressB, egressTwo)
	s.assigned(t, "both addresses on the only node", map[string][]string{"n2": {egressTwo, egressThree}, "n3": nil})
	s.set(t, "hostsubnets", "n3", "egressCIDRs", egressTwo+"/32")
	s.setReady(t, "n2", corev1.ConditionFalse)
	apart := map[string][]string{"n2": {egressThree}, "n3": {egressTwo}}
	s.assigned(t, "n2 is not ready", apart)
	s.sees(t, "n2 is not ready", "a1 "+egressThree+" b1 "+egressTwo)
	s.cut(t, "n2", func(time.Time) {
		s.sees(t, "n2 is dead", "a1 none b1 "+egressTwo)
		s.assigned(t, "n2 is dead", apart)
	})
	took := s.sees(t, "n2 is back", "a1 "+egressThree+" b1 "+egressTwo)
	t.Logf("the only node that can hold the address is back: the address is in use after another %s", took)
	s.setReady(t, "n2", corev1.ConditionTrue)
	s.assigned(t, "n2 is ready", apart)
}

// setReady writes a Node's Ready condition, as its kubelet does.
func (s *failover) setReady(t *testing.T, node string, status corev1.ConditionStatus) {
	t.Helper()
	client, err := s.cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// cut disconnects a node from the network while f runs.
func (s *failover) cut(t *testing.T, name string, f func(began time.Time)) {
	t.Helper()
	var node lab.Node
	for _, n := range s.cluster.Nodes() {
		if n.Name == name {
			node = n
		}
	}
	mustRun(t, node.Enter("ip", "link", "set", "eth0", "down"))
	began := time.Now()
	defer func() {
		mustRun(t, node.Enter("ip", "link", "set", "eth0", "up"))
		mustRun(t, node.Enter("ip", "route", "replace", "default", "via", plan.New(plan.Config{}).Router.String()))
		await(t, name+" is back", func(ctx context.Context) error {
			_, err := traffic.Ask(ctx, s.cluster.Node(1).Netns, "tcp", port(node.IP, 10250))
			if errors.Is(err, syscall.ECONNREFUSED) {
				return nil
			}
			return err
		})
	}()
	f(began)
}
