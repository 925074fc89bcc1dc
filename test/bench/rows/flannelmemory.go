package rows

import (
	"context"
	"errors"
	"fmt"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/flannel"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

// flannelMemory compares the daemons' memory in a cluster with many nodes.
func flannelMemory() Group {
	return Group{
		Title: fmt.Sprintf("flannel: resident memory of weft flanneld with %d Node objects, against flanneld", manyLeases),
		Rows:  []measure.Row{{Name: "flannel/memory", Metric: resident, Unit: "MB", Target: measure.RatioAtMost(1)}},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			c, err := b.Stage.Lab(ctx, stage.KindNodes, lab.Config{Nodes: 2, NoWeft: true})
			defer func() { err = errors.Join(err, b.Stage.StrikeLab(context.WithoutCancel(ctx), stage.KindNodes)) }()
			if err != nil {
				return nil, err
			}
			if err := b.Stage.BuildFlanneld(ctx, c); err != nil {
				return nil, err
			}
			client, err := busyClient(c)
			if err != nil {
				return nil, err
			}
			b.Stage.Say("making %d nodes", manyLeases)
			if err := flannel.MakeNodes(ctx, client, manyLeases); err != nil {
				return nil, err
			}
			var sides [2]measure.Side
			for i := range sides {
				n := c.Node(1 + i)
				// Not a Node object of the lab: its owner writes another podCIDR.
				name := "daemon-" + n.Name
				if err := flannel.MakeNode(ctx, client, name, n.IP, manyLeases+i); err != nil {
					return nil, err
				}
				daemon, err := b.Stage.Daemon(n, name, i == 1, manyLeases)
				if err != nil {
					return nil, err
				}
				defer daemon.Kill()
				sides[i] = func(ctx context.Context) (measure.Figures, error) {
					err := daemon.Start(ctx)
					if err != nil {
						return nil, err
					}
					size, err := stage.SettledSize(ctx, daemon.Pid())
					return measure.Figures{resident: size / megabyte}, errors.Join(err, daemon.Stop(ctx))
				}
			}
			return b.compare(ctx, rows, sides[0], sides[1])
		},
	}
}
