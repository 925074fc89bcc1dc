package vpcs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/bench/vpc"
)

// Sizes of the scene of many VPCs, and of the one that it is compared with. Each VPC has one Subnet.
const (
	fewVPCs, manyVPCs = 10, 250
	podsOfVPC         = 40
)

// many compares operations beside 250 VPCs with 10,000 pods with the same beside 10 VPCs, and the start and the memory of the controller with
// the reading of its state and with ovn-northd.
func many() Group {
	return Group{
		Title: fmt.Sprintf("VPC: %d VPCs with %d pods, against %d VPCs with %d", manyVPCs, manyVPCs*podsOfVPC, fewVPCs, fewVPCs*podsOfVPC),
		Rows: []measure.Row{
			{Name: "vpc/250/add", Metric: vpc.Add, Unit: "ms, p50", Target: measure.RatioAtMost(1.5)},
			{Name: "vpc/250/subnet", Metric: vpc.Share, Unit: "ms", Target: measure.RatioAtMost(1.2)},
			{Name: "vpc/250/subnet/northd", Metric: vpc.Northd, Unit: "ms of ovn-northd after it"},
			{Name: "vpc/250/start", Metric: vpc.Started, Unit: "ms", Target: measure.RatioAtMost(2)},
			{Name: "vpc/250/start/rows", Metric: vpc.Written, Unit: "rows written", Target: measure.AtMost(0), Alone: true},
			{Name: "vpc/250/memory", Metric: vpc.Resident, Unit: "MB, against ovn-northd", Target: measure.RatioAtMost(0.7)},
		},
		Run: runMany,
	}
}

// kinds are the metrics that the same rounds measure.
func kinds(rows []measure.Row, metrics ...string) []measure.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r measure.Row) bool { return !slices.Contains(metrics, r.Metric) })
}

// fleet is a lab with VPCs.
type fleet struct {
	scene *vpc.Scene
	vpcs  *vpc.Fleet
}

// openFleet starts a lab of a kind, with a number of VPCs and one more for the pods of the node. Call close after it, also after an error.
func openFleet(ctx context.Context, st *stage.Stage, kind string, size int) (f fleet, err error) {
	if f.scene, err = vpc.Open(ctx, st, kind); err != nil {
		return f, err
	}
	if f.vpcs, err = vpc.NewFleet(ctx, f.scene); err != nil {
		return f, err
	}
	if err := f.vpcs.Grow(ctx, size, podsOfVPC); err != nil {
		return f, err
	}
	return f, f.scene.Create(ctx, vpc.Vpc("add"), vpc.Subnet("add"))
}

func (f fleet) close(ctx context.Context) error {
	if f.vpcs != nil {
		f.vpcs.Close()
	}
	return f.scene.Close(ctx)
}

// runMany has two labs at once, so that their rounds take turns: other load, and what either lab does to the processors' caches, affects
// both sides.
func runMany(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) (results []measure.Result, err error) {
	few, err := openFleet(ctx, st, stage.KindFewVPCs, fewVPCs)
	defer func() { err = errors.Join(err, few.close(context.WithoutCancel(ctx))) }()
	if err != nil {
		return nil, err
	}
	large, err := openFleet(ctx, st, stage.KindVPC, manyVPCs)
	defer func() { err = errors.Join(err, large.close(context.WithoutCancel(ctx))) }()
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		rows       []measure.Row
		ours, peer measure.Side
	}{
		{kinds(rows, vpc.Add), large.scene.AddPods("add"), few.scene.AddPods("add")},
		{kinds(rows, vpc.Share, vpc.Northd), large.vpcs.Share, few.vpcs.Share},
		{kinds(rows, vpc.Started, vpc.Written, vpc.Resident), large.vpcs.Start, large.vpcs.Floor},
	} {
		if len(part.rows) == 0 {
			continue
		}
		judged, err := compare(ctx, part.rows, part.ours, part.peer)
		results = append(results, judged...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// recorded measures a side in a state that does not exist any more when the other side is measured, and returns a side that has these
// figures.
func recorded(ctx context.Context, side measure.Side) (measure.Side, error) {
	var kept []measure.Figures
	for i := range measure.MinRounds + 1 {
		figures, err := side(ctx)
		if err != nil {
			return nil, fmt.Errorf("round %d of the peer's: %w", i, err)
		}
		kept = append(kept, figures)
	}
	round := 0
	return func(context.Context) (measure.Figures, error) {
		round++
		return kept[1+(round-1)%measure.MinRounds], nil // the first one does not count
	}, nil
}

// agentMemory compares the agent's memory with 100 pods in VPCs with the memory that it has with as many pods of the overlay, without VPCs.
func agentMemory() Group {
	return Group{
		Title: fmt.Sprintf("VPC: memory of the agent with %d pods in a VPC, against as many pods in a cluster without VPCs", vpc.MemoryPods),
		Rows:  []measure.Row{{Name: "vpc/memory/agent", Metric: vpc.Resident, Unit: "MB", Target: measure.RatioAtMost(1.3)}},
		Run: func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) (results []measure.Result, err error) {
			peer, err := withoutVPCs(ctx, st)
			if err != nil {
				return nil, err
			}
			return inLab(func(ctx context.Context, rows []measure.Row, compare Compare, s *vpc.Scene) ([]measure.Result, error) {
				if err := s.Create(ctx, vpc.Vpc("memory"), vpc.Subnet("memory")); err != nil {
					return nil, err
				}
				if err := vpc.Crowd(ctx, s, "memory"); err != nil {
					return nil, err
				}
				return compare(ctx, rows, vpc.AgentMemory(s), peer)
			})(ctx, st, rows, compare)
		},
	}
}

// withoutVPCs returns the side of a lab without VPCs, which exists only during its rounds.
func withoutVPCs(ctx context.Context, st *stage.Stage) (side measure.Side, err error) {
	s, err := vpc.OpenOverlay(ctx, st)
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
	if err != nil {
		return nil, err
	}
	if err := vpc.Crowd(ctx, s, ""); err != nil {
		return nil, err
	}
	return recorded(ctx, vpc.AgentMemory(s))
}
