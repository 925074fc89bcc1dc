package neutron

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
)

// Metrics of pods.
const (
	// Add is the time of an ADD, in ms.
	Add = "add-wall"
	// Delete is the time until a DEL is answered, in ms.
	Delete = "del-answered"
	// Cold is the time from a Pod object until its ADD is answered and its port is ACTIVE in Neutron, in ms. No port is ready.
	Cold = "add-cold"
)

const (
	// podsThere is the number of pods of each network that stay on the node while others are added and deleted.
	podsThere = 10
	// podsPerRound is the number of pods of a round, one after the other.
	podsPerRound = 10
)

// compareAdds compares rounds of pods of the tenant with rounds of pods of the overlay, on a node that has pods of both.
func compareAdds(ctx context.Context, s *Scene, rows []measure.Row, compare Compare) ([]measure.Result, error) {
	for _, namespace := range []string{Tenant, Overlay} {
		if err := s.stay(ctx, namespace, s.Node(1).Name, podsThere); err != nil {
			return nil, err
		}
	}
	return compare(ctx, rows, s.AddAndDelete(Tenant), s.AddAndDelete(Overlay))
}

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
		return figures, settled(ctx, s, node, podsThere)
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
	if err := (bare{s}).awaitActive(ctx, pod); err != nil {
		return nil, err
	}
	figures := measure.Figures{Cold: milliseconds(time.Since(began))}
	if err := s.DelPod(ctx, pod); err != nil {
		return nil, err
	}
	return figures, s.noPorts(ctx, spec.Node)
}

var errNoPort = errors.New("no NeutronPort has its address")

// awaitActive waits until Neutron reports a pod's port as ACTIVE. ADD is answered earlier, when the switch has the port's flows.
func (s bare) awaitActive(ctx context.Context, pod *lab.Pod) error {
	all, err := s.ports(ctx, pod.Node.Name)
	if err != nil {
		return err
	}
	for i := range all {
		for _, at := range all[i].Spec.Addresses {
			if address, _, _ := strings.Cut(at.Address, "/"); address == pod.IPs[0].String() {
				return s.active(ctx, all[i].Name)
			}
		}
	}
	return fmt.Errorf("pod %s, %s: %w", pod.Name, pod.IPs[0], errNoPort)
}
