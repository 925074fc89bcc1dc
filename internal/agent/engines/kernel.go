package engines

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/agent/firewall"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/podveth"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/reconcile"
)

// HostEnds restores pods' host veths that another program changed.
type HostEnds interface {
	// HostEndChanged is called with the state of a host veth that has changed.
	HostEndChanged(device string, end podlink.HostEnd)
	// CheckHostEnds is called when any host veth may have changed.
	CheckHostEnds()
}

// Kernel is the part of the engines that every node has.
type Kernel struct {
	options *Options
	links   *marked.Engine
	rules   *ruleset.Engine
	// Pods are pods' links, and surveyed the same for the overlay.
	Pods     *podveth.Pods
	surveyed *surveyed

	Links *reconcile.Loop[link.Key, link.Item]
	Rules *reconcile.Loop[nft.Key, nft.Item]
	// Firewall opens other programs' chains for the networks' packets.
	Firewall *firewall.Firewall
	// watchers are notified when devices change, and hostEnds when host veths may have changed; nil until there is a network that has any.
	watchers watchers
	hostEnds atomic.Pointer[HostEnds]
}

func newKernel(options *Options, handovers *node.Handovers) (*Kernel, error) {
	k, care := &Kernel{options: options}, options.care()
	if err := k.open(care); err != nil {
		k.close()
		return nil, err
	}
	k.surveyed = &surveyed{Pods: k.Pods}
	k.Links = reconcile.NewLoop(readOnly(options.Dry, k.links), reconcile.Options[link.Key, link.Item]{
		Name: NameLinks, Log: options.Log, Observe: options.observe, Settled: options.Settled, Keep: handovers.KeepLink,
	})
	k.Rules = reconcile.NewLoop(readOnly(options.Dry, k.rules), reconcile.Options[nft.Key, nft.Item]{
		Name: NameRules, Log: options.Log, Observe: options.observe, Settled: k.rulesSettled, Keep: handovers.KeepRule,
	})
	k.Firewall = firewall.New(firewall.Options{
		Engine: k.rules, Loop: k.Rules, Log: options.Log,
		Instead: map[string]string{overlay.NetworkName: "; put such rules into chain " + host.AdminChain + " of table inet weft"},
	})
	k.Firewall.OnChange(options.NodeChanged)
	handovers.OnChange(k.Links.KeepChanged)
	handovers.OnChange(k.Rules.KeepChanged)
	return k, nil
}

func (k *Kernel) open(care node.Care) error {
	var err error
	if k.links, err = marked.New(marked.Options{Devices: care.Devices}); err != nil {
		return err
	}
	if k.Pods, err = podveth.New(); err != nil {
		return err
	}
	k.rules, err = ruleset.NewEngine(ruleset.Options{Tables: care.Tables, Unmanaged: care.Unmanaged, Apart: care.Apart, Foreign: true})
	return err
}

func (k *Kernel) close() {
	if k.Pods != nil {
		k.Pods.Close()
	}
	if k.links != nil {
		k.links.Close()
	}
}

// rulesSettled is called when the state of the rules may have changed.
func (k *Kernel) rulesSettled() {
	k.options.Settled()
	k.Firewall.Settled()
}

// Prefetch reads the rules ahead of their first use: nft's processes take longer than anything else that a start reads.
func (k *Kernel) Prefetch(ctx context.Context) { k.rules.Prefetch(ctx) }

// ReadAhead reads in the group what the overlay reads of the kernel when it starts, while the API server and the switch answer. ports is the
// path of the namespace of pre-plugged ports.
func (k *Kernel) ReadAhead(ctx context.Context, group *errgroup.Group, ports string) {
	group.Go(func() error {
		k.surveyed.survey(ctx, ports)
		return nil
	})
}

// WatchDevices registers a callback, which is called for each change of a device until stop is called.
func (k *Kernel) WatchDevices(callback func(notify.Drift)) (stop func()) {
	return k.watchers.add(callback)
}

// Restore makes the network restore host veths that other programs change.
func (k *Kernel) Restore(ends HostEnds) { k.hostEnds.Store(&ends) }

// PassOverlay opens the host's firewall for the overlay's packets.
func (k *Kernel) PassOverlay(ctx context.Context, traffic []nft.Traffic) error {
	return k.Firewall.Pass(ctx, overlay.NetworkName, traffic)
}

// RunLoops runs the loops in the group until ctx ends, without what rereads other programs' changes: for a dry run.
func (k *Kernel) RunLoops(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error { return k.Links.Run(ctx) })
	group.Go(func() error { return k.Rules.Run(ctx) })
}

func (k *Kernel) run(ctx context.Context, group *errgroup.Group) {
	k.RunLoops(ctx, group)
	group.Go(func() error { return k.followLinks(ctx) })
	group.Go(func() error { return k.followRules(ctx) })
}

func (k *Kernel) resync() {
	k.Links.Resync()
	k.Rules.Resync()
}

func (k *Kernel) checkHostEnds() {
	if ends := k.hostEnds.Load(); ends != nil {
		(*ends).CheckHostEnds()
	}
}

func (k *Kernel) followLinks(ctx context.Context) error {
	drift, err := k.links.Watch(ctx)
	if err != nil {
		return err
	}
	for changed := range drift {
		if changed.Err != nil {
			return changed.Err // without the watch the agent ends, and is started again
		}
		k.watchers.notify(changed)
		ends := k.hostEnds.Load()
		switch {
		case changed.End != nil && ends != nil:
			(*ends).HostEndChanged(changed.Device, *changed.End)
		case changed.Attended && changed.Kind == link.KindAddress:
			k.options.AddressesChanged()
		case changed.Attended:
			k.options.NodeChanged()
		case changed.All:
			k.Links.ReadAhead()
		case changed.End == nil:
			k.Links.Resync()
		}
		if changed.All {
			k.options.NodeChanged()
			k.checkHostEnds()
		}
	}
	return nil
}

// followRules rereads the rules that other programs changed, and surveys the chains of other programs that must let Weft's packets pass.
func (k *Kernel) followRules(ctx context.Context) error {
	drifts, err := k.rules.Monitor(ctx)
	if err != nil {
		return err
	}
	return k.Firewall.Follow(ctx, drifts)
}
