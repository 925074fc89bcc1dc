package flannel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/test/probe"
)

// fault is a fault on n1. Weft must recover from every fault by itself.
type fault struct {
	name string
	// spares are the pairs that must not lose a packet.
	spares scope
	// limit is the time until the node must be as before; 0: not limited.
	limit time.Duration
	do    func(ctx context.Context, s *scene) error
}

// faults returns all faults, in their order.
func faults() []fault {
	return slices.Concat(devices(), entries(), bridges(), rules(), programs(), peers())
}

// tunnel and bridge are the devices of a node.
const tunnel, bridge = "flannel.1", "cni0"

// byHand is a fault that commands on n1 cause. In a command, PORT is the host veth of pod a-n1, MAC its address, and N2 and N3 are the other
// nodes' subnets without the last number.
func byHand(name string, spares scope, limit time.Duration, commands ...string) fault {
	return fault{name: name, spares: spares, limit: limit, do: func(ctx context.Context, s *scene) error {
		_, port, err := probe.HostEnd(s.pods["a-n1"])
		if err != nil {
			return err
		}
		words := strings.NewReplacer("PORT", port, "MAC", s.mac(), "N2", "10.244.2", "N3", "10.244.3")
		for _, command := range commands {
			if _, err := probe.Run(ctx, s.nodes[0].Enter("sh", "-c", words.Replace(command))); err != nil {
				return err
			}
		}
		return nil
	}}
}

// mac returns the MAC address of pod a-n1, which follows from its address.
func (s *scene) mac() string {
	ip := s.pods["a-n1"].IPs[0].As4()
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3])
}

// devices are faults of the tunnel device and the uplink.
func devices() []fault {
	return []fault{
		byHand("the tunnel device deleted", within, noticed, "ip link del "+tunnel),
		byHand("the tunnel device down", within, noticed, "ip link set "+tunnel+" down"),
		byHand("the tunnel device with another MAC address", within, noticed, "ip link set "+tunnel+" address 02:00:00:00:00:99"),
		byHand("the tunnel device with another MTU", within, noticed, "ip link set "+tunnel+" mtu 1300"),
		byHand("the tunnel device without its address", within, noticed, "ip -4 address flush dev "+tunnel),
		byHand("a tunnel device of another kind in its place", within, noticed,
			"ip link del "+tunnel+"; ip link add "+tunnel+" type vxlan id 7 dstport 4799 && ip link set "+tunnel+" up"),
		byHand("the uplink down, and up again with its address and route", within, 0,
			"route=$(ip route show default) && ip link set eth0 down && ip link set eth0 up && ip route replace $route"),
	}
}

// entries are faults of routes, neighbours and forwarding entries.
func entries() []fault {
	return []fault{
		byHand("a peer's route deleted", within, noticed, "ip route del N2.0/24"),
		byHand("a peer's route changed", within, noticed, "ip route replace N2.0/24 via N3.0 dev "+tunnel+" onlink"),
		byHand("a route to another gateway beside a peer's", all, noticed, "ip route add N2.0/25 via N3.0 dev "+tunnel+" onlink metric 77; ip route del N2.0/25"),
		byHand("a peer's neighbour entry deleted", within, noticed, "ip neigh del N2.0 dev "+tunnel),
		byHand("a peer's neighbour entry changed", within, noticed, "ip neigh replace N2.0 lladdr 02:00:00:00:00:99 dev "+tunnel+" nud permanent"),
		byHand("the peers' forwarding entries deleted", within, noticed,
			"bridge fdb show dev "+tunnel+" | while read mac rest; do bridge fdb del $mac dev "+tunnel+" self; done"),
		byHand("the peers' forwarding entries changed", within, noticed,
			"bridge fdb show dev "+tunnel+" | while read mac rest; do bridge fdb replace $mac dev "+tunnel+" dst 192.0.2.99 self permanent; done"),
		byHand("entries of no peer added", all, noticed,
			"ip neigh replace 10.244.99.0 lladdr 02:00:00:00:00:98 dev "+tunnel+" nud permanent; ip route add 10.244.99.0/24 via 10.244.99.0 dev "+tunnel+" onlink; "+
				"bridge fdb add 02:00:00:00:00:98 dev "+tunnel+" dst 192.0.2.98 self permanent"),
	}
}

