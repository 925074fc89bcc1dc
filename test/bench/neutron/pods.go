package neutron

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
)

// Metrics of pods.
const (
	// Add is the time of an ADD, in ms.
	Add = "add-wall"
	// Delete is the time until a DEL is answered, in ms.
	Delete = "del-answered"
	// Cold is the time from a Pod object until its ADD is answered, in ms. No port is ready.
	Cold = "add-cold"
	// Burst is the time from the first of many Pod objects until the last ADD is answered, in ms. No port is ready.
	Burst = "burst-wall"
)

const (
	// podsPerRound is the number of pods of a round, one after the other.
	podsPerRound = 10
	// burstPods is the number of pods of a burst.
	burstPods = 40
)

// AddAndDelete adds a round's pods in a namespace on the first node, one after the other, and then deletes them. If they are the tenant's,
// free ports exist before.
func (s *Scene) AddAndDelete(namespace string) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		round, node := s.round(namespace), s.Node(1).Name
		specs, uids := [podsPerRound]lab.PodSpec{}, [podsPerRound]string{}
		for i := range podsPerRound {
			specs[i] = lab.PodSpec{Namespace: namespace, Name: fmt.Sprintf("round-%d-%d", round, i), Node: node}
			var err error
			if uids[i], err = s.object(ctx, specs[i]); err != nil {
				return nil, err
			}
		}
		if namespace == Tenant {
			if err := s.awaitPorts(ctx, node, podsPerRound); err != nil {
				return nil, err
			}
		}
		figures, err := s.addAndDelete(ctx, specs[:], uids[:])
		if err != nil {
			return nil, err
		}
		return figures, s.settled(ctx, node)
	}
}

// addAndDelete measures the ADD and the DEL of pods whose objects exist.
func (s *Scene) addAndDelete(ctx context.Context, specs []lab.PodSpec, uids []string) (measure.Figures, error) {
	var adds, deletes []float64
	pods := make([]*lab.Pod, 0, len(specs))
	for i := range specs {
		pod, err := s.attach(ctx, specs[i], uids[i])
		if err != nil {
			return nil, err
		}
		pods, adds = append(pods, pod), append(adds, milliseconds(pod.Took))
	}
	for _, pod := range pods {
		took, err := pod.Detach(ctx)
		if err != nil {
			return nil, err
		}
		deletes = append(deletes, milliseconds(took))
	}
	for _, pod := range pods {
		if err := s.DelPod(ctx, pod); err != nil {
			return nil, err
		}
	}
	return measure.Figures{Add: measure.Median(adds), Delete: measure.Median(deletes)}, nil
}

// AddCold adds a pod of the tenant on the second node, which has no port.
func (s *Scene) AddCold(ctx context.Context) (measure.Figures, error) {
	spec := lab.PodSpec{Namespace: Tenant, Name: "cold-" + strconv.Itoa(s.round("cold")), Node: s.Node(2).Name}
	if err := s.noPorts(ctx, spec.Node); err != nil {
		return nil, err
	}
	began := time.Now()
	uid, err := s.object(ctx, spec)
	if err != nil {
		return nil, err
	}
	pod, err := s.attach(ctx, spec, uid)
	if err != nil {
		return nil, err
	}
	figures := measure.Figures{Cold: milliseconds(time.Since(began))}
	if err := s.DelPod(ctx, pod); err != nil {
		return nil, err
	}
	return figures, s.noPorts(ctx, spec.Node)
}

// AddBurst adds many pods of the tenant at the same time, half of them on each node. No node has a port.
func (s *Scene) AddBurst(ctx context.Context) (measure.Figures, error) {
	round := s.round("burst")
	for i := range nodes {
		if err := s.noPorts(ctx, s.Node(1+i).Name); err != nil {
			return nil, err
		}
	}
	var (
		pods           []*lab.Pod
		mu             sync.Mutex
		adding, ending errgroup.Group
	)
	began := time.Now()
	for i := range burstPods {
		adding.Go(func() error {
			spec := lab.PodSpec{Namespace: Tenant, Name: fmt.Sprintf("burst-%d-%d", round, i), Node: s.Node(1 + i%nodes).Name}
			uid, err := s.object(ctx, spec)
			if err != nil {
				return err
			}
			pod, err := s.attach(ctx, spec, uid)
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
	for i := range nodes {
		if err := s.noPorts(ctx, s.Node(1+i).Name); err != nil {
			return nil, err
		}
	}
	return figures, nil
}
