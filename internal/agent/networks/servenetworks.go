package networks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	toolscache "k8s.io/client-go/tools/cache"

	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/agent/sysctl"
	"weft.dev/weft/internal/link/fib"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/steps"
)

// Running are the engines with which networks run. Networks end with the engines.
type Running struct {
	Engines *engines.Engines
	// Context is the life of the engines, and Group the group in which they run.
	Context context.Context //nolint:containedctx // the life of the engines, which networks that come later join
	Group   *errgroup.Group
}

// follow keeps a network running while it is present, or has attachments on this node.
func (n *Networks) follow(ctx context.Context, at Running, k *kind) error {
	signal := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { steps.Wake(k.wake) }, UpdateFunc: func(any, any) { steps.Wake(k.wake) }, DeleteFunc: func(any) { steps.Wake(k.wake) },
	}
	// A network with attachments from before a restart is served at once: its pods do not wait for the API server.
	watching := make(chan error, 1)
	go func() { watching <- n.watch(ctx, at, k, signal) }()
	if !HasRecords(n.options.Store, k.Name) {
		if err := <-watching; err != nil || ctx.Err() != nil {
			return steps.UnlessEnded(ctx, err)
		}
	} else if err := n.serve(ctx, at, k); err != nil || ctx.Err() != nil {
		return err
	}
	for ctx.Err() == nil {
		var retry <-chan time.Time
		presence, err := n.look(ctx, k)
		switch {
		case err != nil:
			n.options.Log.Warn("reading whether a network is configured failed, trying again", "network", k.Name, "error", err)
			retry = time.After(steps.LastRetry)
		case presence.Present || HasRecords(n.options.Store, k.Name):
			if err := n.serve(ctx, at, k); err != nil {
				return err
			}
			continue
		default:
			at.Engines.Handovers.Done(k.Name) // what is left of it is removed
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
func (n *Networks) serve(ctx context.Context, at Running, k *kind) error { //nolint:contextcheck // a network ends with the engines, after ctx
	made, runner, err := n.open(ctx, at, k)
	if err != nil || made == nil {
		return steps.UnlessEnded(ctx, err)
	}
	runCtx, stop := context.WithCancel(at.Context)
	leave := n.options.Handler.Serve(k.Name, made, runner.HandedOver())
	k.set(made, "")
	steps.Wake(n.changed)
	ended := make(chan struct{})
	at.Group.Go(func() error {
		defer close(ended)
		defer stop()
		err := runner.Run(runCtx)
		if err != nil && runCtx.Err() == nil {
			return fmt.Errorf("network %s: %w", k.Name, err)
		}
		return nil
	})
	at.Group.Go(func() error {
		select {
		case <-runner.HandedOver():
			at.Engines.Handovers.Done(k.Name)
			steps.Wake(n.changed)
		case <-runCtx.Done():
		}
		return nil
	})
	n.options.Log.Info("serving a network", "network", k.Name)
	for {
		select {
		case <-ctx.Done():
			return nil // requests in progress still need the network; it ends with the engines
		case <-ended:
			return nil
		case <-k.wake:
		}
		presence, err := n.look(ctx, k)
		if err == nil && !presence.Present && !HasRecords(n.options.Store, k.Name) {
			n.options.Log.Info("network is no longer configured, and has no pods on this node", "network", k.Name)
			leave()
			k.set(nil, cmp.Or(presence.Why, "it is not configured"))
			stop()
			<-ended
			return nil
		}
	}
}

// open creates the network, and retries until what it needs of the node exists. If the network is not present any more meanwhile, and has no
// attachments on this node, it returns no network.
func (n *Networks) open(ctx context.Context, at Running, k *kind) (network.Network, network.Runner, error) {
	delay := steps.FirstRetry
	for {
		if _, err := sysctl.Set(k.Care.Sysctls); err != nil {
			return nil, nil, err
		}
		made, runner, err := k.New(ctx, n.node(k, at), network.Deps{
			Log: n.options.Log.With("network", k.Name), Records: n.options.Handler.Records(k.Name), Objects: k.objects, API: k.api, Config: n.options.Config,
			Events: n.options.Events, Changed: func() { steps.Wake(n.changed) },
			Report: n.options.Report(k.Name), ClosedPorts: ClosedPorts(n.options.Kinds),
		})
		if err == nil || ctx.Err() != nil {
			return made, runner, err
		}
		k.set(nil, err.Error())
		n.options.Log.Warn("network failed to start, trying again", "network", k.Name, "error", err)
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-k.wake:
			presence, err := n.look(ctx, k)
			if err == nil && !presence.Present && !HasRecords(n.options.Store, k.Name) {
				k.set(nil, cmp.Or(presence.Why, "it is not configured"))
				return nil, nil, nil
			}
		case <-time.After(delay):
		}
		delay = min(2*delay, steps.LastRetry)
	}
}

// node returns this node in the form that networks use.
func (n *Networks) node(k *kind, at Running) *node.Node {
	e, start := at.Engines, at.Engines.Switch.Starter(at.Context, at.Group)
	here := n.options.Node
	here.Links, here.Rules, here.Pods = e.Kernel.Links, e.Kernel.Rules, e.Kernel.Pods
	here.Pass, here.WatchLinks = e.Kernel.Firewall.Pass, e.Kernel.WatchDevices
	here.Ranges, here.Elsewhere = fib.Ranges, fib.Elsewhere
	here.Switch = func(ctx context.Context) (*node.Switch, error) {
		k.set(nil, "waiting for Open vSwitch's database at "+n.options.OVSRunDir)
		if err := e.Switch.Open(ctx, start); err != nil {
			return nil, err
		}
		return &node.Switch{
			Datapath: e.Switch.Datapath, Database: e.Switch.Database, Rows: e.Switch.Rows, Bridges: e.Switch.Bridges, Settle: e.Switch.Settle,
		}, nil
	}
	return &here
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
