package vpc

import (
	"context"
	"fmt"
	"math"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
)

// MemoryPods is the number of pods on a node whose agent's memory is measured.
const MemoryPods = 100

// settleStep is the time between two readings of a program's memory. A controller returns what its start took only after the start: two
// readings one second apart were equal before that.
const settleStep = 5 * time.Second

// settled returns the resident size of a program in MB, once two readings differ by a hundredth at most.
func settled(ctx context.Context, c *lab.Cluster, program string) (float64, error) {
	last := math.NaN() // no reading is within a hundredth of it
	for {
		now, err := probe.Memory(ctx, c, program)
		if err != nil {
			return 0, fmt.Errorf("memory of %s: %w", program, err)
		}
		size := float64(now) * kilobyte / megabyte
		if math.Abs(size-last) <= last/100 {
			return size, nil
		}
		last = size
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settleStep):
		}
	}
}

// OpenOverlay starts a lab of one node without VPCs. Call Close after it, also after an error.
func OpenOverlay(ctx context.Context, st *stage.Stage) (s *Scene, err error) {
	s = &Scene{stage: st, kind: stage.KindVPC}
	s.Cluster, err = st.Lab(ctx, s.kind, lab.Config{Nodes: 1})
	return s, err
}

// Crowd adds MemoryPods pods to the node: in a Subnet, or, without one, in the cluster's own network.
func Crowd(ctx context.Context, s *Scene, subnet string) error {
	group, within := errgroup.WithContext(ctx)
	const atATime = 8
	group.SetLimit(atATime)
	for i := range MemoryPods {
		spec := lab.PodSpec{Namespace: "default", Name: fmt.Sprintf("crowd-%d", i)}
		if subnet != "" {
			spec = inSubnet(spec.Name, subnet, "")
		}
		group.Go(func() error {
			_, err := s.start(within, spec)
			return err
		})
	}
	return group.Wait()
}

// AgentMemory returns a side that restarts the node's agent, and measures its memory.
func AgentMemory(s *Scene) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		program := s.node().Name + "/weft-agent"
		if err := probe.Kill(ctx, s.Cluster, program, syscall.SIGKILL); err != nil {
			return nil, err //nolint:wrapcheck // it names the program
		}
		_, err := probe.Await(ctx, probe.Patience, program+" ready", func(ctx context.Context) error { return probe.Ready(ctx, s.node()) })
		if err != nil {
			return nil, err //nolint:wrapcheck // it says what was awaited
		}
		size, err := settled(ctx, s.Cluster, program)
		return measure.Figures{Resident: size}, err
	}
}
