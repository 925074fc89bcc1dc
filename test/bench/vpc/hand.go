package vpc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/probe"
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

// Hand does on the scene's node by hand what Weft does.
type Hand struct{ scene *Scene }

// ByHand returns the peer of the scene.
func (s *Scene) ByHand() Hand { return Hand{s} }

// Network makes a network.
func (h Hand) Network(ctx context.Context, name string) error {
	return h.scene.nbctl(ctx, append([]string{"--wait=hv"}, network(name)...)...)
}

// AddPods makes a round's interfaces. Their logical ports and namespaces exist before.
func (h Hand) AddPods(name string) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		h.scene.round++
		ids, lines, ports, gone := [podsPerRound]string{}, []string{}, []string{"--wait=hv"}, []string{}
		for i := range podsPerRound {
			ids[i] = fmt.Sprintf("h%d-%d", h.scene.round, i)
			lines = append(lines, "ip netns add "+ids[i])
			ports = append(ports, port(name, ids[i], fmt.Sprintf("10.0.1.%d", 10+i), true)...)
			gone = append(gone, "--", "lsp-del", ids[i])
		}
		if err := h.scene.nbctl(ctx, ports...); err != nil {
			return nil, err
		}
		if err := h.script(ctx, lines...); err != nil {
			return nil, err
		}
		var walls []float64
		lines = nil
		for i, id := range ids {
			began := time.Now()
			if err := h.script(ctx, pod(id, fmt.Sprintf("10.0.1.%d", 10+i))...); err != nil {
				return nil, err
			}
			walls = append(walls, milliseconds(time.Since(began)))
			lines = append(lines, noPod(id)...)
		}
		if err := h.script(ctx, lines...); err != nil {
			return nil, err
		}
		return measure.Figures{Add: measure.Median(walls)}, h.scene.nbctl(ctx, append([]string{"--wait=hv"}, gone[1:]...)...)
	}
}

// handSite is a network with a gateway and a pod.
type handSite struct{ name, pod, gateway string }

func handSiteOf(name string) handSite { return handSite{name, name + "-p", name + "-g"} }

// up makes the network, and then both pods concurrently: their objects, as on Weft's side, and their interfaces.
func (h Hand) up(ctx context.Context, at handSite) error {
	args := append([]string{"--wait=hv"}, network(at.name)...)
	args = append(args, port(at.name, at.pod, server, true)...)
	args = append(args, port(at.name, at.gateway, lanIP, false)...)
	if err := h.scene.nbctl(ctx, args...); err != nil {
		return err
	}
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := objectOf(within, h.scene, at.pod); err != nil {
			return err
		}
		return h.script(within, append([]string{"ip netns add " + at.pod}, pod(at.pod, server)...)...)
	})
	group.Go(func() error {
		if err := objectOf(within, h.scene, at.gateway); err != nil {
			return err
		}
		lines := append([]string{"ip netns add " + at.gateway}, pod(at.gateway, lanIP)...)
		return h.script(within, append(lines, gatewayByHand(at.gateway)...)...)
	})
	return group.Wait()
}

// objectOf creates the object of a pod that is made by hand.
func objectOf(ctx context.Context, s *Scene, name string) error {
	_, err := s.MakeObject(ctx, lab.PodSpec{Namespace: metav1.NamespaceDefault, Name: name, Node: s.node().Name})
	return err //nolint:wrapcheck // it names the pod
}

// down removes all of it.
func (h Hand) down(ctx context.Context, at handSite) error {
	for _, name := range []string{at.pod, at.gateway} {
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
		if err := h.scene.objects.Delete(ctx, object, client.GracePeriodSeconds(0)); err != nil {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	if err := h.script(ctx, append(noPod(at.pod), noPod(at.gateway)...)...); err != nil {
		return err
	}
	return h.scene.nbctl(ctx, "--wait=hv", "lr-del", at.name, "--", "ls-del", at.name)
}

// netns is the path of a namespace that was made by hand.
func (h Hand) netns(name string) string { return h.scene.node().Root("/run/netns/" + name) }

// FirstPing is the peer of the scene's.
func (h Hand) FirstPing(ctx context.Context) (measure.Figures, error) {
	h.scene.round++
	site := handSiteOf(fmt.Sprintf("f%d", h.scene.round))
	began := time.Now()
	if err := h.up(ctx, site); err != nil {
		return nil, err
	}
	at, err := firstAnswer(ctx, h.netns(site.pod), netip.AddrPortFrom(h.scene.External.IP, echoPort))
	if err != nil {
		return nil, err
	}
	return measure.Figures{Ping: milliseconds(at.Sub(began))}, errors.Join(h.down(ctx, site), h.scene.nbctl(ctx, "--wait=hv", "sync"))
}

// floatingIPs applies as many objects without effect, and then adds elements and addresses by one call each.
func (h Hand) floatingIPs(dir string, at handSite) (measure.Side, error) {
	var objects, add, remove, addresses, noAddresses strings.Builder
	for i := range 2 * floatingIPs {
		_, _ = fmt.Fprintf(&objects, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: f%d, namespace: default}, data: {a: b}}\n", i)
	}
	for i := range floatingIPs {
		_, _ = fmt.Fprintf(&add, "add element ip gw in { %s : %s }\nadd element ip gw out { %s : %s }\n", outside(firstByHand+i), internalIP(i), internalIP(i), outside(firstByHand+i))
		_, _ = fmt.Fprintf(&addresses, "addr add %s/32 dev net1\n", outside(firstByHand+i))
		_, _ = fmt.Fprintf(&noAddresses, "addr del %s/32 dev net1\n", outside(firstByHand+i))
	}
	remove.WriteString("flush map ip gw in\nflush map ip gw out\n")
	file := filepath.Join(dir, "objects.yaml")
	if err := os.WriteFile(file, []byte(objects.String()), 0o600); err != nil {
		return nil, fmt.Errorf("write the objects: %w", err)
	}
	program := func(ctx context.Context, elements, addresses string) error {
		return h.script(ctx,
			"ip netns exec "+at.gateway+" nft -f - <<E\n"+elements+"E",
			"ip -n "+at.gateway+" -batch - <<E\n"+addresses+"E")
	}
	return func(ctx context.Context) (measure.Figures, error) {
		began := time.Now()
		if err := h.scene.kubectl(ctx, "apply", "-f", file); err != nil {
			return nil, err
		}
		if err := program(ctx, add.String(), addresses.String()); err != nil {
			return nil, err
		}
		last, err := h.scene.answered(ctx, firstByHand+floatingIPs-1)
		if err != nil {
			return nil, err
		}
		figures := measure.Figures{Floating: milliseconds(last.Sub(began))}
		if err := program(ctx, remove.String(), noAddresses.String()); err != nil {
			return nil, err
		}
		return figures, h.scene.kubectl(ctx, "delete", "-f", file)
	}, nil
}

// script runs shell commands on the node.
func (h Hand) script(ctx context.Context, lines ...string) error {
	_, err := probe.Run(ctx, h.scene.node().Enter("sh", "-e", "-c", strings.Join(lines, "\n")))
	return err
}
