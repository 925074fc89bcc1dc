package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/program"
)

// guest is a host without a Node, which is added and deleted; guestSubnet is the subnet that it requests.
const guest, guestIP, guestSubnet = "guest.example", "172.31.0.201", "10.131.250.0/23"

// clusterFaults are the faults of the control plane and of its objects.
func clusterFaults() []Fault {
	kill := func(name string) Fault {
		return Fault{Name: name + " killed", Spares: losses.All, Kills: []string{name, "weft-controller", "kube-apiserver"}, Do: func(ctx context.Context, s *Scene, _ lab.Node) (string, error) {
			return "", probe.Kill(ctx, s.Cluster, name, syscall.SIGKILL)
		}}
	}
	return []Fault{
		kill("kube-apiserver"), kill("etcd"), kill("weft-controller"),
		{Name: "the controller hangs", Spares: losses.All, Kills: []string{"weft-controller"}, Do: func(ctx context.Context, s *Scene, _ lab.Node) (string, error) {
			return "", program.Hang(ctx, s.Cluster, "weft-controller", 5*time.Second, func() error { return nil })
		}},
		{Name: "a host without a node is added, moved and deleted", Spares: losses.All, Do: guestMoves},
		{Name: "two hosts have one address for a while", Spares: losses.All, Do: sameAddress},
		{Name: "invalid objects", Spares: losses.All, Do: wrongObjects},
		{Name: "a change of the tunnels' port, refused", Spares: losses.All, Do: otherPort},
		{Name: "a node's address changed and changed back", Spares: losses.Local, Do: otherNodeAddress},
	}
}

func guestMoves(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	hosts, err := s.guestComes(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, guestGoes(ctx, hosts)) }()
	if err := s.guestSeen(ctx, n); err != nil {
		return "", err
	}
	const moved = "172.31.0.202"
	if _, err := hosts.Patch(ctx, guest, types.MergePatchType, fmt.Appendf(nil, `{"hostIP":%q}`, moved), metav1.PatchOptions{}); err != nil {
		return "", err
	}
	return "", s.seen(ctx, n, moved)
}

// sameAddress makes a host's object again under another name before the old one is deleted: two objects have one address, and deleting
// one must not remove the other's flows.
func sameAddress(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	hosts, err := s.guestComes(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, guestGoes(ctx, hosts)) }()
	const twin, twinSubnet = "twin.example", "10.131.252.0/23"
	if _, err := hosts.Create(ctx, probe.HostSubnet(twin, twin, guestIP, twinSubnet, nil), metav1.CreateOptions{}); err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, hosts.Delete(context.WithoutCancel(ctx), twin, metav1.DeleteOptions{}))
	}()
	leads := func(subnet string, want bool) error {
		_, err := probe.Await(ctx, program.RecoveryTime, "flows to "+subnet, func(ctx context.Context) error {
			if flows := probe.StateIn(ctx, n, "flows"); strings.Contains(flows, "nw_dst="+subnet) != want || want && !strings.Contains(flows, "tun_src="+guestIP) {
				return fmt.Errorf("the flows are there: %v", !want)
			}
			return nil
		})
		return err
	}
	if err := errors.Join(leads(guestSubnet, true), leads(twinSubnet, true)); err != nil {
		return "", err
	}
	return "", errors.Join(guestGoes(ctx, hosts), leads(guestSubnet, false), leads(twinSubnet, true))
}

// wrongObjects writes invalid objects; agents ignore those that the API server accepts.
func wrongObjects(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	hosts, err := probe.Objects(s.Cluster, networkv1.GroupName, "hostsubnets")
	if err != nil {
		return "", err
	}
	own, err := hosts.Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	subnet, _, _ := unstructured.NestedString(own.Object, "subnet")
	taken := 0
	for i, object := range []*unstructured.Unstructured{
		probe.HostSubnet("bad-0", "bad-0", "nowhere", "10.131.0.0/23", nil),
		probe.HostSubnet("bad-1", "bad-1", "172.31.0.203", "10.131.0.0", nil),
		probe.HostSubnet("bad-2", "bad-2", "172.31.0.204", "192.168.0.0/23", nil),
		probe.HostSubnet("bad-3", "bad-3", "172.31.0.205", subnet, nil),
		probe.HostSubnet("bad-4", "bad-4", n.IP.String(), "10.131.2.0/23", nil),
		probe.HostSubnet("bad-5", "n2", "172.31.0.206", "10.131.6.0/23", nil),
	} {
		if _, createErr := hosts.Create(ctx, object, metav1.CreateOptions{}); createErr != nil {
			continue // a refusal is correct too
		}
		taken++
		defer func() {
			err = errors.Join(err, hosts.Delete(context.WithoutCancel(ctx), fmt.Sprintf("bad-%d", i), metav1.DeleteOptions{}))
		}()
	}
	if err := s.Cast.Fresh(ctx, n.Name, "wrong"); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of 6 accepted by the API server", taken), s.Cast.Reach(ctx)
}

