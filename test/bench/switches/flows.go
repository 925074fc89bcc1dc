package switches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

const (
	syncFlows = 50_000
	// flowsPerOwner is roughly the number of flows of one policy.
	flowsPerOwner = 100
)

// Metrics of flows.
const (
	flowRate   = "flow-rate"   // flows per second until they are in effect
	flowCPU    = "flow-cpu"    // of the switch and the client, divided by the number of flows
	resyncWall = "resync-wall" // until everything has been read back and compared
	resyncMods = "resync-mods" // changes sent for that
)

// flows compares the engine and its loop, as the agent uses them, with the switch's own tool.
func flows() Group {
	return Group{
		Title: fmt.Sprintf("%d flows into an empty switch, and a resync without change, against ovs-ofctl --bundle and dump-flows", syncFlows),
		Rows: []measure.Row{
			{Name: "flows/50000/sync", Metric: flowRate, Unit: "flows/s (more is better)", Target: measure.RatioAtLeast(0.85)},
			{Name: "flows/50000/sync-cpu", Metric: flowCPU, Unit: "us of CPU a flow"},
			{Name: "flows/50000/resync", Metric: resyncWall, Unit: "ms"},
			{Name: "flows/50000/resync-mods", Metric: resyncMods, Unit: "flow-mods", Target: measure.AtMost(0), Alone: true},
		},
		Run: func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) ([]measure.Result, error) {
			return onSwitches(ctx, st, func(ctx context.Context, ours *program, peer *stage.Switch) ([]measure.Result, error) {
				fragments := manyFlows()
				file, err := writeFlows(peer, fragments)
				if err != nil {
					return nil, err
				}
				return compare(ctx, rows, ours.syncFlows(fragments), bundleFlows(peer, file))
			})
		},
	}
}

// onSwitches runs f with two empty switches: ours with the engine and its loop, and the peer's.
func onSwitches(ctx context.Context, st *stage.Stage, f func(context.Context, *program, *stage.Switch) ([]measure.Result, error)) (results []measure.Result, err error) {
	ours, err := st.Switch(ctx, "ours")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ours.Strike()) }()
	peer, err := st.Switch(ctx, "peer")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, peer.Strike()) }()
	p := newProgram(ours)
	group, running := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(running)
	group.Go(func() error { return ended(running, p.engine.Run(running)) })
	group.Go(func() error { return ended(running, p.loop.Run(running)) })
	defer func() {
		stop()
		err = errors.Join(err, group.Wait())
	}()
	if err := p.loop.Start(ctx, nil); err != nil {
		return nil, err
	}
	return f(ctx, p, peer)
}

// ended returns an error if a run ended too early.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was to end
	}
	return err
}

// program is a switch with the OpenFlow engine and its loop, configured like the agent's.
type program struct {
	sw     *stage.Switch
	engine *counted
	loop   *reconcile.Loop[openflow.Key, openflow.Entry]
}

// counted counts the changes sent to the switch.
type counted struct {
	*bridge.Engine
	mods int // only the loop's goroutine writes, while no other reads
}

// Commit counts the change and commits it.
func (c *counted) Commit(ctx context.Context, change bridge.Change) error {
	c.mods += len(change.Set) + len(change.Delete)
	return c.Engine.Commit(ctx, change)
}

func newProgram(sw *stage.Switch) *program {
	p := &program{sw: sw, engine: &counted{Engine: bridge.NewEngine(bridge.Config{Address: sw.Mgmt(), Last: pipeline.IsNote})}}
	p.loop = reconcile.NewLoop[openflow.Key, openflow.Entry](p.engine, reconcile.Options[openflow.Key, openflow.Entry]{
		Name: "openflow", Encode: openflow.Encode, Seal: pipeline.Note,
	})
	return p
}

// spent returns the processor time of the switch and of this process, which is the client.
func (p *program) spent() (time.Duration, error) {
	sw, err := p.sw.Meter().Used()
	if err != nil {
		return 0, err
	}
	own, err := stage.OwnMeter().Used()
	return sw + own, err
}

