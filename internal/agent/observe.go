package agent

import (
	"context"
	"net/http"
	"strconv"

	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/pipeline/layout"
)

// serveHealth answers probes and scrapes until ctx ends.
func (a *agent) serveHealth(ctx context.Context) error {
	return health.Serve(ctx, a.opts.HealthAddress, a.health.Handler())
}

// serveMetrics answers only scrapes, at a separate address, until ctx ends.
func (a *agent) serveMetrics(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metrics.Handler())
	return health.Serve(ctx, a.opts.MetricsAddress, mux)
}

// watch adds the network and its engines to the health checks and the metrics.
func (a *agent) watch(network *overlay.Network, e *engines.Engines) {
	if len(a.opts.Networks) == 0 {
		a.watchNode(e, network.Ready)
	}
	a.metrics.Watch(func() metrics.State {
		used, all := network.Addresses()
		own := metrics.Network{
			Ready: network.Ready() == nil, AddressesInUse: used, Addresses: all, Flows: e.Switch.Flows().Programmed(tableOf), Attachments: noAttachments(),
		}
		state := metrics.State{Engines: e.States(), Networks: map[string]metrics.Network{overlay.NetworkName: own}}
		for _, record := range a.store.List() {
			kind := nameOf(&record)
			if _, known := state.Networks[kind]; !known {
				state.Networks[kind] = metrics.Network{Attachments: noAttachments()}
			}
			state.Networks[kind].Attachments[string(record.State)]++
		}
		return state
	})
}

// watchNode adds the node's engines to the health checks, and the network to which ready belongs.
func (a *agent) watchNode(e *engines.Engines, ready func() error) {
	a.health.Add(
		health.Check{Name: "network", Run: ready},
		health.Check{Name: "engines", Run: e.Failures},
		health.Check{Name: "node", Run: a.kept},
	)
	a.health.Warn(
		health.Check{Name: "host-firewall", Run: e.Kernel.Firewall.State},
		health.Check{Name: "api-server", Run: a.kube.state},
	)
}

// noAttachments returns a count of zero for each state.
func noAttachments() map[string]int {
	return map[string]int{string(attach.Planned): 0, string(attach.Attached): 0, string(attach.Closing): 0}
}

// tableOf returns the name of a flow's table; for groups, "groups".
func tableOf(key openflow.Key) string {
	if key.Group != 0 {
		return "groups"
	}
	if name := layout.TableName(key.Table); name != "" {
		return name
	}
	return strconv.Itoa(int(key.Table))
}
