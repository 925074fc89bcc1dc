// Package rows are the rows of the benchmark, a file for each subject: what is done on either side, and what the figures
// must reach.
package rows

import (
	"context"
	"regexp"
	"slices"
	"time"

	"weft.dev/weft/internal/policy/policytest"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

// Group are rows whose figures come from the same rounds.
type Group struct {
	// Title says what the rounds do.
	Title string
	// Rows are measured together.
	Rows []measure.Row
	// lab says that the group plays in the lab; others have switches of their own, and the lab is in their way.
	lab bool
	// run does it.
	run func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error)
}

// Bench is what groups run with.
type Bench struct {
	Stage *stage.Stage
	// Rounds is how many rounds a comparison has.
	Rounds int
	// Progress is told of rounds.
	Progress func(done, all int)
}

// Prepare brings up what the group plays on, or takes down what is in its way: the machine is at rest after it.
func (g Group) Prepare(ctx context.Context, b Bench) error {
	if !g.lab {
		return b.Stage.StrikeCluster(ctx)
	}
	_, err := b.Stage.Cluster(ctx)
	return err
}

// Run measures the group, which was prepared.
func (g Group) Run(ctx context.Context, b Bench) ([]measure.Result, error) {
	return g.run(ctx, b, g.Rows)
}

// All are the groups in the order in which they are measured: those in the lab go from few pods to many, and come first; the
// others have switches of their own.
func All() []Group {
	return []Group{
		cni(10),
		burst(),
		curve(50),
		cni(100),
		restart(),
		memory(),
		switchKilled(),
		curve(200), curve(500), curve(1000),
		flows(),
		services(),
		forwarding("pod/2-flows", "pod to pod, against two flows", plainFlows, server(), measure.Target{}),
		forwarding("pod/2-flows-ct", "pod to pod, against two flows with a ct pass between them", trackedFlows, server(), measure.RatioAtMost(1.1)),
		forwarding("service/2-flows", "pod to Service, against two flows to the endpoint", plainFlows, virtualAddress(), measure.Target{}),
		forwarding("service/2-flows-ct", "pod to Service, against two flows with a ct pass that translates", translatedFlows, virtualAddress(), measure.RatioAtMost(1.1)),
		policyFlows(),
		policyCompute("policies/compute/10k-10k-1", "10,000 policies and 10,000 pods in one namespace", func() *policytest.Cluster { return policytest.OneNamespace(false) }),
		policyCompute("policies/compute/75k-100k-25k", "75,000 policies and 100,000 pods in 25,000 namespaces (Antrea's own test: about 6 s and 1.6 GB)", policytest.ManyNamespaces),
		policyForwarding("mode", "in the mode with NetworkPolicies and without any, against the flat network", noPolicies(), flatNetwork, measure.Target{}),
		policyForwarding("1000-beside", "with 1,000 policies for other pods, against none", others(), noPolicies(), measure.RatioAtMost(1.05)),
		policyForwarding("1000-isolated", "isolated by 1,000 policies, against none", isolating(1000), noPolicies(), measure.RatioAtMost(1.05)),
		policyForwarding("1000-1", "isolated by 1,000 policies, against one", isolating(1000), isolating(1), measure.RatioAtMost(1.05)),
		firstPacket(),
		policyLatency(0, 0),
		policyLatency(1_000, 50),
		policyLatency(10_000, 100),
		egressFailover(),
		flannelPods(),
		flannelBurst(),
		flannelTraffic(),
		vpcAdd(),
		vpcFirstPing(),
		gatewayFloatingIPs(),
		gatewayForwarding(),
		flannelLeases(),
		flannelLeaseEvent(),
		flannelResync(),
	}
}

// Matching keeps the rows whose names match, and the groups that have some.
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

// compare runs rounds and judges them.
func (b Bench) compare(ctx context.Context, rows []measure.Row, ours, peer measure.Side) ([]measure.Result, error) {
	rounds, err := measure.Plan{Rounds: b.Rounds, Ours: ours, Peer: peer, Progress: b.Progress}.Run(ctx)
	if err != nil {
		return nil, err
	}
	return measure.Judge(rows, rounds)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
