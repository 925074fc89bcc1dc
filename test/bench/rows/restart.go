package rows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

const (
	restartPods = 100
	// restartRate is the number of datagrams per second between two of the pods; each is answered.
	restartRate = 500
	echoPort    = 7777
	// controlTime is the duration of the same traffic without a restart.
	controlTime = 2 * time.Second
	// restartTimes is how often each side does its work in a round. The figure of the round is the median, because a start that coincides with
	// other work of the machine takes several times as long.
	restartTimes = 5
	// readyLook is the interval of the checks whether the agent is ready. The figures are a few tens of milliseconds, so it is short.
	readyLook = 2 * time.Millisecond
)

// Metrics of restarts.
const (
	restartWall = "restart-wall" // from the start of the process until it is ready
	restartMods = "restart-mods" // flows that the restart changed
	lost        = "lost"         // datagrams
	lostControl = "lost-control" // the same without a restart
)

// restart kills the agent of a node with pods, under traffic. The floor is the minimum that has to be read, under the same traffic: the
// switch's flows and its database, with the switch's own tools.
func restart() Group {
	return Group{
		lab:   true,
		Title: fmt.Sprintf("a restart of the agent with %d pods on the node, against a bare dump of flows and database", restartPods),
		Rows: []measure.Row{
			{Name: "restart/100/in-step", Metric: restartWall, Unit: "ms", Target: measure.RatioAtMost(3)},
			{Name: "restart/100/flow-mods", Metric: restartMods, Unit: "flow-mods", Target: measure.AtMost(0), Alone: true},
			{Name: "restart/100/lost", Metric: lost, Unit: "packets", Target: measure.AtMost(0), Alone: true},
			{Name: "restart/100/lost-control", Metric: lostControl, Unit: "packets, without a restart", Alone: true},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error) {
			c, err := b.Stage.Cluster(ctx)
			if err != nil {
				return nil, err
			}
			if err := c.Populate(ctx, restartPods); err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, restartAgent(c), readSwitch(c))
		},
	}
}

func restartAgent(c *stage.Cluster) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		control, err := under(ctx, c, func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(controlTime):
				return nil
			}
		})
		if err != nil {
			return nil, err
		}
		figures := measure.Figures{lostControl: float64(control.Lost)}
		var walls []float64
		tally, err := under(ctx, c, func(ctx context.Context) error {
			for range restartTimes {
				wall, mods, err := restartOnce(ctx, c)
				if err != nil {
					return err
				}
				walls = append(walls, milliseconds(wall))
				figures[restartMods] += float64(mods)
			}
			return nil
		})
		figures[restartWall], figures[lost] = measure.Median(walls), float64(tally.Lost)
		return figures, err
	}
}

// under calls do while two of the permanent pods exchange datagrams, and returns their counts.
func under(ctx context.Context, c *stage.Cluster, do func(context.Context) error) (traffic.Tally, error) {
	from, to := c.Running(0), c.Running(1)
	address := netip.AddrPortFrom(to.IPs[0], echoPort)
	echo, err := traffic.NewEcho(to.Netns, address)
	if err != nil {
		return traffic.Tally{}, err
	}
	defer func() { _ = echo.Close() }()
	limited, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	if _, err := traffic.Ping(limited, from.Netns, address); err != nil {
		return traffic.Tally{}, err
	}
	stream, err := traffic.NewStream(from.Netns, address, restartRate)
	if err != nil {
		return traffic.Tally{}, err
	}
	failed := do(ctx)
	tally, err := stream.Stop()
	return tally, errors.Join(failed, err)
}

// restartOnce kills the agent, and returns the time from the start of the next process until it is ready, and the flows that it changed.
func restartOnce(ctx context.Context, c *stage.Cluster) (wall time.Duration, mods int, err error) {
	node, program := c.Ours[0], c.Ours[0].Name+"/weft-agent"
	watch, err := probe.WatchFlows(ctx, node.Node)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, watch.Close()) }()
	if err := probe.Kill(ctx, c.Cluster, program, syscall.SIGKILL); err != nil {
		return 0, 0, err
	}
	ready, err := awaitReady(ctx, node)
	if err != nil {
		return 0, 0, fmt.Errorf("%s ready: %w", program, err)
	}
	status, err := probe.Program(ctx, c.Cluster, program)
	if err != nil {
		return 0, 0, err
	}
	mods, err = watch.Count(ctx)
	return ready.Sub(status.Since), mods, err
}

// awaitReady returns when the agent of a node was ready.
func awaitReady(ctx context.Context, node stage.Node) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	ticker := time.NewTicker(readyLook)
	defer ticker.Stop()
	for {
		err := probe.Ready(ctx, node.Node)
		if err == nil {
			return time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, err
		case <-ticker.C:
		}
	}
}

// readSwitch reads the switch under the same traffic as a restart: the datapath's thread takes processor time from both.
func readSwitch(c *stage.Cluster) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		var walls []float64
		_, err := under(ctx, c, func(ctx context.Context) error {
			for range restartTimes {
				flows, err := c.Ours[0].Run(ctx, "ovs-ofctl", "-O", "OpenFlow15", "dump-flows", stage.Bridge)
				if err != nil {
					return err
				}
				database, err := c.Ours[0].Run(ctx, "ovsdb-client", "dump", "unix:/run/openvswitch/db.sock", "Open_vSwitch")
				if err != nil {
					return err
				}
				walls = append(walls, milliseconds(flows.Wall+database.Wall))
			}
			return nil
		})
		return measure.Figures{restartWall: measure.Median(walls)}, err
	}
}
