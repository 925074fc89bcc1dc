//go:build real

package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/testwait"
)

// plant adds a connection from an outside address to the node's conntrack table.
func (s *stage) plant(t *testing.T, to netip.Addr) {
	t.Helper()
	family, from := netlink.InetFamily(unix.AF_INET), net.IPv4(192, 0, 2, 9).To4()
	if to.Is6() {
		family, from = unix.AF_INET6, net.ParseIP("2001:db8::9")
	}
	const client, port, timeout = 40000, 8080, 600
	err := s.space.Do(func(ns.NetNS) error {
		return netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: timeout,
			Forward: netlink.IPTuple{SrcIP: from, DstIP: to.AsSlice(), SrcPort: client, DstPort: port, Protocol: unix.IPPROTO_UDP},
			Reverse: netlink.IPTuple{SrcIP: to.AsSlice(), DstIP: from, SrcPort: port, DstPort: client, Protocol: unix.IPPROTO_UDP},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// plantedTo returns the addresses to which the node's conntrack table has planted connections.
func (s *stage) plantedTo() (have []netip.Addr, err error) {
	err = s.space.Do(func(ns.NetNS) error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, flow := range flows {
				if to, ok := netip.AddrFromSlice(flow.Forward.DstIP); ok && flow.Forward.SrcPort == 40000 {
					have = append(have, to.Unmap())
				}
			}
		}
		return nil
	})
	return have, err
}

// planted returns an error unless these are the addresses of plantedTo.
func (s *stage) planted(want ...netip.Addr) error {
	have, err := s.plantedTo()
	slices.SortFunc(have, netip.Addr.Compare)
	slices.SortFunc(want, netip.Addr.Compare)
	if err == nil && !slices.Equal(have, want) {
		err = fmt.Errorf("connections to %v, want %v", have, want)
	}
	return err
}

// knock sends a packet to an address without a pod: it waits in the kernel until the address is resolved.
func (s *stage) knock(t *testing.T, to netip.Addr) {
	t.Helper()
	err := s.space.Do(func(ns.NetNS) error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, 8080).String())
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte("x"))
		return errors.Join(err, conn.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	if waiting, err := s.awaited(to); err != nil || !waiting {
		t.Fatalf("a packet for %s waits: %v, %v", to, waiting, err)
	}
}

// awaited reports whether the node has a neighbour entry for an address.
func (s *stage) awaited(address netip.Addr) (waiting bool, err error) {
	err = s.space.Do(func(ns.NetNS) error {
		entries, err := netlink.NeighList(0, unix.AF_INET)
		waiting = slices.ContainsFunc(entries, func(n netlink.Neigh) bool { return n.IP.Equal(address.AsSlice()) })
		return err
	})
	return waiting, err
}

// register creates the Node of the stage, and pods with labels in namespace default.
func (s *stage) register(t *testing.T, clients kubernetes.Interface, labels map[string]string, pods ...string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, subnet := range s.state.Subnets {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, subnet.String())
	}
	node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	if _, err := clients.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	t.Cleanup(func() { _ = clients.CoreV1().Nodes().Delete(context.Background(), node.Name, now) })
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}}
	_, err := clients.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for _, name := range pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels}}
		pod.Spec = corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		if _, err := clients.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = clients.CoreV1().Pods("default").Delete(context.Background(), name, now) })
	}
}

