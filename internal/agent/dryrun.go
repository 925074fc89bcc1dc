package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/agent/networks"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/overlay"
	overlaynode "weft.dev/weft/internal/overlay/node"
	"weft.dev/weft/internal/overlay/node/datapath"
	"weft.dev/weft/internal/overlay/node/watch"
	"weft.dev/weft/internal/steps"
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
	a := &agent{opts: opts, waiting: newWaiting(), metrics: metrics.NewAgent(opts.Version), dry: true}
	var err error
	if a.objects, err = overlaynode.New(opts.overlay(nil, nil)); err != nil {
		return admin.Diff{}, err
	}
	if a.store, err = attach.Look(Records(opts.Paths.StateDir)); err != nil {
		return admin.Diff{}, err
	}
	a.reports = &reports{node: opts.Node, objects: a.objects, store: a.store}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.objects.Run(groupCtx) })
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
	defer e.Close()
	e.Kernel.RunLoops(ctx, group)
	if err := e.Switch.Open(ctx, e.Switch.LoopStarter(ctx, group)); err != nil {
		return admin.Diff{}, err
	}
	for _, name := range e.Networks() {
		if name == overlay.NetworkName || !networks.HasRecords(a.store, name) {
			e.Handovers.Done(name) // the state of the other networks stays, as in a start that waits for them
		}
	}
	programs := e.Overlay()
	programs.Connections, programs.Datapath, programs.Uplink, programs.Kernel = datapath.NoFlush{}, nil, nil, nil
	records := lifecycle.New(a.store, lifecycle.Options{BootID: bootID}).Records(overlay.NetworkName)
	network := overlay.New(programs, a.store, overlay.Options{BootID: bootID, Records: records, Node: a.opts.Node, Log: a.opts.Log, Ports: PortsNamespace(a.opts.Paths.RunDir)})
	if err := a.objects.Begin(ctx, network); err != nil {
		return admin.Diff{}, err
	}
	if err := a.dryProgram(ctx, network, e); err != nil {
		return admin.Diff{}, fmt.Errorf("a start would fail here: %w", err)
	}
	return a.reports.compare(ctx, e.Views()), nil
}

// dryProgram compiles everything. It first waits for all objects that a start would wait for.
func (a *agent) dryProgram(ctx context.Context, network *overlay.Network, e *engines.Engines) error {
	for {
		_, err := a.program(ctx, network, e)
		if !errors.Is(err, watch.ErrUnread) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(steps.FirstRetry):
		}
	}
}
