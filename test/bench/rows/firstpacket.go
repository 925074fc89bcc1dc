package rows

import (
	"context"
	"errors"
	"fmt"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/firstpacket"
)

// firstPacketStarts is the number of isolated pods that start.
const firstPacketStarts = 1000

// Metrics of pods that start isolated.
const (
	leaked      = "leaked"       // packets that reached one, or left one
	pods        = "pods"         // started
	startedAway = "started-away" // agents that were killed in the middle of their ADD
)

// firstPacket starts pods that a policy isolates, while pods on both nodes send to the addresses that they will get. There is one round:
// the only result is whether anything leaks.
func firstPacket() Group {
	return Group{
		Title: fmt.Sprintf("%d pods start isolated, while other pods send to them; the agent restarts, the controller hangs, the API server is away for a fifth each", firstPacketStarts),
		Rows: []measure.Row{
			{Name: "policies/first-packet/leaked", Metric: leaked, Unit: "packets", Target: measure.AtMost(0)},
			{Name: "policies/first-packet/pods", Metric: pods, Unit: "pods that started"},
			{Name: "policies/first-packet/restarts", Metric: startedAway, Unit: "agents killed during an ADD"},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			c, err := b.Stage.Lab(ctx, stage.KindPolicies, lab.Config{Nodes: 2, PluginName: networkv1.PluginNetworkPolicy})
			defer func() { err = errors.Join(err, b.Stage.StrikeLab(context.WithoutCancel(ctx), stage.KindPolicies)) }()
			if err != nil {
				return nil, err
			}
			report, err := firstpacket.Run(ctx, c, firstPacketStarts)
			b.Stage.Say("%s", &report)
			if err != nil {
				return nil, err
			}
			for _, leak := range report.Leaks {
				b.Stage.Say("leaked: %s", leak)
			}
			figures := measure.Figures{leaked: float64(report.Leaked), pods: float64(report.Starts), startedAway: float64(report.Restarts)}
			return measure.Judge(rows, []measure.Round{{Ours: figures}})
		},
	}
}