// TestConnectionsToFreeAddresses: while no pod of the node is isolated, packets to an address without a pod make entries in conntrack. An isolated
// pod with such an address does not inherit them, neither the first one nor those after it. Packets that wait for its address are dropped.
func TestConnectionsToFreeAddresses(t *testing.T) {
	clients, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	s.judge = enforcing(t)
	selected := map[string]string{"app": "closed"}
	s.register(t, clients, selected, "closed-1", "closed-2", "closed-3")
	policies := clients.NetworkingV1().NetworkPolicies("default")
	closed := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "closed"}}
	closed.Spec.PodSelector.MatchLabels = selected
	closed.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	if _, err := policies.Create(t.Context(), closed, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = policies.Delete(context.Background(), "closed", metav1.DeleteOptions{}) })
	h := serve(t, s)
	testwait.Eventually(t, "no chain that pods do not need", func() error { return hooks(s.space, 0, 0) })
	addresses := map[string]netip.Addr{"closed-1": netip.MustParseAddr("10.244.3.21"), "closed-2": netip.MustParseAddr("10.244.3.22"), "closed-3": netip.MustParseAddr("10.244.3.23")}
	s.plant(t, addresses["closed-1"])
	s.plant(t, addresses["closed-2"])
	s.knock(t, addresses["closed-1"])
	s.knock(t, addresses["closed-2"])
	attached := func(name string) {
		t.Helper()
		if _, err := add(t, h, name, space(t), addresses[name].String()); err != nil {
			t.Fatal(err)
		}
		if have, err := s.plantedTo(); err != nil || slices.Contains(have, addresses[name]) {
			t.Errorf("%s has inherited a connection: %v, %v", name, have, err)
		}
		if waiting, err := s.awaited(addresses[name]); err != nil || waiting {
			t.Errorf("packets that came before %s wait for it: %v, %v", name, waiting, err)
		}
	}
	attached("closed-1")
	testwait.Eventually(t, "connections to other free addresses end", func() error { return s.planted() })
	attached("closed-2")
	if err := h.Del(t.Context(), &cni.Request{Command: cni.CommandDel, ContainerID: "closed-2", IfName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	if err := h.Del(t.Context(), &cni.Request{Command: cni.CommandDel, ContainerID: "closed-1", IfName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "no chain that pods do not need any more", func() error { return hooks(s.space, 0, 0) })
	s.plant(t, addresses["closed-3"])
	s.knock(t, addresses["closed-3"])
	attached("closed-3")
}

// TestConnectionsOfFormerPods: a pod does not inherit connections of its addresses: directly after the DEL of the former pod, later, or
// when no agent ran meanwhile. Connections of a pod that stays are kept.
func TestConnectionsOfFormerPods(t *testing.T) {
	clients, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	s.judge = enforcing(t)
	s.register(t, clients, nil, "stays", "first", "second", "third")
	spaces := map[string]ns.NetNS{}
	attached := func(h *lifecycle.Handler, name string, ips ...string) (all []netip.Addr) {
		t.Helper()
		if spaces[name] == nil {
			spaces[name] = space(t)
		}
		result, err := add(t, h, name, spaces[name], ips...)
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range result.IPs {
			addr, _ := netip.AddrFromSlice(ip.Address.IP)
			all = append(all, addr.Unmap())
		}
		return all
	}
	detach := func(h *lifecycle.Handler, name string) {
		t.Helper()
		err := h.Del(t.Context(), &cni.Request{Command: cni.CommandDel, ContainerID: name, IfName: "eth0", Netns: spaces[name].Path()})
		if err != nil {
			t.Fatal(err)
		}
		testwait.Eventually(t, name+" is removed", func() error {
			if !h.Idle() {
				return fmt.Errorf("it waits")
			}
			return nil
		})
	}
	plant := func(addresses []netip.Addr) {
		t.Helper()
		for _, a := range addresses {
			s.plant(t, a)
		}
	}
	texts := func(addresses []netip.Addr) (ips []string) {
		for _, a := range addresses {
			ips = append(ips, a.String())
		}
		return ips
	}
	// No agent has ever run: there are connections of other programs.
	never := []netip.Addr{netip.MustParseAddr("10.244.3.77"), netip.MustParseAddr("fd00:244:0:3::77")}
	outside := netip.MustParseAddr("198.51.100.7")
	plant(append(never, outside))
	h, stop := serveUntil(t, s)
	if err := s.planted(outside); err != nil {
		t.Fatalf("after the start: %v", err)
	}
	stays := attached(h, "stays")
	first := attached(h, "first")
	plant(append(slices.Clone(stays), first...))
	if err := s.planted(append([]netip.Addr{outside}, append(slices.Clone(stays), first...)...)...); err != nil {
		t.Fatal(err)
	}
	detach(h, "first")
	attached(h, "second", texts(first)...)
	if err := s.planted(append([]netip.Addr{outside}, stays...)...); err != nil {
		t.Fatalf("the address was given out again at once: %v", err)
	}
	plant(first)
	detach(h, "second")
	testwait.Eventually(t, "connections of a pod that is gone are removed", func() error {
		return s.planted(append([]netip.Addr{outside}, stays...)...)
	})
	attached(h, "third", texts(first)...)
	plant(first)
	stop()
	plant(never)
	h, stop = serveUntil(t, s)
	defer stop()
	if err := s.planted(append([]netip.Addr{outside}, append(slices.Clone(stays), first...)...)...); err != nil {
		t.Fatalf("after another start: %v", err)
	}
	for _, name := range []string{"third", "stays"} {
		detach(h, name)
	}
	testwait.Eventually(t, "connections of pods that are gone are removed", func() error { return s.planted(outside) })
}
