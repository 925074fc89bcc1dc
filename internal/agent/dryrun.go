package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// DryRun returns what a start of an agent with these options would change in the node's engines. It runs the same steps as Run, with
// engines that are read but not written: it reads records and objects, compiles them, and compares the result with the engines' state. It
// changes nothing and opens no socket to listen on, and does not disturb an agent that runs on the node.
func DryRun(ctx context.Context, opts Options) (admin.Diff, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return admin.Diff{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &agent{opts: opts, waiting: newWaiting(), metrics: metrics.NewAgent(opts.Version), status: &statusWriter{wake: make(chan struct{}, 1)}, dry: true}
	var err error
	if a.objects, err = newObjects(&opts); err != nil {
		return admin.Diff{}, err
	}
	a.objects.egressFirewalls.resolve(&opts, nil)
	if a.store, err = attach.Look(Records(opts.StateDir)); err != nil {
		return admin.Diff{}, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.objects.run(groupCtx) })
	diff, err := a.dryRun(groupCtx, group)
	cancel()
	ended := group.Wait()
	if err == nil {
		return diff, nil
	}
	return admin.Diff{}, errors.Join(err, ended)
}

func (a *agent) dryRun(ctx context.Context, group *errgroup.Group) (admin.Diff, error) {
	bootID, err := attach.ReadBootID()
	if err != nil {
		return admin.Diff{}, err
	}
	e, err := a.newEngines()
	if err != nil {
		return admin.Diff{}, err
	}
	defer e.close()
	e.runLoops(ctx, group)
	if err := a.openSwitch(ctx, e, e.runSwitchLoops(ctx, group)); err != nil {
		return admin.Diff{}, err
	}
	for name := range e.cares {
		if name == overlay.NetworkName || !hasRecords(a.store, name) {
			e.handovers.Done(name) // the state of the other networks stays, as in a start that waits for them
		}
	}
	engines := e.overlay()
	engines.Connections, engines.Datapath, engines.Uplink, engines.Kernel = forgetsNothing{}, nil, nil, nil
	records := lifecycle.New(a.store, lifecycle.Options{BootID: bootID}).Records(overlay.NetworkName)
	network := overlay.New(engines, a.store, overlay.Options{BootID: bootID, Records: records, Node: a.opts.Node, Log: a.opts.Log, Ports: PortsNamespace(a.opts.RunDir)})
	if err := a.objects.synced(ctx); err != nil {
		return admin.Diff{}, err
	}
	if err := a.objects.services.step(ctx, network); err != nil {
		return admin.Diff{}, err
	}
	if err := a.dryProgram(ctx, network, e); err != nil {
		return admin.Diff{}, fmt.Errorf("a start would fail here: %w", err)
	}
	return a.compare(ctx, e.all()), nil
}

// dryProgram compiles everything. It first waits for all objects that a start would wait for.
func (a *agent) dryProgram(ctx context.Context, network *overlay.Network, e *engines) error {
	for {
		_, err := a.program(ctx, network, e)
		if !errors.Is(err, errUnread) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(firstFollowRetry):
		}
	}
}

// forgetsNothing leaves the switch's conntrack entries in place.
type forgetsNothing struct{}

// Forget implements balancer.Connections.
func (forgetsNothing) Forget(context.Context, []openflow.CTFlush) error { return nil }

// Flush implements balancer.Connections.
func (forgetsNothing) Flush(context.Context, []openflow.CTFlush) error { return nil }

// readOnly returns an engine for a loop: the engine itself, or in a dry run one that reads but does not write.
func readOnly[K comparable, V any](dry bool, engine reconcile.Engine[K, V]) reconcile.Engine[K, V] {
	if dry {
		return reconcile.DryRun(engine)
	}
	return engine
}

// flowEngine returns the engine of the flow loop. In a dry run on a node without a bridge, there is nothing to connect to, and there are no
// flows.
func (e *engines) flowEngine(ctx context.Context, bridge string, engine *bridge.Engine) (reconcile.Engine[openflow.Key, openflow.Entry], error) {
	if !e.dry {
		return engine, nil
	}
	rows, err := e.rows.Read(ctx)
	if err != nil {
		return nil, err
	}
	if _, there := rows[ovsdb.BridgeKey(bridge)]; !there {
		return noFlows{}, nil
	}
	return reconcile.DryRun[openflow.Key, openflow.Entry](engine), nil
}

// noFlows is the engine of a switch without a bridge.
type noFlows struct{}

// Read implements reconcile.Engine.
func (noFlows) Read(context.Context) (map[openflow.Key]openflow.Entry, error) {
	return map[openflow.Key]openflow.Entry{}, nil
}

// Commit implements reconcile.Engine.
func (noFlows) Commit(context.Context, bridge.Change) error { return nil }
