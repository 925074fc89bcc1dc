// Package rows has the rows of the benchmark, one file for each subject: the work of both sides, and the targets of the figures.
package rows

import (
	"context"
	"regexp"
	"slices"
	"time"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/bench/switches"
	"weft.dev/weft/test/bench/vpcs"
)

// Group is the rows whose figures come from the same rounds.
type Group struct {
	// Title describes the rounds.
	Title string
	// Rows are measured together.
	Rows []measure.Row
	// lab says that the group uses the lab. Other groups have their own switches, and the lab would disturb them.
	lab bool
	// run runs the rounds.
	run func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error)
}

// Bench has the options of all groups.
type Bench struct {
	Stage *stage.Stage
	// Rounds is the number of rounds of a comparison.
	Rounds int
	// Progress is called after each round.
	Progress func(done, all int)
}

// Prepare starts what the group needs, and stops what would disturb it: afterwards the machine is idle.
func (g Group) Prepare(ctx context.Context, b Bench) error {
	if !g.lab {
		return b.Stage.StrikeCluster(ctx)
	}
	_, err := b.Stage.Cluster(ctx)
	return err
}

// Run measures the group after Prepare.
func (g Group) Run(ctx context.Context, b Bench) ([]measure.Result, error) {
	return g.run(ctx, b, g.Rows)
}

// All returns the groups in the order of measurement: first those in the lab, from few pods to many; then those with their own switches.
func All() []Group {
	return slices.Concat([]Group{
		cni(10),
		burst(),
		curve(50),
		cni(100),
		restart(),
		memory(),
		switchKilled(),
		curve(200), curve(500), curve(1000),
	}, ofSwitches(), []Group{
		firstPacket(),
		policyLatency(0, 0),
		policyLatency(1_000, 50),
		policyLatency(10_000, 100),
		egressFailover(),
		flannelPods(),
		flannelBurst(),
		flannelPortmap(),
		flannelTraffic(),
		flannelPolicies(),
		flannelMemory(),
	}, ofVPCs(), []Group{flannelLeases(), flannelLeaseEvent(), flannelResync()}, onNeutron())
}

// ofSwitches returns the groups of switches with flows alone.
func ofSwitches() (all []Group) {
	for _, g := range switches.Groups() {
		all = append(all, Group{Title: g.Title, Rows: g.Rows, run: func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error) {
			return g.Run(ctx, b.Stage, rows, b.compare)
		}})
	}
	return all
}

// ofVPCs returns the groups of VPCs.
func ofVPCs() (all []Group) {
	for _, g := range vpcs.Groups() {
		all = append(all, Group{Title: g.Title, Rows: g.Rows, run: func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error) {
			return g.Run(ctx, b.Stage, rows, b.compare)
		}})
	}
	return all
}

// Matching returns the rows whose names match, in groups that are not empty.
func Matching(groups []Group, name *regexp.Regexp) []Group {
	var kept []Group
	for _, g := range groups {
		g.Rows = slices.DeleteFunc(slices.Clone(g.Rows), func(r measure.Row) bool { return !name.MatchString(r.Name) })
		if len(g.Rows) > 0 {
			kept = append(kept, g)
		}
	}
	return kept
}

// compare runs rounds and computes the results.
func (b Bench) compare(ctx context.Context, rows []measure.Row, ours, peer measure.Side) ([]measure.Result, error) {
	rounds, err := measure.Plan{Rounds: b.Rounds, Ours: ours, Peer: peer, Progress: b.Progress}.Run(ctx)
	if err != nil {
		return nil, err
	}
	return measure.Judge(rows, rounds)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
