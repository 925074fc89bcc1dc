//go:build real

package nftables_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/internal/reconcile"
)

// A pod that a policy isolates comes and goes while packets with its address pass the chains: none is let through. The loopback device is
// the bridge, so that all packets enter by it.
func TestPacketsDuringCommits(t *testing.T) {
	const rounds = 3000
	pod, peer := netip.MustParseAddr("127.1.0.2"), netip.MustParseAddr("127.1.0.3")
	space := nstest.New(t)
	ip(t, space, "link set lo up")
	engine, err := nftnl.NewEngine(nftnl.Options{Netns: space, Family: nftnl.FamilyInet, Table: "weft_policy"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	deny := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "deny"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}},
	}
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "pod"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	object.Status.PodIP, object.Status.PodIPs = pod.String(), []corev1.PodIP{{IP: pod.String()}}
	world := oracle.World{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	without := compileOn(t, world, "lo")
	world.Pods, world.Policies = []*corev1.Pod{object}, []*networkingv1.NetworkPolicy{deny}
	with := compileOn(t, world, "lo")
	commit := func(desired, have nftables.Items) {
		if err := engine.Commit(t.Context(), reconcile.Diff(desired, have)); err != nil {
			t.Fatal(err)
		}
	}
	commit(without, nil)

	var from, at *net.UDPConn
	err = ns.WithNetNSPath(space, func(ns.NetNS) (err error) {
		if from, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(pod, 0))); err != nil {
			return err
		}
		at, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	to := at.LocalAddr().(*net.UDPAddr).AddrPort() //nolint:forcetypeassert // of a UDP socket
	ctx, stop := context.WithCancel(t.Context())
	var sending errgroup.Group
	sent := 0
	sending.Go(func() error {
		for ctx.Err() == nil {
			// The error of a full queue is about a packet that was let through.
			if _, err := from.WriteToUDPAddrPort([]byte("x"), to); err != nil && !errors.Is(err, os.ErrPermission) {
				return err
			}
			sent++
		}
		return from.Close()
	})
	for range rounds {
		commit(with, without)
		commit(without, with)
	}
	stop()
	if err := sending.Wait(); err != nil {
		t.Error(err)
	}
	passed := 0
	if err := at.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil { // loopback delivers before a send returns
		t.Fatal(err)
	}
	for buffer := make([]byte, 1); ; passed++ {
		if _, err := at.Read(buffer); err != nil {
			break
		}
	}
	t.Logf("%d packets sent during %d commits", sent, 2*rounds)
	if passed > 0 || sent < rounds {
		t.Errorf("%d of %d packets were let through", passed, sent)
	}
}
