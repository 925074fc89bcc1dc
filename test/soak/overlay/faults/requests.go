package faults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/kubelet"
)

// requestFaults are wrong requests of runtimes.
func requestFaults() []Fault {
	return []Fault{
		{Name: "DEL twice, one after the other", Spares: losses.All, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			p, err := kubelet.Add(ctx, s.Cluster, n, "twice")
			if err != nil {
				return "", err
			}
			return "", errors.Join(kubelet.DeleteOnce(ctx, p), kubelet.DeleteOnce(ctx, p), kubelet.DeleteOnce(ctx, p))
		}},
		{Name: "DEL eight times at once", Spares: losses.All, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			p, err := kubelet.Add(ctx, s.Cluster, n, "eight")
			if err != nil {
				return "", err
			}
			var group errgroup.Group
			for range 8 {
				group.Go(func() error { return kubelet.DeleteOnce(ctx, p) })
			}
			return "", group.Wait()
		}},
		{Name: "ADD without DEL, garbage collected", Spares: losses.All, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			p, err := kubelet.Add(ctx, s.Cluster, n, "forgotten")
			if err != nil {
				return "", err
			}
			return "", errors.Join(kubelet.Forget(ctx, p), n.CollectGarbage(ctx))
		}},
		{Name: "ADD without DEL, the namespace removed, DEL late", Spares: losses.All, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			p, err := kubelet.Add(ctx, s.Cluster, n, "late")
			if err != nil {
				return "", err
			}
			return "", errors.Join(kubelet.Forget(ctx, p), s.Cast.Fresh(ctx, n.Name, "between"), probe.Detach(ctx, p))
		}},
		{Name: "ADD twice with the same sandbox", Spares: losses.All, Do: addTwice},
		{Name: "garbage collection while all pods are in use", Spares: losses.All, Do: func(ctx context.Context, _ *Scene, n lab.Node) (string, error) {
			return "", n.CollectGarbage(ctx)
		}},
		{Name: "a name used again within a second, 20 times", Spares: losses.All, Do: sameName},
		{Name: "a new pod of the same name before the DEL of the old one", Spares: losses.All, Do: lateDel},
		{Name: "addresses exhausted", Spares: losses.None, Do: exhaust},
		{Name: "the runtime ends during ADD", Spares: losses.All, Do: abandon},
	}
}

// addTwice repeats an ADD whose answer the runtime did not get: the answer must be the same.
func addTwice(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	p, err := kubelet.Add(ctx, s.Cluster, n, "again")
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
	return "", s.Cast.Reached(ctx, p)
}

// sameName replaces a pod by one of the same name, repeatedly and at once.
func sameName(ctx context.Context, s *Scene, n lab.Node) (string, error) {
	for range 20 {
		p, err := kubelet.Add(ctx, s.Cluster, n, "same")
		if err != nil {
			return "", err
		}
		if err := errors.Join(s.Cast.Reached(ctx, p), probe.Detach(ctx, p)); err != nil {
			return "", err
		}
	}
	return "", nil
}

// lateDel deletes a pod only after its successor of the same name runs; the successor must not be affected.
func lateDel(ctx context.Context, s *Scene, n lab.Node) (string, error) {
	old, err := kubelet.Add(ctx, s.Cluster, n, "same")
	if err != nil {
		return "", err
	}
	fresh, err := kubelet.Add(ctx, s.Cluster, n, "same")
	if err != nil {
		return "", errors.Join(err, probe.Detach(ctx, old))
	}
	if err := errors.Join(probe.Detach(ctx, old), kubelet.DeleteOnce(ctx, old)); err != nil {
		return "", err
	}
	err = errors.Join(s.Cast.Reached(ctx, fresh), fresh.Check(ctx))
	return "", errors.Join(err, probe.Detach(ctx, fresh))
}

// exhaust takes all addresses of a node. A further ADD is refused with a clear error, and succeeds as soon as an address is free.
func exhaust(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
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
			p, err := s.Cluster.AddPod(ctx, lab.PodSpec{Node: n.Name, Name: fmt.Sprintf("full-%d", i), NoObject: true})
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
	subnet := netip.PrefixFrom(s.Cast.Pod("a1").IPs[0], 23).Masked().String()
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
	return note, s.Cast.Fresh(ctx, n.Name, "room")
}

// abandon has runtimes that end in the middle of ADD; their sandboxes are deleted afterwards.
func abandon(ctx context.Context, s *Scene, n lab.Node) (string, error) {
	cut := 0
	for range 10 {
		short, cancel := context.WithTimeout(ctx, s.Within(80*time.Millisecond))
		p, err := s.Cluster.AddPod(short, lab.PodSpec{Node: n.Name, Name: "abandoned", NoObject: true})
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
