package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
)

// requestFaults are wrong requests of runtimes.
func requestFaults() []fault {
	return []fault{
		{name: "DEL twice, one after the other", spares: losses.All, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			p, err := s.pod(ctx, n, "twice")
			if err != nil {
				return "", err
			}
			return "", errors.Join(once(ctx, p), once(ctx, p), once(ctx, p))
		}},
		{name: "DEL eight times at once", spares: losses.All, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			p, err := s.pod(ctx, n, "eight")
			if err != nil {
				return "", err
			}
			var group errgroup.Group
			for range 8 {
				group.Go(func() error { return once(ctx, p) })
			}
			return "", group.Wait()
		}},
		{name: "ADD without DEL, garbage collected", spares: losses.All, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			p, err := s.pod(ctx, n, "forgotten")
			if err != nil {
				return "", err
			}
			return "", errors.Join(forget(ctx, p), n.CollectGarbage(ctx))
		}},
		{name: "ADD without DEL, the namespace removed, DEL late", spares: losses.All, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			p, err := s.pod(ctx, n, "late")
			if err != nil {
				return "", err
			}
			return "", errors.Join(forget(ctx, p), s.cast.fresh(ctx, n.Name, "between"), probe.Detach(ctx, p))
		}},
		{name: "ADD twice with the same sandbox", spares: losses.All, do: addTwice},
		{name: "garbage collection while all pods are in use", spares: losses.All, do: func(ctx context.Context, _ *soak, n lab.Node) (string, error) {
			return "", n.CollectGarbage(ctx)
		}},
		{name: "a name used again within a second, 20 times", spares: losses.All, do: sameName},
		{name: "a new pod of the same name before the DEL of the old one", spares: losses.All, do: lateDel},
		{name: "addresses exhausted", spares: losses.None, do: exhaust},
		{name: "the runtime ends during ADD", spares: losses.All, do: abandon},
	}
}

// pod adds a pod as a kubelet does.
func (s *soak) pod(ctx context.Context, n lab.Node, name string) (*lab.Pod, error) {
	return probe.AddPod(ctx, s.cluster, lab.PodSpec{Node: n.Name, Name: name, NoObject: true})
}

// once sends one DEL.
func once(ctx context.Context, p *lab.Pod) error {
	_, err := p.Detach(ctx)
	return err
}

// addTwice repeats an ADD whose answer the runtime did not get: the answer must be the same.
func addTwice(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	p, err := s.pod(ctx, n, "again")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, probe.Detach(ctx, p)) }()
	again, err := p.AddAgain(ctx)
	if err != nil {
		return "", err
	}
	if string(again) != string(p.Result) {
		return "", fmt.Errorf("the second answer is %s, the first was %s", again, p.Result)
	}
	return "", s.cast.reached(ctx, p)
}

// sameName replaces a pod by one of the same name, repeatedly and at once.
func sameName(ctx context.Context, s *soak, n lab.Node) (string, error) {
	for range 20 {
		p, err := s.pod(ctx, n, "same")
		if err != nil {
			return "", err
		}
		if err := errors.Join(s.cast.reached(ctx, p), probe.Detach(ctx, p)); err != nil {
			return "", err
		}
	}
	return "", nil
}

// lateDel deletes a pod only after its successor of the same name runs; the successor must not be affected.
func lateDel(ctx context.Context, s *soak, n lab.Node) (string, error) {
	old, err := s.pod(ctx, n, "same")
	if err != nil {
		return "", err
	}
	fresh, err := s.pod(ctx, n, "same")
	if err != nil {
		return "", errors.Join(err, probe.Detach(ctx, old))
	}
	if err := errors.Join(probe.Detach(ctx, old), once(ctx, old)); err != nil {
		return "", err
	}
	err = errors.Join(s.cast.reached(ctx, fresh), fresh.Check(ctx))
	return "", errors.Join(err, probe.Detach(ctx, fresh))
}

