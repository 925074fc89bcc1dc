// Package cast has the pods that run during all of the soak's parts on the overlay network.
package cast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// EchoPort is the port where pods and hosts answer.
const EchoPort = 7777

// Namespace has the permanent pods. Policies select them by Label: the pods of pairs have the value Peers, the others their names.
const (
	Namespace = "default"
	Label     = "cast"
	NameLabel = "cast-name"
	Peers     = "pairs"
)

// Cast are the permanent pods of a lab: pairs that exchange packets, an attacker, and its victims.
type Cast struct {
	Cluster *lab.Cluster
	// Pairs are the pods that exchange packets.
	Pairs  []traffic.Pair
	pods   map[string]*lab.Pod
	echoes map[string]*traffic.Echo // by the name of the pod or host
}

// New starts the pods. Close what it returns, also with an error.
func New(ctx context.Context, c *lab.Cluster) (*Cast, error) {
	cs := &Cast{Cluster: c, pods: map[string]*lab.Pod{}, echoes: map[string]*traffic.Echo{}}
	specs := map[string]string{
		"a1": "n1", "b1": "n1", "a2": "n2", "b2": "n2", "attacker": "n1", "neighbour": "n1", "remote": "n2",
	}
	labels := map[string]string{"a1": Peers, "b1": Peers, "a2": Peers, "b2": Peers}
	made := make(chan *lab.Pod, len(specs))
	var group errgroup.Group
	for name, node := range specs {
		group.Go(func() error {
			label := map[string]string{Label: cmp.Or(labels[name], name), NameLabel: name}
			p, err := probe.AddPod(ctx, c, lab.PodSpec{Node: node, Namespace: Namespace, Name: name, Labels: label})
			if p != nil {
				made <- p
			}
			return err
		})
	}
	err := group.Wait()
	close(made)
	for p := range made {
		cs.pods[p.Name] = p
	}
	if err != nil {
		return cs, err
	}
	for _, p := range cs.pods {
		if err := cs.answer(p.Name, p.Netns, p.IPs[0]); err != nil {
			return cs, err
		}
	}
	if err := cs.answer("outside", c.Outside.Netns, c.Outside.IP); err != nil {
		return cs, err
	}
	pair := func(name, from, to string) {
		cs.Pairs = append(cs.Pairs, traffic.Pair{Name: name, From: cs.pods[from].Netns, To: cs.At(to)})
	}
	pair("n1 to n1", "a1", "b1")
	pair("n2 to n2", "a2", "b2")
	pair("n1 to n2", "a1", "b2")
	pair("n2 to n1", "a2", "b1")
	return cs, cs.Reach(ctx)
}

// Pod returns a pod by its name.
func (cs *Cast) Pod(name string) *lab.Pod { return cs.pods[name] }

// Holders returns the pods by their addresses.
func (cs *Cast) Holders() map[netip.Addr]*lab.Pod {
	holders := map[netip.Addr]*lab.Pod{}
	for _, p := range cs.pods {
		holders[p.IPs[0]] = p
	}
	return holders
}

// Sources counts the datagrams that a pod or host has received, by their sources.
func (cs *Cast) Sources(name string) map[netip.Addr]int { return cs.echoes[name].Sources() }

// At returns where a pod answers.
func (cs *Cast) At(name string) netip.AddrPort {
	return netip.AddrPortFrom(cs.pods[name].IPs[0], EchoPort)
}

// answer answers UDP in a namespace until the cast is closed.
func (cs *Cast) answer(name, netns string, ip netip.Addr) error {
	e, err := traffic.NewEcho(netns, netip.AddrPortFrom(ip, EchoPort))
	if err == nil {
		cs.echoes[name] = e
	}
	return err
}

// Close ends the answers, and deletes the pods.
func (cs *Cast) Close(ctx context.Context) error {
	var errs []error
	for _, e := range cs.echoes {
		errs = append(errs, e.Close())
	}
	for _, p := range cs.pods {
		errs = append(errs, probe.Detach(ctx, p))
	}
	return errors.Join(errs...)
}

// Reach waits until all required paths work: pods to pods, nodes to pods, and pods to the outside.
func (cs *Cast) Reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	outside := netip.AddrPortFrom(cs.Cluster.Outside.IP, EchoPort)
	ways := append([]traffic.Pair{
		{Name: "the attacker's node to its neighbour", From: cs.Cluster.Node(1).Netns, To: cs.At("neighbour")},
		{Name: "n2 to a pod of n1", From: cs.Cluster.Node(2).Netns, To: cs.At("a1")},
		{Name: "n1 to a pod of n2", From: cs.Cluster.Node(1).Netns, To: cs.At("a2")},
		{Name: "attacker to neighbour", From: cs.pods["attacker"].Netns, To: cs.At("neighbour")},
		{Name: "attacker to remote", From: cs.pods["attacker"].Netns, To: cs.At("remote")},
		{Name: "n1's pod to outside", From: cs.pods["a1"].Netns, To: outside},
		{Name: "n2's pod to outside", From: cs.pods["a2"].Netns, To: outside},
	}, cs.Pairs...)
	var group errgroup.Group
	for _, way := range ways {
		group.Go(func() error {
			if _, err := traffic.Ping(ctx, way.From, way.To); err != nil {
				return fmt.Errorf("%s: %w", way.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Fresh adds a pod on a node, checks that a pod of the other node reaches it, and deletes it.
func (cs *Cast) Fresh(ctx context.Context, node, name string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	p, err := probe.AddPod(ctx, cs.Cluster, lab.PodSpec{Node: node, Name: name, NoObject: true})
	if p != nil {
		defer func() { err = errors.Join(err, probe.Detach(ctx, p)) }()
	}
	if err != nil {
		return fmt.Errorf("a new pod on %s: %w", node, err)
	}
	return cs.Reached(ctx, p)
}

// Reached checks that a permanent pod of the other node reaches a pod.
func (cs *Cast) Reached(ctx context.Context, p *lab.Pod) error {
	at := netip.AddrPortFrom(p.IPs[0], EchoPort)
	e, err := traffic.NewEcho(p.Netns, at)
	if err != nil {
		return fmt.Errorf("in pod %s of %s: %w", p.Name, p.Node.Name, err)
	}
	defer func() { _ = e.Close() }()
	if _, err := traffic.Ping(ctx, cs.pods[otherOf(p.Node.Name)].Netns, at); err != nil {
		return fmt.Errorf("pod %s of %s: %w", p.Name, p.Node.Name, err)
	}
	return nil
}

// otherOf returns the permanent pod of the other node.
func otherOf(node string) string {
	if node == "n1" {
		return "a2"
	}
	return "a1"
}
