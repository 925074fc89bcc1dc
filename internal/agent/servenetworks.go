package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"weft.dev/weft/internal/agent/engines"

	"weft.dev/weft/internal/agent/events"

	weftv1 "weft.dev/weft/api/weft/v1"

	"golang.org/x/sync/errgroup"
	toolscache "k8s.io/client-go/tools/cache"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/steps"
)

// follow keeps a network running while it is present, or has attachments on this node.
func (n *networks) follow(ctx, engineCtx context.Context, k *kind, e *engines.Engines, group *errgroup.Group) error {
	signal := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { steps.Wake(k.wake) }, UpdateFunc: func(any, any) { steps.Wake(k.wake) }, DeleteFunc: func(any) { steps.Wake(k.wake) },
	}
	// A network with attachments from before a restart is served at once: its pods do not wait for the API server.
	watching := make(chan error, 1)
	go func() { watching <- n.watch(ctx, k, signal) }()
	if !hasRecords(n.agent.store, k.Name) {
		if err := <-watching; err != nil || ctx.Err() != nil {
			return steps.UnlessEnded(ctx, err)
		}
	} else if err := n.serve(ctx, engineCtx, k, e, group); err != nil || ctx.Err() != nil {
		return err
	}
	for ctx.Err() == nil {
		var retry <-chan time.Time
		presence, err := n.look(ctx, k)
		switch {
		case err != nil:
			n.agent.opts.Log.Warn("reading whether a network is configured failed, trying again", "network", k.Name, "error", err)
			retry = time.After(steps.LastRetry)
		case presence.Present || hasRecords(n.agent.store, k.Name):
			if err := n.serve(ctx, engineCtx, k, e, group); err != nil {
				return err
			}
			continue
		default:
			e.Handovers.Done(k.Name) // what is left of it is removed
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-retry:
		}
	}
	return nil
}

// serve runs a network until it is not present any more and has no attachments on this node.
func (n *networks) serve(ctx, engineCtx context.Context, k *kind, e *engines.Engines, group *errgroup.Group) error {
	a := n.agent
	made, runner, err := n.open(ctx, k, e, group)
	if err != nil {
		return steps.UnlessEnded(ctx, err)
	}
	runCtx, stop := context.WithCancel(engineCtx)
	leave := a.handler.Serve(k.Name, made, runner.HandedOver())
	k.set(made, "")
	steps.Wake(n.changed)
	ended := make(chan struct{})
	group.Go(func() error {
		defer close(ended)
		defer stop()
		err := runner.Run(runCtx)
		if err != nil && runCtx.Err() == nil {
			return fmt.Errorf("network %s: %w", k.Name, err)
		}
		return nil
	})
	group.Go(func() error {
		select {
		case <-runner.HandedOver():
			e.Handovers.Done(k.Name)
			steps.Wake(n.changed)
		case <-runCtx.Done():
		}
		return nil
	})
	a.opts.Log.Info("serving a network", "network", k.Name)
	for {
		select {
		case <-ctx.Done():
			return nil // requests in progress still need the network; it ends with the engines
		case <-ended:
			return nil
		case <-k.wake:
		}
		presence, err := n.look(ctx, k)
		if err == nil && !presence.Present && !hasRecords(a.store, k.Name) {
			a.opts.Log.Info("network is no longer configured, and has no pods on this node", "network", k.Name)
			leave()
			k.set(nil, cmp.Or(presence.Why, "it is not configured"))
			stop()
			<-ended
			return nil
		}
	}
}

// open creates the network, and retries until what it needs of the node exists.
func (n *networks) open(ctx context.Context, k *kind, e *engines.Engines, group *errgroup.Group) (network.Network, network.Runner, error) {
	a := n.agent
	delay := steps.FirstRetry
	for {
		if _, err := setAll(k.Care.Sysctls); err != nil {
			return nil, nil, err
		}
		made, runner, err := k.New(ctx, n.node(k, e, group), network.Deps{
			Log: a.opts.Log.With("network", k.Name), Records: a.handler.Records(k.Name), Objects: k.objects, API: k.api, Config: a.opts.Config,
			Events: events.OnObjects{Recorder: a.events}, Changed: func() { steps.Wake(n.changed) },
			Report: a.reportOf(k.Name), ClosedPorts: closedPorts(a.opts.Networks),
		})
		if err == nil || ctx.Err() != nil {
			return made, runner, err
		}
		k.set(nil, err.Error())
		a.opts.Log.Warn("network failed to start, trying again", "network", k.Name, "error", err)
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-k.wake:
		case <-time.After(delay):
		}
		delay = min(2*delay, steps.LastRetry)
	}
}

// node returns this node in the form that networks use.
func (n *networks) node(k *kind, e *engines.Engines, group *errgroup.Group) *node.Node {
	a := n.agent
	start := e.Switch.Starter(a.engineCtx, group)
	return &node.Node{
		Name: a.opts.Node, BootID: a.bootID, RunDir: a.opts.RunDir, StateDir: a.opts.StateDir,
		Ports: PortsNamespace(a.opts.RunDir), Verify: a.opts.Verify, Reserved: a.reservedFor,
		Links: e.Kernel.Links, Rules: e.Kernel.Rules, Pods: e.Kernel.Pods, Pass: e.Kernel.Firewall.Pass, WatchLinks: e.Kernel.WatchDevices,
		Observe: a.tables.Add, Ranges: link.Ranges, Elsewhere: link.Elsewhere,
		Switch: func(ctx context.Context) (*node.Switch, error) {
			k.set(nil, "waiting for Open vSwitch's database at "+a.opts.OVSRunDir)
			if err := e.Switch.Open(ctx, start); err != nil {
				return nil, err
			}
			return &node.Switch{Datapath: e.Switch.Datapath, Database: e.Switch.Database, Rows: e.Switch.Rows, Bridges: e.Switch.Bridges}, nil
		},
	}
}

func (k *kind) set(made network.Network, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.network, k.why = made, why
}

// state returns the network's presence, whether it runs, and why it cannot serve; nil: it can.
func (k *kind) state() (presence network.Presence, running bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.network == nil:
		return k.presence, false, errors.New(k.why)
	case k.known && !k.presence.Present:
		return k.presence, true, fmt.Errorf("it is no longer configured (%s), and still serves the pods that it has on this node", k.presence.Why)
	}
	return k.presence, true, k.network.Ready()
}

// reportOf returns a function that replaces a network's own section.
func (a *agent) reportOf(name string) func(weftv1.NodeNetworkSection) {
	return func(section weftv1.NodeNetworkSection) {
		section.Name = name
		a.nodeNetwork.Set(section)
	}
}
