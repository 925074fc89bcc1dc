package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"weft.dev/weft/internal/flannel/extension"
	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/link/whole"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/reconcile"
)

// engines are the node's engines with their loops, for all generations.
type engines struct {
	// foreign makes the nftables engine program other programs' chains as well.
	foreign bool
	log     *slog.Logger

	devices *whole.Engine
	nft     *ruleset.Engine
	links   *reconcile.Loop[whole.Key, whole.Item]
	rules   *reconcile.Loop[nft.Key, nft.Item]
	// commands are the commands of the extension backend.
	commands *reconcile.Loop[extension.Key, extension.Item]
	firewall *firewall
	started  bool
	ahead    bool           // what was programmed has been read ahead
	ranges   []netip.Prefix // the ranges of all networks so far
}

// open starts the engines, in the first generation. keep reports whether an nftables item that no fragment names stays.
func (e *engines) open(ctx context.Context, running *sync.WaitGroup, config netconf.Config, keep func(nft.Key, nft.Item) bool) error {
	for _, network := range []netip.Prefix{config.Network, config.IPv6Network} {
		if network.IsValid() && !slices.Contains(e.ranges, network) {
			e.ranges = append(e.ranges, network) // former ones stay: routes into them are removed
		}
	}
	if e.started {
		e.devices.SetRanges(e.ranges, others(config.Backend))
		return nil
	}
	var err error
	if e.devices, err = whole.NewEngine(whole.Options{Owns: fabric.Owns, Log: e.log}); err != nil {
		return err
	}
	e.devices.SetRanges(e.ranges, others(config.Backend))
	if e.nft, err = ruleset.NewEngine(ruleset.Options{Tables: host.Tables(), Foreign: e.foreign}); err != nil {
		e.devices.Close()
		return err
	}
	e.started = true
	e.links = reconcile.NewLoop(e.devices, reconcile.Options[whole.Key, whole.Item]{Name: "links", Log: e.log})
	e.rules = reconcile.NewLoop(e.nft, reconcile.Options[nft.Key, nft.Item]{Name: "nftables", Log: e.log, Keep: keep})
	e.firewall = &firewall{engine: e.nft, loop: e.rules, log: e.log}
	e.commands = reconcile.NewLoop(extension.NewEngine(e.log), reconcile.Options[extension.Key, extension.Item]{Name: "commands", Log: e.log})
	running.Go(func() { _ = e.commands.Run(ctx) })
	running.Go(func() {
		defer e.devices.Close()
		_ = e.links.Run(ctx)
	})
	running.Go(func() {
		defer e.nft.Close()
		_ = e.rules.Run(ctx)
	})
	return nil
}

// watches are those of readAhead. Each function ends one.
type watches struct{ links, rules context.CancelFunc }

// readAhead makes the engines read what is programmed before their first state is known. The store may take long to return leases:
// what another program changes meanwhile is read again. Otherwise rules that are gone would count as in effect, and the tunnel would be
// open to all hosts. Rules stay watched until follow does it, links until their first commit, which has thousands of events of its own.
func (e *engines) readAhead(ctx context.Context, running *sync.WaitGroup) (watches, error) {
	linkCtx, links := context.WithCancel(ctx)
	ruleCtx, rules := context.WithCancel(ctx)
	changes, err := e.devices.Watch(linkCtx)
	drifts, wrong := e.nft.Monitor(ruleCtx)
	if err := errors.Join(err, wrong); err != nil {
		links()
		rules()
		return watches{}, err
	}
	<-drifts // the watch has begun
	running.Go(func() {
		for range changes {
			e.links.Outdate()
		}
	})
	running.Go(func() {
		for drift := range drifts {
			if drift.All || drift.InCare {
				e.rules.Resync()
			} else {
				e.rules.Outdate() // the rules in other programs' chains
			}
		}
	})
	if e.ahead { // by a former generation, for its ranges and tables; it may have ended before its first state
		e.links.Outdate()
		e.rules.Outdate()
		return watches{links, rules}, nil
	}
	e.ahead = true
	e.links.ReadAhead()
	e.rules.ReadAhead()
	return watches{links, rules}, nil
}

// others reports whether other programs add the routes to other nodes' pods.
func others(backend netconf.Backend) bool {
	switch backend.(type) {
	case netconf.Alloc, netconf.Extension:
		return true
	}
	return false
}
