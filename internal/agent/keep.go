package agent

import (
	"context"
	"maps"
	"path/filepath"
	"slices"

	"weft.dev/weft/internal/agent/cniconf"
	"weft.dev/weft/internal/agent/events"
	"weft.dev/weft/internal/agent/sysctl"
	"weft.dev/weft/internal/keep"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/rootsocket"
	"weft.dev/weft/internal/steps"
)

// keeper returns the keeper of the node's state that no engine manages: its sysctls, the agent's sockets, and, once pods are served, the
// runtime's configuration.
func (a *agent) keeper(sockets ...*rootsocket.Listener) *keep.Keeper {
	k := &keep.Keeper{
		Things: []keep.Thing{{Name: "sysctls", Restore: setSysctls}, a.readiness.thing("CNI configuration", cniconf.Name)},
		Report: a.reportKept,
	}
	all := a.readiness.networks.Configurations()
	for _, network := range slices.Sorted(maps.Keys(all)) {
		k.Things = append(k.Things, a.readiness.thing("CNI configuration of network "+network, all[network].Name))
	}
	for _, socket := range sockets {
		path := socket.Addr().String()
		k.Things = append(k.Things, keep.Thing{Name: "socket " + path, Path: path, Restore: func() (string, error) {
			renewed, err := socket.Renew()
			if !renewed {
				return "", err
			}
			return path, err
		}})
	}
	return k
}

// thing is the runtime's configuration of one network. It is restored while it is the node's.
func (r *readiness) thing(what, file string) keep.Thing {
	return keep.Thing{Name: what, Path: filepath.Join(r.conf.Dir, file), Restore: func() (string, error) { return r.restore(file) }}
}

// reportKept reports what another program changed and the keeper restored, or could not restore.
func (a *agent) reportKept(thing keep.Thing, put string, err error) {
	if err != nil {
		a.opts.Log.Error("part of the node was changed and cannot be restored, trying again", "part", thing.Name, "error", err)
		a.events.Node(events.ReasonDrift, "FailToRestore", thing.Name, thing.Name+": changed by another program, and it cannot be put back: "+err.Error())
		return
	}
	a.opts.Log.Warn("part of the node was changed by another program, restored", "part", thing.Name, "what", put)
	a.events.Node(events.ReasonDrift, "Restore", thing.Name, thing.Name+": changed or removed by another program; put back: "+put)
}

// keepNode runs the keeper until ctx ends. The kernel reports changes of forwarding; changes of files are reported by inotify.
func keepNode(ctx context.Context, k *keep.Keeper) error {
	wake := make(chan struct{}, 1)
	forwarding, err := notify.WatchForwarding(ctx, func() { steps.Wake(wake) })
	if err != nil {
		return err
	}
	err = k.Run(ctx, wake)
	<-forwarding
	return err
}

// setSysctls sets what the whole node needs, and returns the names of the settings that it changed.
func setSysctls() (put string, err error) { return sysctl.Set(overlayCare().Sysctls) }
