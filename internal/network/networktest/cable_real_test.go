//go:build real

package networktest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/podveth"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
)

// TestCable: the test network passes the suite, with the real kernel.
func TestCable(t *testing.T) {
	networktest.RunConformance(t, func(t *testing.T) networktest.Subject {
		host := hostSpace(t)
		boot, err := attach.ReadBootID()
		if err != nil {
			t.Fatal(err)
		}
		return networktest.Subject{
			Name: networktest.Name, At: placement.Decision{Network: networktest.Name}, BootID: boot,
			Start: func(ctx context.Context, t *testing.T, records network.Records) (network.Network, network.Runner) {
				cable := networktest.New(startNode(ctx, t, host, boot), records)
				return cable, cable
			},
			Netns: func(t *testing.T) string { return space(t).Path() },
			Connected: func(t *testing.T, netns string, _ attach.Record, want bool) {
				t.Helper()
				pod, err := ns.GetNS(netns)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = pod.Close() }()
				within := unanswered
				if want {
					within = connects
				}
				if err := reaches(pod, hostAddress(), within); (err == nil) != want {
					t.Errorf("the pod reaches its node: %v, want %t", err, want)
				}
			},
		}
	})
}

// startNode opens a node's engines in a namespace and runs their loops until ctx ends.
func startNode(ctx context.Context, t *testing.T, host ns.NetNS, boot string) *node.Node {
	t.Helper()
	var links *marked.Engine
	var rules *ruleset.Engine
	var pods *podveth.Pods
	err := host.Do(func(ns.NetNS) error {
		var errs [3]error
		links, errs[0] = marked.New(marked.Options{})
		rules, errs[1] = ruleset.NewEngine(ruleset.Options{Tables: networktest.Kind().Care.Tables})
		pods, errs[2] = podveth.New()
		return errors.Join(errs[:]...)
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &node.Node{
		Name: "n", BootID: boot, Pods: pods,
		Links: reconcile.NewLoop(links, reconcile.Options[link.Key, link.Item]{Name: "link"}),
		Rules: reconcile.NewLoop(rules, reconcile.Options[nft.Key, nft.Item]{Name: "nft"}),
	}
	done := make(chan struct{}, 2)
	go func() { _ = n.Links.Run(ctx); done <- struct{}{} }()
	go func() { _ = n.Rules.Run(ctx); done <- struct{}{} }()
	t.Cleanup(func() {
		<-done
		<-done
		links.Close()
		pods.Close()
		rules.Close()
	})
	return n
}