// apply hands fragments over and waits until they are in effect.
func (p *program) apply(ctx context.Context, fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry) (stage.Ran, error) {
	before, err := p.spent()
	if err != nil {
		return stage.Ran{}, err
	}
	began := time.Now()
	if err := p.loop.Apply(ctx, fragments); err != nil {
		return stage.Ran{}, err
	}
	wall := time.Since(began)
	after, err := p.spent()
	return stage.Ran{Wall: wall, CPU: after - before}, err
}

// empty removes all fragments.
func (p *program) empty(ctx context.Context, fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry) error {
	none := make(map[reconcile.Owner]map[openflow.Key]openflow.Entry, len(fragments))
	for owner := range fragments {
		none[owner] = nil
	}
	return p.loop.Apply(ctx, none)
}

func (p *program) syncFlows(fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		ran, err := p.apply(ctx, fragments)
		if err != nil {
			return nil, err
		}
		sent := p.engine.mods
		began := time.Now()
		if _, err := p.loop.Verify(ctx); err != nil {
			return nil, err
		}
		resync := time.Since(began)
		return measure.Figures{
			flowRate: syncFlows / ran.Wall.Seconds(), flowCPU: microseconds(ran.CPU) / syncFlows,
			resyncWall: milliseconds(resync), resyncMods: float64(p.engine.mods - sent),
		}, p.empty(ctx, fragments)
	}
}

// bundleFlows does the same with ovs-ofctl, including its start and the reading of the file.
func bundleFlows(sw *stage.Switch, file string) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		ran, cpu, err := withSwitch(ctx, sw, "--bundle", "add-flows", stage.Bridge, file)
		if err != nil {
			return nil, err
		}
		dump, _, err := withSwitch(ctx, sw, "dump-flows", stage.Bridge)
		if err != nil {
			return nil, err
		}
		_, _, err = withSwitch(ctx, sw, "del-flows", stage.Bridge)
		return measure.Figures{
			flowRate: syncFlows / ran.Wall.Seconds(), flowCPU: microseconds(cpu) / syncFlows, resyncWall: milliseconds(dump.Wall),
		}, err
	}
}

// withSwitch runs ovs-ofctl and returns its usage, with the processor time including the switch's.
func withSwitch(ctx context.Context, sw *stage.Switch, args ...string) (stage.Ran, time.Duration, error) {
	before, err := sw.Meter().Used()
	if err != nil {
		return stage.Ran{}, 0, err
	}
	ran, err := sw.Run(ctx, append([]string{"ovs-ofctl", "-O", "OpenFlow15"}, args...)...)
	if err != nil {
		return ran, 0, err
	}
	after, err := sw.Meter().Used()
	return ran, ran.CPU + after - before, err
}

// manyFlows returns flows like those that policies compile to: an address, a register, a conjunction.
func manyFlows() map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	for i := range syncFlows {
		n := i / flowsPerOwner
		owner := reconcile.Owner(fmt.Sprintf("bench/%d", n))
		if fragments[owner] == nil {
			fragments[owner] = make(map[openflow.Key]openflow.Entry, flowsPerOwner)
		}
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		f := &openflow.Flow{
			Table: layout.TableIngress, Priority: 100, Cookie: cookies.Of(owner),
			Match:   oxm.NewMatch(oxm.IPSrc(netip.PrefixFrom(a, a.BitLen())), oxm.Reg(1, 77)),
			Actions: action.Actions{action.Conjunction(uint32(n+1), 1, 2)},
		}
		fragments[owner][f.Key()] = f
	}
	return fragments
}

// writeFlows writes flows in ovs-ofctl's syntax.
func writeFlows(sw *stage.Switch, fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry) (string, error) {
	all := map[openflow.Key]openflow.Entry{}
	for _, fragment := range fragments {
		maps.Copy(all, fragment)
	}
	file := sw.File("flows")
	if err := os.WriteFile(file, []byte(openflow.Text(all)), 0o600); err != nil {
		return "", fmt.Errorf("write the peer's flows: %w", err)
	}
	return file, nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