// bridges are faults of the bridge and its ports.
func bridges() []fault {
	return []fault{
		byHand("the bridge's nf_call_iptables off", all, noticed, "ip link set "+bridge+" type bridge nf_call_iptables 0"),
		byHand("the bridge with another MAC address", beside, noticed, "ip link set "+bridge+" address 02:00:00:00:00:97"),
		byHand("the bridge down", beside, noticed, "ip link set "+bridge+" down"),
		byHand("the bridge without its address", beside, noticed, "ip -4 address flush dev "+bridge),
		byHand("the bridge deleted", beside, noticed, "ip link del "+bridge),
		byHand("a port removed from the bridge", beside, noticed, "ip link set PORT nomaster"),
		byHand("a port down", beside, noticed, "ip link set PORT down"),
		byHand("a port with learning and flooding", all, noticed, "bridge link set dev PORT learning on flood on"),
		byHand("a port isolated", beside, noticed, "ip link set PORT type bridge_slave isolated on"),
		byHand("a port in another device group", beside, noticed, "ip link set PORT group 0"),
		byHand("a pod's forwarding entry deleted", beside, noticed, "bridge fdb del MAC dev PORT master"),
	}
}

// rules are faults of nftables.
func rules() []fault {
	faults := []fault{
		byHand("all nftables rules flushed", beside, noticed, "nft flush ruleset"),
		byHand("a rule in front of the others", all, noticed, "nft insert rule ip weft-flannel postrouting ip saddr 192.0.2.0/24 accept"),
		byHand("a pod's elements deleted", beside, noticed, "nft flush map inet weft-flannel-pods from4; nft flush map inet weft-flannel-pods to4"),
	}
	for _, table := range []struct {
		name  string
		spare scope
	}{{"ip weft-flannel", beside}, {"inet weft-flannel-pods", beside}, {"bridge weft-flannel-ports", all}, {"bridge weft-flannel-guard", all}} {
		faults = append(faults, byHand("table "+table.name+" deleted", table.spare, noticed, "nft add table "+table.name+"; nft delete table "+table.name)) // of guard, there may be none
	}
	return faults
}

// killed is a fault that ends a program, which the lab starts again.
func killed(name, program string, signal syscall.Signal) fault {
	return fault{name: name, spares: all, do: func(ctx context.Context, s *scene) error {
		if err := probe.Kill(ctx, s.cluster, program, signal); err != nil {
			return err
		}
		for _, n := range s.nodes {
			if _, err := probe.Await(ctx, probe.Patience, n.Name+" ready", func(ctx context.Context) error { return probe.Ready(ctx, n) }); err != nil {
				return err
			}
		}
		return nil
	}}
}

// programs are ends of programs.
func programs() []fault {
	return []fault{
		killed("the agent killed", "n1/weft-agent", syscall.SIGKILL),
		killed("the agent ended", "n1/weft-agent", syscall.SIGTERM),
		killed("the other agent killed", "n2/weft-agent", syscall.SIGKILL),
		killed("flanneld killed", original+"/flanneld", syscall.SIGKILL),
		killed("the controller killed", "weft-controller", syscall.SIGKILL),
		{name: "the API server away for 5 seconds, and the agent killed meanwhile", spares: all, do: func(ctx context.Context, s *scene) error {
			return s.away(ctx, func() error { return nil })
		}},
	}
}

// away cuts the API server off, kills the agent of n1, and does something before the API server is back.
func (s *scene) away(ctx context.Context, meanwhile func() error) error {
	back, err := probe.CutAPI(ctx, s.cluster)
	if err != nil {
		return err
	}
	const awayTime = 5 * time.Second
	err = probe.Kill(ctx, s.cluster, "n1/weft-agent", syscall.SIGKILL)
	if err == nil {
		err = meanwhile()
	}
	select {
	case <-ctx.Done():
	case <-time.After(awayTime):
	}
	if backErr := back(context.WithoutCancel(ctx)); err == nil {
		err = backErr
	}
	if err != nil {
		return err
	}
	_, err = probe.Await(ctx, probe.Patience, "n1 ready", func(ctx context.Context) error { return probe.Ready(ctx, s.nodes[0]) })
	return err
}

// annotations are the keys of flannel's annotations without their prefix.
const annotationPrefix = "flannel.alpha.coreos.com/"

// ghost is a node that only its object represents.
func ghost(name, subnet, public, mac string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			annotationPrefix + "kube-subnet-manager": "true", annotationPrefix + "backend-type": "vxlan", annotationPrefix + "public-ip": public,
			annotationPrefix + "backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, mac),
		}},
		Spec: corev1.NodeSpec{PodCIDR: subnet, PodCIDRs: []string{subnet}},
	}
}

