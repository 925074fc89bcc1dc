package vpc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
)

// This file is the peer of VPCs: the work of an administrator with OVN's and the kernel's own commands.

// network returns the arguments of ovn-nbctl that make a router and a switch, with a route to the gateway.
func network(name string) []string {
	mac := northbound.MAC(netip.MustParseAddr(router))
	return []string{
		"lr-add", name, "--", "ls-add", name, "--", "lrp-add", name, name + "-router", mac, router + "/24",
		"--", "lsp-add", name, name + "-switch", "--", "lsp-set-type", name + "-switch", "router", "--", "lsp-set-addresses", name + "-switch", "router",
		"--", "lsp-set-options", name + "-switch", "router-port=" + name + "-router", "--", "lr-route-add", name, "0.0.0.0/0", lanIP,
	}
}

// port returns the arguments of ovn-nbctl that make a logical port. A gateway's has no port security.
func port(name, id, address string, secured bool) []string {
	pair := northbound.MAC(netip.MustParseAddr(address)) + " " + address
	args := []string{"--", "lsp-add", name, id, "--", "lsp-set-addresses", id, pair}
	if secured {
		args = append(args, "--", "lsp-set-port-security", id, pair)
	}
	return args
}

// pod returns the commands that make a pod's interface in its existing namespace and wait until OVN has installed its flows.
func pod(id, address string) []string {
	return []string{
		"ip link add " + id + " up type veth peer name eth0 address " + northbound.MAC(netip.MustParseAddr(address)) + " mtu 1400 netns " + id,
		"ip -n " + id + " -batch - <<E\nlink set lo up\naddr add " + address + "/24 dev eth0\nlink set eth0 up\nroute add default via " + router + "\nE",
		"ip netns exec " + id + " ethtool -K eth0 tx off >/dev/null", // as the userspace datapath needs
		"ovs-vsctl --timeout=60 add-port br-int " + id + " -- set Interface " + id + " external_ids:iface-id=" + id,
		"ovs-vsctl --timeout=60 wait-until Interface " + id + " external_ids:ovn-installed=true",
	}
}

// noPod returns the commands that remove a pod.
func noPod(id string) []string {
	return []string{"ovs-vsctl --timeout=60 --if-exists del-port " + id, "ip link del " + id, "ip netns del " + id}
}

// gatewayByHand returns the commands that make a pod a NAT gateway with one address.
func gatewayByHand(id string) []string {
	return []string{
		"ip link add link ens37 name " + id + "o type macvlan mode bridge",
		"ip link set " + id + "o netns " + id + " name net1",
		"ip -n " + id + " -batch - <<E\nlink set net1 up\naddr add " + handEIP + "/24 dev net1\nroute replace default via 192.168.100.1\nE",
		"ip netns exec " + id + " sysctl -qw net.ipv4.ip_forward=1",
		"ip netns exec " + id + " nft -f - <<E\ntable ip gw {\n" +
			"map in { type ipv4_addr : ipv4_addr; }\nmap out { type ipv4_addr : ipv4_addr; }\n" +
			"chain pre { type nat hook prerouting priority -100; dnat to ip daddr map @in; }\n" +
			"chain post { type nat hook postrouting priority 100; oifname net1 snat to ip saddr map @out; oifname net1 ip saddr " + prefix + " snat to " + handEIP + "; }\n}\nE",
	}
}

// HandNetwork makes a network by hand.
func (s *Scene) HandNetwork(ctx context.Context, name string) error {
	return s.nbctl(ctx, append([]string{"--wait=hv"}, network(name)...)...)
}

