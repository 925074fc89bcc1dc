package neutron

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/probe"
)

// Burst is the time from the first of many Pod objects until the last ADD is answered, in ms.
const Burst = "burst-wall"

// burstPods is the number of pods of a burst.
const burstPods = 40

// bursts are of many pods of the tenant at the same time, half of them on each node.
type bursts struct {
	*Scene

	// inUse says that a pod of the tenant stays on each node, and that the nodes have the free ports that Weft then keeps. Otherwise no node has
	// a port.
	inUse bool
}

// burstGroup is a row of bursts, compared with as many single creations of ports.
func burstGroup(name, title string, inUse bool, target measure.Target) Group {
	return Group{
		Title: title,
		Rows:  []measure.Row{{Name: name, Metric: Burst, Unit: "ms", Target: target}},
		Run: func(ctx context.Context, s *Scene, rows []measure.Row, compare Compare) ([]measure.Result, error) {
			ours := bursts{s, inUse}
			if inUse {
				if err := ours.each(ctx, func(ctx context.Context, node string) error { return s.stay(ctx, Tenant, node, 1) }); err != nil {
					return nil, err
				}
			}
			return compare(ctx, rows, ours.add, bare{s}.burst)
		},
	}
}

// add adds a burst's pods, and then deletes them and their ports.
func (s bursts) add(ctx context.Context) (measure.Figures, error) {
	round, prepare := s.round("burst"), s.noPorts
	if s.inUse {
		prepare = s.sparePorts
	}
	if err := s.each(ctx, prepare); err != nil {
		return nil, err
	}
	var (
		pods           []*lab.Pod
		mu             sync.Mutex
		adding, ending errgroup.Group
	)
	began := time.Now()
	for i := range burstPods {
		adding.Go(func() error {
			pod, err := s.pod(ctx, lab.PodSpec{Namespace: Tenant, Name: fmt.Sprintf("burst-%d-%d", round, i), Node: s.Node(1 + i%nodes).Name})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			pods = append(pods, pod)
			return nil
		})
	}
	if err := adding.Wait(); err != nil {
		return nil, err
	}
	figures := measure.Figures{Burst: milliseconds(time.Since(began))}
	for _, pod := range pods {
		ending.Go(func() error { return s.DelPod(ctx, pod) })
	}
	if err := ending.Wait(); err != nil {
		return nil, err
	}
	return figures, s.each(ctx, prepare)
}

// each calls f for each node.
func (s bursts) each(ctx context.Context, f func(ctx context.Context, node string) error) error {
	for i := range nodes {
		if err := f(ctx, s.Node(1+i).Name); err != nil {
			return err
		}
	}
	return nil
}

// sparePorts deletes the tenant's ports on a node that former pods have used, and waits until the node has, besides the port of its only pod,
// the free ones that Weft keeps for later pods.
func (s bursts) sparePorts(ctx context.Context, node string) error {
	_, err := probe.Await(ctx, limit, "the free ports of "+node, func(ctx context.Context) error {
		all, err := s.ports(ctx, node)
		if err != nil {
			return err
		}
		attached, free := 0, 0
		var errs []error
		for i := range all {
			switch p := &all[i]; {
			case p.Status.Pod != nil:
				attached++
			case p.DeletionTimestamp != nil:
				errs = append(errs, fmt.Errorf("port %s is being deleted", p.Name))
			case p.Status.ReleasedAt != nil || free == ahead.LeastSpare:
				errs = append(errs, fmt.Errorf("port %s is not needed", p.Name), client.IgnoreNotFound(s.objects.Delete(ctx, p)))
			case !p.Status.Plugged || !p.Spec.Active:
				errs = append(errs, fmt.Errorf("port %s is not ACTIVE", p.Name))
			default:
				free++
			}
		}
		if attached != 1 || free != ahead.LeastSpare {
			errs = append(errs, fmt.Errorf("%w: %d, and %d with a pod", errFew, free, attached))
		}
		return errors.Join(errs...)
	})
	return err //nolint:wrapcheck // it says what was waited for
}
