// Package switches has the rows of the benchmark about a switch with flows and without a cluster: what it costs to compile flows, to program
// them and to forward by them.
package switches

import (
	"context"
	"time"

	"weft.dev/weft/internal/policy/policytest"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

// Compare runs rounds of both sides, and computes the results.
type Compare func(ctx context.Context, rows []measure.Row, ours, peer measure.Side) ([]measure.Result, error)

// Group is the rows whose figures come from the same rounds.
type Group struct {
	// Title describes the rounds.
	Title string
	Rows  []measure.Row
	// Run measures those of the rows that it gets.
	Run func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) ([]measure.Result, error)
}

// Groups returns the groups in the order of measurement.
func Groups() []Group {
	return []Group{
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
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
