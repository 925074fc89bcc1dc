//go:build real

package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn/ovntest"
)

// Two gateways start at the same time on one node while their rules change: each ends with its own addresses and its own rules, as last
// written.
func TestTwoGateways(t *testing.T) {
	n, _, _ := newGateways(t, `
---
kind: VpcNatGateway
apiVersion: kubeovn.io/v1
metadata: {name: gw2}
spec: {vpc: test-vpc-1, subnet: net1, lanIp: 10.0.1.253}
---
kind: IptablesEIP
apiVersion: kubeovn.io/v1
metadata: {name: eip4}
spec: {v4ip: 192.168.100.233, natGwDp: gw2}
---
kind: IptablesFIPRule
apiVersion: kubeovn.io/v1
metadata: {name: fip02}
spec: {eip: eip4, internalIp: 10.0.1.6}
`)
	c, ctx := n.Client, t.Context()
	const changes = 20
	group, within := errgroup.WithContext(ctx)
	for _, rule := range []string{"fip01", "fip02"} {
		group.Go(func() error {
			for i := range changes {
				if err := setInternal(within, c, rule, fmt.Sprintf("10.0.1.%d", 100+i)); err != nil {
					return err
				}
			}
			return setInternal(within, c, rule, map[string]string{"fip01": "10.0.1.5", "fip02": "10.0.1.6"}[rule])
		})
	}
	gates := map[string]*ovntest.Pod{}
	var pods []client.ObjectKey
	for _, gateway := range []string{"gw1", "gw2"} {
		name := n.makeGateway(gateway)
		gates[gateway], _ = n.add("kube-system", name)
		pods = append(pods, client.ObjectKey{Namespace: "kube-system", Name: name})
	}
	must(t, group.Wait())
	for _, name := range []string{"fip01", "fip02"} {
		ovntest.Eventually(t, name+" is in effect", func() bool {
			fip := &kubeovn.IptablesFIPRule{}
			must(t, c.Get(ctx, client.ObjectKey{Name: name}, fip))
			return fip.Status.Ready && fip.Status.InternalIP == fip.Spec.InternalIP
		})
	}
	for name, want := range map[string]struct{ own, other, rule string }{
		"gw1": {"192.168.100.232", "192.168.100.233", "192.168.100.232 comment \"IptablesFIPRule/fip01\" : 10.0.1.5"},
		"gw2": {"192.168.100.233", "192.168.100.232", "192.168.100.233 comment \"IptablesFIPRule/fip02\" : 10.0.1.6"},
	} {
		table := ovntest.Run(t, gates[name].NetNS, "nft", "list", "table", "ip", "weft_gateway")
		addresses := ovntest.Run(t, gates[name].NetNS, "ip", "-o", "addr", "show", "net1")
		if !strings.Contains(table, want.rule) || strings.Contains(table, want.other) || strings.Contains(table, "10.0.1.10") {
			t.Errorf("the rules of %s: want %q, and nothing of %s or of former rules:\n%s", name, want.rule, want.other, table)
		}
		if !strings.Contains(addresses, want.own+"/") || strings.Contains(addresses, want.other+"/") {
			t.Errorf("the addresses of %s: %s", name, addresses)
		}
	}
	n.deleteAll(pods...)
}

// setInternal changes the address behind a floating IP.
func setInternal(ctx context.Context, c client.Client, rule, address string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error { // the controller writes the status
		fip := &kubeovn.IptablesFIPRule{}
		if err := c.Get(ctx, client.ObjectKey{Name: rule}, fip); err != nil {
			return err
		}
		fip.Spec.InternalIP = address
		return c.Update(ctx, fip)
	})
}