// otherPort tries to change the tunnels' port while everything runs: the change is refused, and the port stays the same.
func otherPort(ctx context.Context, s *Scene, _ lab.Node) (note string, err error) {
	networks, err := probe.Objects(s.Cluster, networkv1.GroupName, "clusternetworks")
	if err != nil {
		return "", err
	}
	_, err = networks.Patch(ctx, networkv1.ClusterNetworkDefault, types.MergePatchType, []byte(`{"vxlanPort":4790}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		return "", fmt.Errorf("another vxlanPort: %w, want a refusal", err)
	}
	for _, n := range s.Cluster.Nodes() {
		if err := probe.TunnelsAt(ctx, n, 4789); err != nil {
			return "", err
		}
	}
	return "", s.Cast.Reach(ctx)
}

// otherNodeAddress gives the second node another address, as an administrator would, and then the old one again.
func otherNodeAddress(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	n2 := s.Cluster.Node(2)
	was, now := n2.IP.String(), "172.31.0.102"
	defer func() {
		err = errors.Join(err, s.readdress(context.WithoutCancel(ctx), n2, was))
	}()
	if err := s.readdress(ctx, n2, now); err != nil {
		return "", err
	}
	if err := s.seen(ctx, n, now); err != nil {
		return "", err
	}
	begun := time.Now()
	err = s.Cast.Reach(ctx)
	return "all pods reached " + time.Since(begun).Round(time.Millisecond).String() + " after", err
}

// readdress changes a node's address: on its link, in its switch's own routes, and in its Node object, as a kubelet does.
func (s *Scene) readdress(ctx context.Context, n lab.Node, to string) error {
	device := "eth0"
	if s.Cluster.Datapath == "netdev" {
		device = "br-phy"
	}
	// Tunnels use the first address. The lab restores its nodes' addresses, also between the two commands: then it would be the first, or there
	// already.
	script := fmt.Sprintf("until ip -o -4 addr show dev %[2]s | head -n 1 | grep -qF ' %[1]s/'; do "+
		"ip addr flush dev %[2]s; ip addr replace %[1]s/24 dev %[2]s; done; ip route replace default via 172.31.0.254 dev %[2]s", to, device)
	if _, err := probe.Run(ctx, n.Enter("sh", "-ec", script)); err != nil {
		return err
	}
	if device == "br-phy" {
		// The default route goes first and comes last: with it alone, tunnels would go through the gateway, and the other node would take the
		// gateway's MAC address from them for this node's (terminate_native_tunnel in Open vSwitch). Then both would send through the gateway,
		// each because of the other's packets, until some ARP reply ends it.
		for _, argv := range [][]string{
			{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/del", "0.0.0.0/0"},
			{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/del", "172.31.0.0/24"},
			{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/add", "172.31.0.0/24", device},
			{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/add", "0.0.0.0/0", device, "172.31.0.254"},
		} {
			if _, err := probe.Run(ctx, n.Enter(argv...)); err != nil {
				return err
			}
		}
	}
	nodes, err := probe.Objects(s.Cluster, "", "nodes")
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`, to)
	_, err = nodes.Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// guestComes makes a HostSubnet for a host without a Node.
func (s *Scene) guestComes(ctx context.Context) (dynamic.ResourceInterface, error) {
	hosts, err := probe.Objects(s.Cluster, networkv1.GroupName, "hostsubnets")
	if err != nil {
		return nil, err
	}
	_, err = hosts.Create(ctx, probe.HostSubnet(guest, guest, guestIP, guestSubnet, nil), metav1.CreateOptions{})
	return hosts, err
}

func guestGoes(ctx context.Context, hosts dynamic.ResourceInterface) error {
	err := hosts.Delete(context.WithoutCancel(ctx), guest, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// guestSeen waits until a node has the flows of the host without a Node.
func (s *Scene) guestSeen(ctx context.Context, n lab.Node) error { return s.seen(ctx, n, guestIP) }

// seen waits until a node accepts tunnel packets from an address.
func (s *Scene) seen(ctx context.Context, n lab.Node, address string) error {
	_, err := probe.Await(ctx, program.RecoveryTime, "flows for "+address+" on "+n.Name, func(ctx context.Context) error {
		if !strings.Contains(probe.StateIn(ctx, n, "flows"), "tun_src="+address) {
			return errors.New("there are no flows")
		}
		return nil
	})
	return err
}
