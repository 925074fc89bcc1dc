package neutron

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
)

// AgentMore is by how much the agent's resident size with pods of the tenant exceeds that with as many pods of the overlay, before the
// tenant existed, in MB.
const AgentMore = "agent-more"

// ControllerSize is the controller's resident size, in MB.
const ControllerSize = "controller-size"

// manyPorts is the number of ports with which the controller's memory is measured.
const manyPorts = 500

// manyNode is a node without an agent. Its ports are bound to the second node's host, and stay unplugged.
const manyNode = "many"

// manyLimit is the time limit for the creation of the ports.
const manyLimit = 10 * time.Minute

// attachedAtOnce is the number of pods that crowd attaches at the same time.
const attachedAtOnce = 8

// started is the time after the start of an agent or a controller at which its memory is measured at the earliest. After 10 s it returns what
// only its start has needed (internal/cli).
const started = 12 * time.Second

// crowd attaches pods to the first node.
func (s *Scene) crowd(ctx context.Context, specs []lab.PodSpec, uids []string) ([]*lab.Pod, error) {
	pods := make([]*lab.Pod, len(specs))
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(attachedAtOnce)
	for i := range specs {
		group.Go(func() (err error) {
			pods[i], err = s.attach(within, specs[i], uids[i])
			return err
		})
	}
	return pods, group.Wait()
}

// overlayMemory measures the agent's memory with pods of the overlay, in a cluster without a Network of OpenStack: the agent does not run
// the network of OpenStack then.
func (s *Scene) overlayMemory(ctx context.Context) error {
	node := s.Node(1)
	specs, uids := make([]lab.PodSpec, standingPorts), make([]string, standingPorts)
	for i := range specs {
		specs[i] = lab.PodSpec{Namespace: Overlay, Name: fmt.Sprintf("crowd-%d", i), Node: node.Name}
		var err error
		if uids[i], err = s.object(ctx, specs[i]); err != nil {
			return err
		}
	}
	pods, err := s.crowd(ctx, specs, uids)
	if err != nil {
		return err
	}
	var sizes []float64
	for range measure.MinRounds {
		size, err := s.agentSize(ctx)
		if err != nil {
			return err
		}
		sizes = append(sizes, size)
	}
	s.overlaySize = measure.Median(sizes)
	s.stage.Say("the agent with %d pods of the overlay, without the tenant: %.1f MB", standingPorts, s.overlaySize)
	for _, pod := range pods {
		if err := s.DelPod(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// agentSize restarts the first node's agent, and returns its resident size after the start, in MB.
func (s *Scene) agentSize(ctx context.Context) (float64, error) {
	node := s.Node(1)
	program := node.Name + "/weft-agent"
	if err := probe.Kill(ctx, s.Cluster, program, syscall.SIGKILL); err != nil {
		return 0, err //nolint:wrapcheck // it names the program
	}
	if _, err := probe.Await(ctx, limit, "the agent is ready", func(ctx context.Context) error { return probe.Ready(ctx, node) }); err != nil {
		return 0, err //nolint:wrapcheck // it says what was waited for
	}
	return sizeOf(ctx, s.Cluster, program)
}

// sizeOf returns the resident size of a program after its start, in MB.
func sizeOf(ctx context.Context, cluster *lab.Cluster, program string) (float64, error) {
	status, err := probe.Program(ctx, cluster, program)
	if err != nil {
		return 0, err //nolint:wrapcheck // it names the program
	}
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(time.Until(status.Since.Add(started))):
	}
	size, err := stage.SettledSize(ctx, status.Pid)
	return size / megabyte, err
}

// attachStanding attaches the rest of the pods whose ports prepare made.
func (s *restarts) attachStanding(ctx context.Context) error {
	_, err := s.crowd(ctx, s.specs[attachedPods:], s.uids[attachedPods:])
	return err
}

// agentMemory measures how much more memory the agent needs than for as many pods of the overlay.
func (s *restarts) agentMemory(ctx context.Context) (measure.Figures, error) {
	size, err := s.agentSize(ctx)
	return measure.Figures{AgentMore: size - s.overlaySize}, err
}

// addPorts makes the controller create further ports, for pods of a node that no agent serves.
func (s *restarts) addPorts(ctx context.Context) error {
	report := &weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: manyNode}}
	if err := s.create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: manyNode}}, report); err != nil {
		return err
	}
	report.Status.Networks = []weftv1.NodeNetworkSection{{
		Name: weftv1.NetworkNeutron, Neutron: &weftv1.NeutronNode{Hostname: s.Node(2).Name, Datapath: "netdev"},
	}}
	if err := s.objects.Status().Update(ctx, report); err != nil {
		return fmt.Errorf("report node %s: %w", manyNode, err)
	}
	for i := range manyPorts - standingPorts {
		if _, err := s.object(ctx, lab.PodSpec{Namespace: Tenant, Name: fmt.Sprintf("many-%d", i), Node: manyNode}); err != nil {
			return err
		}
	}
	_, err := probe.Await(ctx, manyLimit, "the ports of "+manyNode, func(ctx context.Context) error {
		all, err := s.ports(ctx, manyNode)
		if err == nil && len(all) < manyPorts-standingPorts {
			err = fmt.Errorf("%w: %d of %d", errFew, len(all), manyPorts-standingPorts)
		}
		return err
	})
	if err != nil {
		return err //nolint:wrapcheck // it says what was waited for
	}
	return s.steady(ctx)
}

// controllerMemory restarts the controller, and measures its memory once it has read all ports.
func (s *restarts) controllerMemory(ctx context.Context) (measure.Figures, error) {
	if err := s.restartController(ctx); err != nil {
		return nil, err
	}
	if err := s.steady(ctx); err != nil {
		return nil, err
	}
	size, err := sizeOf(ctx, s.Cluster, controllerProgram)
	return measure.Figures{ControllerSize: size}, err
}
