//go:build lab

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// connect opens a connection to the server, which is closed when the test ends.
func (s *policyScene) connect(t *testing.T, from *lab.Pod, network string) *traffic.Conn {
	t.Helper()
	return connect(t, from, s.server, network)
}

// connect opens a connection, which is closed when the test ends.
func connect(t *testing.T, from, to *lab.Pod, network string) *traffic.Conn {
	t.Helper()
	var open *traffic.Conn
	await(t, "a connection from "+from.Name, func(ctx context.Context) (err error) {
		open, err = traffic.Dial(ctx, from.Netns, network, port(to.IPs[0], sourcePort))
		return err
	})
	t.Cleanup(func() { _ = open.Close() })
	if _, err := open.Ask(); err != nil {
		t.Fatal(err)
	}
	return open
}

// Connections that a policy no longer allows continue if the policy's annotation keeps them, and end when the annotation is removed. New
// ones cannot begin.
func TestPolicyKeepsConnections(t *testing.T) {
	s := newPolicyScene(t, "keep")
	server := map[string]string{"app": "server"}
	only := func(app string) networkingv1.NetworkPolicySpec {
		return ingress(networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": app})}}})
	}
	s.annotations = map[string]string{policy.AnnotationEstablished: policy.EstablishedKeep}
	s.policy(t, "keep", server, only("far"))
	s.reach(t, "far is allowed", map[uint16][3]bool{sourcePort: {false, true, false}})
	conns := map[string][2]*traffic.Conn{}
	for _, network := range []string{"tcp", "udp"} {
		conns[network] = [2]*traffic.Conn{s.connect(t, s.far, network), s.connect(t, s.far, network)}
	}
	s.policy(t, "keep", server, only("near"))
	s.reach(t, "far is no longer allowed", map[uint16][3]bool{sourcePort: {true, false, false}})
	for network, pair := range conns {
		for range 3 {
			if _, err := pair[0].Ask(); err != nil {
				t.Errorf("%s: an established connection ended, although the policy keeps connections: %v", network, err)
			}
		}
	}
	s.annotations = nil
	s.policy(t, "keep", server, only("near"))
	var ending errgroup.Group // all at once: an unanswered request takes long
	for network, pair := range conns {
		ending.Go(func() error {
			_, err := probe.Await(t.Context(), patience, network+": the end of the connection", func(context.Context) error {
				if answer, err := pair[0].Ask(); err == nil {
					return fmt.Errorf("the connection still works: %s", answer)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if answer, err := pair[1].Ask(); err == nil {
				return fmt.Errorf("%s: the other connection still works: %s", network, answer)
			}
			return nil
		})
	}
	if err := ending.Wait(); err != nil {
		t.Error(err)
	}
	s.drop(t, "keep")
	s.reach(t, "no pod is isolated", map[uint16][3]bool{sourcePort: {true, true, true}})
}

// Connections that a policy no longer allows end, whichever side sends. Allowed ones continue; so do those that an isolated pod itself
// began, also before a policy isolated it.
func TestPolicyEndsConnections(t *testing.T) {
	s := newPolicyScene(t, "end")
	server := map[string]string{"app": "server"}
	allow := func(apps ...string) networkingv1.NetworkPolicySpec {
		var peers []networkingv1.NetworkPolicyPeer
		for _, app := range apps {
			peers = append(peers, networkingv1.NetworkPolicyPeer{PodSelector: labelled(map[string]string{"app": app})})
		}
		return ingress(networkingv1.NetworkPolicyIngressRule{From: peers})
	}
	ends, continues := map[string]*traffic.Conn{}, map[string]*traffic.Conn{}
	for _, network := range []string{"tcp", "udp"} {
		ends[network+", older than the rule"] = s.connect(t, s.far, network)
		continues[network+", allowed all the time"] = s.connect(t, s.near, network)
		continues[network+", opened by the isolated pod"] = connect(t, s.server, s.far, network)
	}
	s.policy(t, "end", server, allow("far", "near"))
	s.reach(t, "near and far are allowed", map[uint16][3]bool{sourcePort: {true, true, false}})
	for name, c := range ends {
		if _, err := c.Ask(); err != nil {
			t.Errorf("a connection ended that a rule allows: %s: %v", name, err)
		}
	}
	for _, network := range []string{"tcp", "udp"} {
		ends[network+", newer than the rule"] = s.connect(t, s.far, network)
	}
	s.policy(t, "end", server, allow("near"))
	s.reach(t, "far is no longer allowed", map[uint16][3]bool{sourcePort: {true, false, false}})
	var asking sync.WaitGroup // all at once: an unanswered request takes long
	for name, c := range ends {
		asking.Go(func() {
			if answer, err := c.Ask(); err == nil {
				t.Errorf("a connection that is no longer allowed still works: %s: %s", name, answer)
			}
		})
	}
	asking.Wait()
	for name, c := range continues {
		if _, err := c.Ask(); err != nil {
			t.Errorf("a connection ended: %s: %v", name, err)
		}
	}
	s.drop(t, "end")
	s.reach(t, "no pod is isolated", map[uint16][3]bool{sourcePort: {true, true, true}})
}
