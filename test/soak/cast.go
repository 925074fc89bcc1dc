package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/report"
	"weft.dev/weft/test/traffic"
)

// echoPort is the port where pods and hosts answer.
const echoPort = 7777

// castNamespace has the permanent pods. Policies select them by castLabel: the pods of pairs have a common value, the others their names.
const (
	castNamespace = "default"
	castLabel     = "cast"
	nameLabel     = "cast-name"
)

// cast are the permanent pods of a run: pairs that exchange packets, an attacker, and its victims.
type cast struct {
	cluster *lab.Cluster
	pods    map[string]*lab.Pod
	echoes  map[string]*traffic.Echo // by the name of the pod or host
	pairs   []traffic.Pair
}

// newCast starts the pods. Close what it returns, also with an error.
func newCast(ctx context.Context, c *lab.Cluster) (*cast, error) {
	cs := &cast{cluster: c, pods: map[string]*lab.Pod{}, echoes: map[string]*traffic.Echo{}}
	specs := map[string]string{
		"a1": "n1", "b1": "n1", "a2": "n2", "b2": "n2", "attacker": "n1", "neighbour": "n1", "remote": "n2",
	}
	labels := map[string]string{"a1": peers, "b1": peers, "a2": peers, "b2": peers}
	made := make(chan *lab.Pod, len(specs))
	var group errgroup.Group
	for name, node := range specs {
		group.Go(func() error {
			label := map[string]string{castLabel: cmp.Or(labels[name], name), nameLabel: name}
			p, err := probe.AddPod(ctx, c, lab.PodSpec{Node: node, Namespace: castNamespace, Name: name, Labels: label})
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
		cs.pairs = append(cs.pairs, traffic.Pair{Name: name, From: cs.pods[from].Netns, To: cs.at(to)})
	}
	pair("n1 to n1", "a1", "b1")
	pair("n2 to n2", "a2", "b2")
	pair("n1 to n2", "a1", "b2")
	pair("n2 to n1", "a2", "b1")
	return cs, cs.reach(ctx)
}

func (cs *cast) at(name string) netip.AddrPort {
	return netip.AddrPortFrom(cs.pods[name].IPs[0], echoPort)
}

// answer answers UDP in a namespace until the cast is closed.
func (cs *cast) answer(name, netns string, ip netip.Addr) error {
	e, err := traffic.NewEcho(netns, netip.AddrPortFrom(ip, echoPort))
	if err == nil {
		cs.echoes[name] = e
	}
	return err
}

func (cs *cast) close(ctx context.Context) error {
	var errs []error
	for _, e := range cs.echoes {
		errs = append(errs, e.Close())
	}
	for _, p := range cs.pods {
		errs = append(errs, probe.Detach(ctx, p))
	}
	return errors.Join(errs...)
}

// reach waits until all required paths work: pods to pods, nodes to pods, and pods to the outside.
func (cs *cast) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	outside := netip.AddrPortFrom(cs.cluster.Outside.IP, echoPort)
	ways := append([]traffic.Pair{
		{Name: "the attacker's node to its neighbour", From: cs.cluster.Node(1).Netns, To: cs.at("neighbour")},
		{Name: "n2 to a pod of n1", From: cs.cluster.Node(2).Netns, To: cs.at("a1")},
		{Name: "n1 to a pod of n2", From: cs.cluster.Node(1).Netns, To: cs.at("a2")},
		{Name: "attacker to neighbour", From: cs.pods["attacker"].Netns, To: cs.at("neighbour")},
		{Name: "attacker to remote", From: cs.pods["attacker"].Netns, To: cs.at("remote")},
		{Name: "n1's pod to outside", From: cs.pods["a1"].Netns, To: outside},
		{Name: "n2's pod to outside", From: cs.pods["a2"].Netns, To: outside},
	}, cs.pairs...)
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

// fresh adds a pod on a node, checks that a pod of the other node reaches it, and deletes it.
func (cs *cast) fresh(ctx context.Context, node, name string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	p, err := probe.AddPod(ctx, cs.cluster, lab.PodSpec{Node: node, Name: name, NoObject: true})
	if p != nil {
		defer func() { err = errors.Join(err, probe.Detach(ctx, p)) }()
	}
	if err != nil {
		return fmt.Errorf("a new pod on %s: %w", node, err)
	}
	return cs.reached(ctx, p)
}

// reached checks that a permanent pod of the other node reaches a pod.
func (cs *cast) reached(ctx context.Context, p *lab.Pod) error {
	at := netip.AddrPortFrom(p.IPs[0], echoPort)
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

// load runs traffic while f runs, and adds its result to the row.
func (s *soak) load(ctx context.Context, r *report.Row, spared losses.Scope, f func() error) error {
	tallies, lost, err := losses.Count(ctx, s.cast.pairs, s.opts.rate, 0, f)
	rule := losses.Rule{Spares: spared.Covers}
	loss := rule.Judge(tallies)
	r.Spared, r.Sent, r.Lost, r.Others = string(spared), r.Sent+loss.Sent, r.Lost+loss.Lost, r.Others+loss.Others
	if loss.Err != nil && s.opts.loss {
		s.blame(ctx, r, spared, lost)
	}
	if !s.opts.loss && r.Verdict == "" && spared != losses.None {
		r.Verdict = report.Unjudged
	}
	return err
}

// controlTime is the duration of the control run after a loss.
const controlTime = 10 * time.Second

// blame decides whether the fault lost the packets, by running the same traffic without it.
func (s *soak) blame(ctx context.Context, r *report.Row, spared losses.Scope, lossErr error) {
	lost, controlErr := s.control(ctx, spared, controlTime)
	if lost > 0 || controlErr != nil {
		r.Verdict = report.Busy
		r.Fail(fmt.Errorf("packets were lost, and %d of the same traffic right after, without a fault: %w", lost, errors.Join(lossErr, controlErr)))
		return
	}
	r.Fail(fmt.Errorf("packets were lost, and none of the same traffic in %s right after: %w", controlTime, lossErr))
}

// control runs the traffic without a fault, and returns its loss.
func (s *soak) control(ctx context.Context, spared losses.Scope, length time.Duration) (lost uint64, err error) {
	if !s.opts.loss {
		return 0, nil
	}
	tallies, _, err := losses.Count(ctx, s.cast.pairs, s.opts.rate, length, ctx.Err)
	rule := losses.Rule{Spares: spared.Covers}
	return rule.Judge(tallies).Lost, errors.Join(err, ctx.Err())
}
