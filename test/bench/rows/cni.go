package rows

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

// podsPerRound is the number of pods that a round adds and deletes, one after the other.
const podsPerRound = 10

// Metrics of pods.
const (
	addWall     = "add-wall"     // p50 of a round
	addCPU      = "add-cpu"      // of all adds, divided by their number
	delAnswered = "del-answered" // p50
	delGone     = "del-gone"     // p50
	delEvent    = "del-event"    // p50
	cycleCPU    = "cycle-cpu"    // from the first ADD of a round until the last link is removed, divided by the number of pods
)

// cni compares ADD and DEL with the bridge plugin, on a node that already has pods.
func cni(pods int) Group {
	name := func(what string) string { return fmt.Sprintf("cni/%d/%s", pods, what) }
	return Group{
		lab:   true,
		Title: fmt.Sprintf("ADD and DEL on a node with %d pods, against bridge and host-local", pods),
		Rows: []measure.Row{
			{Name: name("add"), Metric: addWall, Unit: "ms, p50", Target: measure.RatioAtMost(1).Goal(0.6)},
			{Name: name("add-cpu"), Metric: addCPU, Unit: "ms of CPU a pod"},
			{Name: name("del-answered"), Metric: delAnswered, Unit: "ms, p50", Target: measure.RatioAtMost(0.8)},
			{Name: name("del-link-gone"), Metric: delGone, Unit: "ms, p50", Target: measure.RatioAtMost(1)},
			{Name: name("del-link-event"), Metric: delEvent, Unit: "ms, p50"},
			{Name: name("cycle-cpu"), Metric: cycleCPU, Unit: "ms of CPU a pod"},
			curveRow(pods),
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error) {
			c, err := b.Stage.Cluster(ctx)
			if err != nil {
				return nil, err
			}
			if err := c.Populate(ctx, pods); err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, addAndDelete(c.Ours[0]), addAndDelete(c.Peers[0]))
		},
	}
}

// addAndDelete adds pods one after the other, and then deletes them one after the other, each when the link of the one before is removed.
func addAndDelete(n stage.Node) measure.Side {
	round := 0
	return func(ctx context.Context) (measure.Figures, error) {
		round++
		pods, figures, err := addPods(ctx, n, fmt.Sprintf("round-%d", round))
		if err != nil {
			return nil, err
		}
		meter, err := n.Meter(ctx)
		if err != nil {
			return nil, err
		}
		before, err := meter.Used()
		if err != nil {
			return nil, err
		}
		var answered, gone, event []float64
		for _, p := range pods {
			d, err := n.Delete(ctx, p)
			if err != nil {
				return nil, err
			}
			answered, gone = append(answered, milliseconds(d.Answered)), append(gone, milliseconds(d.Gone))
			event = append(event, milliseconds(d.Event))
		}
		after, err := meter.Used()
		if err != nil {
			return nil, err
		}
		figures[delAnswered], figures[delGone], figures[delEvent] = measure.Median(answered), measure.Median(gone), measure.Median(event)
		figures[cycleCPU] = figures[addCPU] + milliseconds(after-before)/podsPerRound
		return figures, nil
	}
}

// addPods adds a round's pods and finds their links.
func addPods(ctx context.Context, n stage.Node, name string) ([]stage.Pod, measure.Figures, error) {
	for i := range podsPerRound {
		if err := n.Expect(ctx, fmt.Sprintf("%s-%d", name, i)); err != nil {
			return nil, nil, err
		}
	}
	meter, err := n.Meter(ctx)
	if err != nil {
		return nil, nil, err
	}
	before, err := meter.Used()
	if err != nil {
		return nil, nil, err
	}
	var pods []stage.Pod
	var walls []float64
	for i := range podsPerRound {
		p, err := n.Add(ctx, fmt.Sprintf("%s-%d", name, i))
		if err != nil {
			return nil, nil, err
		}
		pods, walls = append(pods, p), append(walls, milliseconds(p.Took))
	}
	after, err := meter.Used()
	if err != nil {
		return nil, nil, err
	}
	for i := range pods {
		if err := pods[i].FindLink(); err != nil {
			return nil, nil, err
		}
	}
	return pods, measure.Figures{addWall: measure.Median(walls), addCPU: milliseconds(after-before) / podsPerRound}, nil
}