// peers are changes of other nodes, and of the node's own lease.
func peers() []fault {
	return []fault{
		{name: "peers added, moved and removed", spares: all, do: func(ctx context.Context, s *scene) error {
			return s.ghosts(ctx, func(change func() error) error { return change() })
		}},
		{name: "peers added, moved and removed while the agent has no API server", spares: all, do: func(ctx context.Context, s *scene) error {
			return s.ghosts(ctx, func(change func() error) error { return s.away(ctx, change) })
		}},
		{name: "the node's annotations removed", spares: within, do: func(ctx context.Context, s *scene) error {
			return s.unannotate(ctx)
		}},
	}
}

// expect waits until exactly the entries of certain ghosts are on n1, as routes, neighbours and forwarding entries.
func (s *scene) expect(ctx context.Context, want ...*corev1.Node) error {
	_, err := probe.Await(ctx, probe.Patience, fmt.Sprintf("entries of %d peers", len(want)), func(ctx context.Context) error {
		var lines []string
		for _, question := range []string{"ip route show", "ip neigh show nud permanent", "bridge fdb show dev " + tunnel} {
			out, err := probe.Run(ctx, s.nodes[0].Enter(strings.Fields(question)...))
			if err != nil {
				return err
			}
			lines = slices.AppendSeq(lines, strings.Lines(out))
		}
		return entriesOf(lines, want)
	})
	return err
}

// entriesOf returns an error unless the lines have the entries of certain ghosts, and of no other.
func entriesOf(lines []string, want []*corev1.Node) error {
	const subnets, publics, kinds = "10.244.10", "198.18.0.", 3
	found := 0
	for _, line := range lines {
		if strings.Contains(line, subnets) || strings.Contains(line, publics) {
			found++
		}
	}
	for _, node := range want {
		subnet, _, _ := strings.Cut(node.Spec.PodCIDR, "/")
		mac := strings.Split(node.Annotations[annotationPrefix+"backend-data"], `"`)[5]
		for _, part := range [][]string{{node.Spec.PodCIDR, "via " + subnet}, {subnet, "lladdr " + mac}, {mac, "dst " + node.Annotations[annotationPrefix+"public-ip"]}} {
			if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, part[0]) && strings.Contains(line, part[1]) }) {
				return fmt.Errorf("node %s: no entry with %v in:\n%s", node.Name, part, strings.Join(lines, ""))
			}
		}
	}
	if found != kinds*len(want) {
		return fmt.Errorf("%d entries, want %d, in:\n%s", found, kinds*len(want), strings.Join(lines, ""))
	}
	return nil
}

// ghosts has two nodes; the given function changes them: one is removed, one gets another address and MAC, and a third is added. Then all are
// removed.
func (s *scene) ghosts(ctx context.Context, by func(change func() error) error) error {
	k, err := s.cluster.Client()
	if err != nil {
		return err
	}
	nodes := k.CoreV1().Nodes()
	gone, stays := ghost("ghost-gone", "10.244.101.0/24", "198.18.0.1", "02:00:00:00:01:01"), ghost("ghost-moves", "10.244.102.0/24", "198.18.0.2", "02:00:00:00:01:02")
	moved, added := ghost("ghost-moves", "10.244.102.0/24", "198.18.0.12", "02:00:00:00:01:12"), ghost("ghost-new", "10.244.103.0/24", "198.18.0.3", "02:00:00:00:01:03")
	for _, node := range []*corev1.Node{gone, stays} {
		if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := s.expect(ctx, gone, stays); err != nil {
		return err
	}
	if err := by(func() error { return s.move(ctx, k, gone.Name, moved, added) }); err != nil {
		return err
	}
	if err := s.expect(ctx, moved, added); err != nil {
		return err
	}
	for _, node := range []*corev1.Node{moved, added} {
		if err := nodes.Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return s.expect(ctx)
}

func (s *scene) move(ctx context.Context, k kubernetes.Interface, gone string, moved, added *corev1.Node) error {
	nodes := k.CoreV1().Nodes()
	if err := nodes.Delete(ctx, gone, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if _, err := nodes.Create(ctx, added, metav1.CreateOptions{}); err != nil {
		return err
	}
	node, err := nodes.Get(ctx, moved.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node.Annotations = moved.Annotations
	_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
	return err
}

// unannotate removes the public address from the annotations of n1, and waits until the agent has written it again.
func (s *scene) unannotate(ctx context.Context) error {
	k, err := s.cluster.Client()
	if err != nil {
		return err
	}
	const key = annotationPrefix + "public-ip"
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, key)
	if _, err := k.CoreV1().Nodes().Patch(ctx, "n1", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err = probe.Await(ctx, probe.Patience, "annotation "+key+" of n1", func(ctx context.Context) error {
		node, err := k.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err == nil && node.Annotations[key] != s.nodes[0].IP.String() {
			err = fmt.Errorf("it is %q", node.Annotations[key])
		}
		return err
	})
	return err
}
