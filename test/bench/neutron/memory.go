package neutron

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
)

// AgentMore is by how much the agent's resident size with pods of the tenant exceeds that with as many pods of the overlay, before the
// tenant existed, in MB.
const AgentMore = "agent-more"

// attachedAtOnce is the number of pods that crowd attaches at the same time.
const attachedAtOnce = 8

// started is the time after the start of an agent at which its memory is measured. For its first 10 s it collects garbage rarely, and then
// returns what it does not need (internal/cli).
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
	status, err := probe.Program(ctx, s.Cluster, program)
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

// attachStanding attaches the pods whose ports prepare made.
func (s *restarts) attachStanding(ctx context.Context) error {
	_, err := s.crowd(ctx, s.specs, s.uids)
	return err
}

// agentMemory measures how much more memory the agent needs than for as many pods of the overlay.
func (s *restarts) agentMemory(ctx context.Context) (measure.Figures, error) {
	size, err := s.agentSize(ctx)
	return measure.Figures{AgentMore: size - s.overlaySize}, err
}
