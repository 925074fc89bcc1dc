//go:build real

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
)

// A pod that a policy isolates receives nothing that the policy does not allow, from its first packet: another pod sends to it during the
// whole ADD. What the policy allows arrives.
func TestPolicyHoldsFromTheFirstPacket(t *testing.T) {
	s := newSite(t, 1)
	n := s.network("violet")
	var all []portOf
	for number := range 3 {
		all = append(all, s.port(n, 0, 8, 1+number))
	}
	s.serve()
	node, namespace := s.nodes[0], n.Namespace
	other, _ := start(t, node, namespace, "other", map[string]string{"app": "other"})
	allowed, _ := start(t, node, namespace, "client", map[string]string{"app": "client"})
	policy := onlyClients(t, namespace, "isolated", map[string]string{"app": "victim"})
	eventually(t, "the node has received the policy", func() error {
		return node.deps.Objects.Get(t.Context(), client.ObjectKeyFromObject(policy), &networkingv1.NetworkPolicy{})
	})

	const port = 9000
	send := datagrams(t, other.NetNS, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	for _, p := range all { // no packet waits for an answer to ARP
		other.IP("neigh", "replace", p.address(), "lladdr", p.mac(), "dev", "eth0")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	stop := sync.OnceFunc(func() { cancel(); flood.Wait() })
	t.Cleanup(stop)
	flood.Go(func() {
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
			for _, p := range all {
				_, _ = send.WriteToUDPAddrPort([]byte("other"), netip.AddrPortFrom(netip.MustParseAddr(p.address()), port))
			}
		}
	})

	object := podObject(t, node, namespace, "victim", map[string]string{"app": "victim"})
	victim := ovntest.NewPod(t)
	inside := datagrams(t, victim.NetNS, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	request := node.request(cni.CommandAdd, namespace, "victim", victim.ProcPath())
	request.Args.PodUID = string(object.UID)
	result, err := node.handler.Add(t.Context(), request)
	must(t, err)
	if got := received(t, inside, time.Second*ovstest.Slowness); got != "" {
		t.Errorf("the isolated pod receives %q\n%s", got, node.flowsOf())
	}
	at, is := netip.AddrFromSlice(result.IPs[0].Address.IP)
	if !is {
		t.Fatalf("the pod has address %v", result.IPs[0])
	}
	from := datagrams(t, allowed.NetNS, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	eventually(t, "what the policy allows arrives", func() error {
		if _, err := from.WriteToUDPAddrPort([]byte("client"), netip.AddrPortFrom(at.Unmap(), port)); err != nil {
			return err
		}
		switch got := received(t, inside, time.Second); got {
		case "client":
			return nil
		case "":
			return errors.New("nothing arrives")
		default:
			t.Fatalf("the isolated pod receives %q", got)
			return nil
		}
	})
	must(t, api(t).Delete(t.Context(), policy))
	eventually(t, "without the policy, the other pod's packets arrive", func() error {
		if got := received(t, inside, time.Second); got != "other" {
			return fmt.Errorf("%q arrives", got)
		}
		return nil
	})
	stop()
}