// AddByHand makes a round's interfaces. Their logical ports and namespaces exist before.
func (s *Scene) AddByHand(name string) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		s.round++
		ids, lines, ports, gone := [podsPerRound]string{}, []string{}, []string{"--wait=hv"}, []string{}
		for i := range podsPerRound {
			ids[i] = fmt.Sprintf("h%d-%d", s.round, i)
			lines = append(lines, "ip netns add "+ids[i])
			ports = append(ports, port(name, ids[i], fmt.Sprintf("10.0.1.%d", 10+i), true)...)
			gone = append(gone, "--", "lsp-del", ids[i])
		}
		if err := s.nbctl(ctx, ports...); err != nil {
			return nil, err
		}
		if err := s.script(ctx, lines...); err != nil {
			return nil, err
		}
		var walls []float64
		lines = nil
		for i, id := range ids {
			began := time.Now()
			if err := s.script(ctx, pod(id, fmt.Sprintf("10.0.1.%d", 10+i))...); err != nil {
				return nil, err
			}
			walls = append(walls, milliseconds(time.Since(began)))
			lines = append(lines, noPod(id)...)
		}
		if err := s.script(ctx, lines...); err != nil {
			return nil, err
		}
		return measure.Figures{Add: measure.Median(walls)}, s.nbctl(ctx, append([]string{"--wait=hv"}, gone[1:]...)...)
	}
}

// handSite is a network with a gateway and a pod.
type handSite struct{ name, pod, gateway string }

func handSiteOf(name string) handSite { return handSite{name, name + "-p", name + "-g"} }

// up makes the network, and then both pods concurrently: their objects, as on Weft's side, and their interfaces.
func (s *Scene) up(ctx context.Context, h handSite) error {
	args := append([]string{"--wait=hv"}, network(h.name)...)
	args = append(args, port(h.name, h.pod, server, true)...)
	args = append(args, port(h.name, h.gateway, lanIP, false)...)
	if err := s.nbctl(ctx, args...); err != nil {
		return err
	}
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := objectOf(within, s, h.pod); err != nil {
			return err
		}
		return s.script(within, append([]string{"ip netns add " + h.pod}, pod(h.pod, server)...)...)
	})
	group.Go(func() error {
		if err := objectOf(within, s, h.gateway); err != nil {
			return err
		}
		lines := append([]string{"ip netns add " + h.gateway}, pod(h.gateway, lanIP)...)
		return s.script(within, append(lines, gatewayByHand(h.gateway)...)...)
	})
	return group.Wait()
}

// objectOf creates the object of a pod that is made by hand.
func objectOf(ctx context.Context, s *Scene, name string) error {
	_, err := s.MakeObject(ctx, lab.PodSpec{Namespace: metav1.NamespaceDefault, Name: name, Node: s.node().Name})
	return err //nolint:wrapcheck // it names the pod
}

// down removes all of it.
func (s *Scene) down(ctx context.Context, h handSite) error {
	for _, name := range []string{h.pod, h.gateway} {
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
		if err := s.objects.Delete(ctx, object, client.GracePeriodSeconds(0)); err != nil {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	if err := s.script(ctx, append(noPod(h.pod), noPod(h.gateway)...)...); err != nil {
		return err
	}
	return s.nbctl(ctx, "--wait=hv", "lr-del", h.name, "--", "ls-del", h.name)
}

// netns is the path of a namespace that was made by hand.
func (s *Scene) netns(name string) string { return s.node().Root("/run/netns/" + name) }

// FirstPingByHand is the peer of FirstPing.
func (s *Scene) FirstPingByHand(ctx context.Context) (measure.Figures, error) {
	s.round++
	h := handSiteOf(fmt.Sprintf("f%d", s.round))
	began := time.Now()
	if err := s.up(ctx, h); err != nil {
		return nil, err
	}
	at, err := firstAnswer(ctx, s.netns(h.pod), netip.AddrPortFrom(s.External.IP, echoPort))
	if err != nil {
		return nil, err
	}
	return measure.Figures{Ping: milliseconds(at.Sub(began))}, errors.Join(s.down(ctx, h), s.nbctl(ctx, "--wait=hv", "sync"))
}
