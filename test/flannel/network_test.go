//go:build lab

package flannel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/matrix"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
)

// ping reports whether one pod's ICMP echo is answered by another.
func ping(ctx context.Context, from, to *lab.Pod) error {
	_, err := probe.Output(ctx, from.Enter("ping", "-n", "-c", "1", "-W", "1", to.IPs[0].String())...)
	return err
}

func addPod(ctx context.Context, t *testing.T, c *lab.Cluster, node, name string) *lab.Pod {
	t.Helper()
	pod, err := c.AddPod(ctx, lab.PodSpec{Node: node, Namespace: "default", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestNetwork: in a cluster of nodes without Open vSwitch everything that must be reached is, by the addresses that it must be, and what a pod
// sends in another's name goes nowhere. A NetworkPolicy closes what it isolates, also to a hostile pod, and from the first packet on.
func TestNetwork(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*limit)
	defer cancel()
	c := labs.Up(ctx, t, lab.Config{WeftBin: weftBin, Name: "flannet", Nodes: 2, Runtime: plan.RuntimeCNI, Network: plan.NetworkFlannel, KubeProxy: true})
	reachesAsItMust(ctx, t, c, "the matrix")
	t.Run("hostile", func(t *testing.T) { hostilePods(ctx, t, c) })
	near, far := addPod(ctx, t, c, "n1", "near"), addPod(ctx, t, c, "n2", "far")
	testwait.Eventually(t, "without a policy", func() error { return ping(ctx, near, far) })
	k, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	deny := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}
	if _, err := k.NetworkingV1().NetworkPolicies("default").Create(ctx, deny, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "with a policy that allows nothing", func() error {
		if ping(ctx, near, far) == nil {
			return fmt.Errorf("%s reaches %s", near.Name, far.Name)
		}
		return nil
	})
	if err := k.NetworkingV1().NetworkPolicies("default").Delete(ctx, "deny", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "when the policy is gone", func() error { return ping(ctx, near, far) })
	foreignDrops(ctx, t, c, near, far)
	for _, pod := range []*lab.Pod{near, far} {
		if err := c.DelPod(ctx, pod); err != nil {
			t.Error(err)
		}
	}
	if err := c.Crashed(ctx); err != nil {
		t.Error(err)
	}
}

// foreignDrops lets another program, such as docker, drop all forwarded packets on the nodes: the agents open its chain for pods.
func foreignDrops(ctx context.Context, t *testing.T, c *lab.Cluster, near, far *lab.Pod) {
	t.Helper()
	for _, n := range c.Nodes() {
		if _, err := probe.Output(ctx, n.Enter("iptables-nft", "-P", "FORWARD", "DROP")...); err != nil {
			t.Fatal(err)
		}
		testwait.Eventually(t, "chain FORWARD of "+n.Name+" is open for pods", func() error {
			rules, err := probe.Output(ctx, n.Enter("iptables-nft", "-S", "FORWARD")...)
			if err == nil && strings.Count(rules, "10.244.0.0/16") != 2 {
				err = errors.New(rules)
			}
			return err
		})
	}
	testwait.Eventually(t, "beside a program that drops all forwarded packets", func() error { return errors.Join(ping(ctx, near, far), ping(ctx, far, near)) })
}

// TestBesideFlanneld: pods of a node with Weft's agent and of one with the original flanneld and its plugin reach each other, in both
// families.
func TestBesideFlanneld(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	mixed(ctx, t, lab.Config{Name: "flanmix", DualStack: true})
}

// TestBesideFlanneldInEtcd: pods of a node with `weft flanneld` and Weft's plugin and of one with the original flanneld and its plugin reach
// each other, in both families, with leases in etcd.
func TestBesideFlanneldInEtcd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	mixed(ctx, t, lab.Config{Name: "flanetcd", DualStack: true, FlannelStore: plan.StoreEtcd, Backend: "host-gw"})
}

// mixed brings up a lab of one node with Weft and one with the original flanneld, and has their pods reach each other by all addresses.
func mixed(ctx context.Context, t *testing.T, cfg lab.Config) {
	t.Helper()
	cfg.Nodes, cfg.Runtime, cfg.Network, cfg.Flanneld, cfg.WeftBin = 2, plan.RuntimeCNI, plan.NetworkFlannel, "n2", weftBin
	c := labs.Up(ctx, t, cfg)
	weft, flannel := addPod(ctx, t, c, "n1", "weft"), addPod(ctx, t, c, "n2", "flannel")
	for _, way := range [][2]*lab.Pod{{weft, flannel}, {flannel, weft}} {
		if addresses := way[1].IPs; len(addresses) != 2 || addresses[0].Is4() == addresses[1].Is4() {
			t.Errorf("pod %s has addresses %s, want one of each family", way[1].Name, addresses)
		}
		for _, address := range way[1].IPs {
			testwait.Eventually(t, "from the pod "+way[0].Name+" to "+address.String(), func() error {
				_, err := probe.Output(ctx, way[0].Enter("ping", "-n", "-c", "1", "-W", "1", address.String())...)
				return err
			})
		}
	}
	for _, pod := range []*lab.Pod{weft, flannel} {
		if err := c.DelPod(ctx, pod); err != nil {
			t.Error(err)
		}
		for _, address := range pod.IPs {
			// The agent removes it after DEL is answered.
			testwait.Eventually(t, "after DEL, the removal of the reservation of "+address.String(), func() error {
				_, err := os.Stat(reservation(pod.Node, address))
				switch {
				case errors.Is(err, os.ErrNotExist):
					return nil
				case err == nil:
					return errors.New("the file is there")
				}
				return err
			})
		}
	}
	if err := c.Crashed(ctx); err != nil {
		t.Error(err)
	}
}

// reachesAsItMust measures which pods and hosts reach each other.
func reachesAsItMust(ctx context.Context, t *testing.T, c *lab.Cluster, what string) {
	t.Helper()
	report, err := matrix.Run(ctx, c, matrix.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !report.AsItMust {
		var table bytes.Buffer
		_ = report.Table(&table)
		t.Errorf("%s is not as it must be:\n%s", what, &table)
	}
}