// burstPods is the number of pods that start at the same time on each node.
const burstPods = 32

const podsPerSecond = "pods-per-second"

// burst compares how many pods per second start if many are requested at once, on all nodes of a side.
func burst() Group {
	return Group{
		lab:   true,
		Title: fmt.Sprintf("%d ADDs at the same time on each of the nodes", burstPods),
		Rows: []measure.Row{
			{Name: "burst/32", Metric: podsPerSecond, Unit: "pods/s (more is better)", Target: measure.RatioAtLeast(1.2).Goal(1.7)},
			{Name: "burst/32/add-cpu", Metric: addCPU, Unit: "ms of CPU a pod"},
			{Name: "burst/32/cycle-cpu", Metric: cycleCPU, Unit: "ms of CPU a pod"},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error) {
			c, err := b.Stage.Cluster(ctx)
			if err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, addTogether(c.Ours), addTogether(c.Peers))
		},
	}
}

// addTogether adds pods on all nodes concurrently, and then deletes them concurrently.
func addTogether(nodes []stage.Node) measure.Side {
	round := 0
	return func(ctx context.Context) (measure.Figures, error) {
		round++
		all := float64(len(nodes) * burstPods)
		for _, n := range nodes {
			for i := range burstPods {
				if err := n.Expect(ctx, fmt.Sprintf("burst-%d-%d", round, i)); err != nil {
					return nil, err
				}
			}
		}
		before, err := used(ctx, nodes)
		if err != nil {
			return nil, err
		}
		pods := make([][burstPods]stage.Pod, len(nodes))
		began := time.Now()
		err = onEach(ctx, nodes, func(ctx context.Context, node, i int) error {
			p, err := nodes[node].Add(ctx, fmt.Sprintf("burst-%d-%d", round, i))
			pods[node][i] = p
			return err
		})
		took := time.Since(began)
		if err != nil {
			return nil, err
		}
		added, err := used(ctx, nodes)
		if err != nil {
			return nil, err
		}
		err = onEach(ctx, nodes, func(ctx context.Context, node, i int) error {
			p := pods[node][i]
			if err := p.FindLink(); err != nil {
				return err
			}
			_, err := nodes[node].Delete(ctx, p)
			return err
		})
		if err != nil {
			return nil, err
		}
		deleted, err := used(ctx, nodes)
		return measure.Figures{
			podsPerSecond: all / took.Seconds(), addCPU: milliseconds(added-before) / all, cycleCPU: milliseconds(deleted-before) / all,
		}, err
	}
}

// onEach calls f for every pod of a burst on every node, concurrently.
func onEach(ctx context.Context, nodes []stage.Node, f func(ctx context.Context, node, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for node := range nodes {
		for i := range burstPods {
			g.Go(func() error { return f(ctx, node, i) })
		}
	}
	return g.Wait()
}

// used returns the processor time of the nodes' networks.
func used(ctx context.Context, nodes []stage.Node) (time.Duration, error) {
	var all time.Duration
	for _, n := range nodes {
		meter, err := n.Meter(ctx)
		if err != nil {
			return 0, err
		}
		u, err := meter.Used()
		if err != nil {
			return 0, err
		}
		all += u
	}
	return all, nil
}

// curveRow is a point of the curve.
func curveRow(pods int) measure.Row {
	return measure.Row{Name: fmt.Sprintf("curve/%d/add", pods), Metric: addWall, Unit: "ms, p50"}
}

// curve prints the duration of ADD for different numbers of pods on the node.
func curve(pods int) Group {
	return Group{
		lab:   true,
		Title: fmt.Sprintf("the curve: ADD on a node with %d pods", pods),
		Rows:  []measure.Row{curveRow(pods)},
		run: func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error) {
			c, err := b.Stage.Cluster(ctx)
			if err != nil {
				return nil, err
			}
			if err := c.Populate(ctx, pods); err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, addAndDelete(c.Ours[0]), addAndDelete(c.Peers[0]))
		},
	}
}