// exhaust takes all addresses of a node. A further ADD is refused with a clear error, and succeeds as soon as an address is free.
func exhaust(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	var mu sync.Mutex
	var pods []*lab.Pod
	var refusal error
	defer func() {
		var group errgroup.Group
		group.SetLimit(losses.AtATime)
		for _, p := range pods {
			group.Go(func() error { return probe.Detach(ctx, p) })
		}
		err = errors.Join(err, group.Wait())
	}()
	var group errgroup.Group
	group.SetLimit(losses.AtATime)
	for i := range 512 {
		group.Go(func() error {
			p, err := s.cluster.AddPod(ctx, lab.PodSpec{Node: n.Name, Name: fmt.Sprintf("full-%d", i), NoObject: true})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				pods = append(pods, p)
				return nil
			}
			refusal = err
			if p == nil {
				return err
			}
			return probe.Detach(ctx, p)
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	failure, ok := probe.AsFailure(refusal)
	subnet := netip.PrefixFrom(s.cast.pods["a1"].IPs[0], 23).Masked().String()
	switch {
	case !ok:
		return "", fmt.Errorf("%d pods were added, and none was refused by the network: %w", len(pods), refusal)
	case failure.Code != probe.CodeTryAgain || !strings.Contains(failure.Error(), subnet):
		return "", fmt.Errorf("the refusal has not code %d, or does not name subnet %s: %w", probe.CodeTryAgain, subnet, failure)
	}
	note = fmt.Sprintf("%d pods, then: %v", len(pods), failure)
	first := pods[0]
	pods = pods[1:]
	if err := probe.Detach(ctx, first); err != nil {
		return note, err
	}
	return note, s.cast.fresh(ctx, n.Name, "room")
}

// abandon has runtimes that end in the middle of ADD; their sandboxes are deleted afterwards.
func abandon(ctx context.Context, s *soak, n lab.Node) (string, error) {
	cut := 0
	for range 10 {
		short, cancel := context.WithTimeout(ctx, s.within(80*time.Millisecond))
		p, err := s.cluster.AddPod(short, lab.PodSpec{Node: n.Name, Name: "abandoned", NoObject: true})
		cancel()
		if err != nil {
			cut++
		}
		if p != nil {
			if err := probe.Detach(ctx, p); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%d of 10 requests aborted", cut), nil
}

// agentFaults are the faults of the agent.
func agentFaults() []fault {
	away := func(name string, spares losses.Scope, opens bool, command ...string) fault {
		return fault{name: name, spares: spares, opens: opens, kills: []string{"n1/weft-agent"}, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			return "", s.whileAway(ctx, n, func() error {
				_, err := probe.Run(ctx, n.Enter(command...))
				return err
			})
		}}
	}
	ofctl := []string{"ovs-ofctl", "-O", "OpenFlow15"}
	return []fault{
		{name: "agent hangs", spares: losses.All, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			return "", s.hang(ctx, agentOf(n), 3*time.Second, func() error { return nil })
		}},
		{name: "DEL while the agent is away", spares: losses.All, kills: []string{"n1/weft-agent"}, do: delWhileAway},
		{name: "a truncated record", spares: losses.All, kills: []string{"n1/weft-agent"}, do: halfRecord},
		away("flows deleted while the agent is away", losses.Far, false, append(ofctl, "del-flows", "br0")...),
		away("a flow altered while the agent is away", losses.Far, false, append(ofctl, "mod-flows", "br0", "table=90,actions=drop")...),
		away("the bridge deleted while the agent is away", losses.Far, false, "ovs-vsctl", "del-br", "br0"),
		away("rules deleted while the agent is away", losses.All, true, "nft", "delete", "table", "inet", "weft"),
		away("a stray port added while the agent is away", losses.All, false, "ovs-vsctl", "add-port", "br0", "wtstray", "--", "set", "Interface", "wtstray", "type=internal"),
		{name: "agents of both nodes killed at once", spares: losses.All, kills: []string{"n1/weft-agent", "n2/weft-agent"}, do: func(ctx context.Context, s *soak, _ lab.Node) (string, error) {
			var group errgroup.Group
			for _, n := range s.cluster.Nodes() {
				group.Go(func() error {
					old, err := probe.Signal(ctx, s.cluster, agentOf(n), syscall.SIGKILL)
					return errors.Join(err, s.awaitAgent(ctx, n, old))
				})
			}
			return "", group.Wait()
		}},
		{name: "agent killed again and again while it starts", spares: losses.All, kills: []string{"n1/weft-agent"}, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			old := 0
			for range 10 {
				pid, err := probe.Signal(ctx, s.cluster, agentOf(n), syscall.SIGKILL)
				if err != nil {
					return "", err
				}
				old = pid
				<-time.After(100*time.Millisecond + s.within(400*time.Millisecond))
			}
			return "", s.awaitAgent(ctx, n, old)
		}},
	}
}

// hang stops a program for a while, during which f runs, and then continues it.
func (s *soak) hang(ctx context.Context, name string, length time.Duration, f func() error) (err error) {
	if _, err := probe.Signal(ctx, s.cluster, name, syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() {
		_, contErr := probe.Signal(context.WithoutCancel(ctx), s.cluster, name, syscall.SIGCONT)
		err = errors.Join(err, contErr)
	}()
	over := time.After(length)
	err = f()
	select {
	case <-over:
	case <-ctx.Done():
	}
	return err
}

// whileAway runs f while a node has no agent: the agent is stopped first, so that it processes nothing, and killed afterwards.
func (s *soak) whileAway(ctx context.Context, n lab.Node, f func() error) error {
	old, err := probe.Signal(ctx, s.cluster, agentOf(n), syscall.SIGSTOP)
	if err != nil {
		return err
	}
	err = f()
	if killErr := syscall.Kill(old, syscall.SIGKILL); killErr != nil {
		return errors.Join(err, killErr)
	}
	return errors.Join(err, s.awaitAgent(ctx, n, old))
}

// delWhileAway deletes pods while there is no agent, as a kubelet does, which repeats DEL until it succeeds.
func delWhileAway(ctx context.Context, s *soak, n lab.Node) (string, error) {
	pods, err := s.addSome(ctx, n, 3)
	if err != nil {
		return "", err
	}
	old, err := probe.Signal(ctx, s.cluster, agentOf(n), syscall.SIGKILL)
	if err != nil {
		return "", err
	}
	refused := 0
	var group errgroup.Group
	for _, p := range pods {
		if once(ctx, p) != nil {
			refused++
		}
		group.Go(func() error { return probe.Detach(ctx, p) })
	}
	return fmt.Sprintf("%d of 3 requests answered with try again", refused), errors.Join(group.Wait(), s.awaitAgent(ctx, n, old))
}
