package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/neutron/ports"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/timing"
)

// Steps of an ADD, as named in metrics and traces: the pod's interface is created, and its flows are opened.
const (
	stepLink  = "link"
	stepFlows = "flows"
)

// Connect implements network.Network. On a pre-plugged pair it creates the pod's interface, and then opens the flows; a link or a row of the
// switch changes only for a pod with an interface of its own.
func (n *Network) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	pod, d, err := podOf(rec)
	if err != nil {
		return nil, err
	}
	pair, err := n.pair(rec, &d)
	if err != nil {
		return nil, err
	}
	rows, err := n.ports.Hold(rec, &d)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", network.ErrPlanAgain, err)
	}
	n.compiler.reopen(rec.Key())
	created, err := n.enter(ctx, rec, pod, pair)
	if ports.OnPair(rec) && errors.Is(err, podlink.ErrUnusable) {
		if rec.State != attach.Attached && errors.Is(err, link.ErrNoDevice) {
			n.ports.Replace(ctx, rec, &d)
		} else {
			n.ports.Release(*rec)
		}
		return nil, fmt.Errorf("%w: %w", network.ErrPlanAgain, err)
	}
	if err != nil {
		return nil, err
	}
	if rows != nil {
		owner := ownerOf(rec)
		maps.Copy(rows, map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner: host.PodRows(owner, rec.HostInterface, d.Slot)})
		if err := n.vswitch.Rows.Apply(ctx, rows); err != nil {
			return nil, fmt.Errorf("port of %s: %w", rec.Key(), err)
		}
	}
	if err := n.serve(ctx, rec, &d); err != nil {
		return nil, fmt.Errorf("attachment %s: %w", rec.Key(), err)
	}
	return result(rec, &d, pair.PodRoutes, created.HostMAC), nil
}

// enter creates the pod's interface, and meanwhile flushes the pod's conntrack zone: a connection of the former pod in it would become this
// one's.
func (n *Network) enter(ctx context.Context, rec *attach.Record, pod *pipeline.Pod, pair podlink.Pair) (podlink.Created, error) {
	var flush errgroup.Group
	if rec.State != attach.Attached {
		flush.Go(func() error {
			if err := n.flows().Engine.FlushCT(ctx, openflow.CTFlush{Zone: &pod.Zone}); err != nil {
				return fmt.Errorf("conntrack zone %d of %s: %w", pod.Zone, rec.Key(), err)
			}
			return nil
		})
	}
	linkCtx, linked := timing.Start(ctx, stepLink)
	created, err := n.shapes.create(linkCtx, pair)
	linked(err)
	if err != nil {
		err = fmt.Errorf("interface of %s: %w", rec.Key(), err)
	}
	return created, errors.Join(err, flush.Wait())
}

// serve opens the pod's flows, and makes the host reach the pod. The record is written as attached before all is in effect: if the agent
// ends in between, the next agent completes the attachment, and the runtime, which got no answer, repeats ADD or sends DEL.
func (n *Network) serve(ctx context.Context, rec *attach.Record, d *ports.Details) error {
	var group errgroup.Group
	group.Go(func() error {
		owner := ownerOf(rec)
		if err := n.node.Links.Apply(ctx, map[reconcile.Owner]map[link.Key]link.Item{owner: host.Routes(rec.Addresses)}); err != nil {
			return fmt.Errorf("route: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		flowCtx, opened := timing.Start(ctx, stepFlows)
		err := n.open(flowCtx, rec, d)
		opened(err)
		return err
	})
	group.Go(func() error { return n.publisher.Publish(ctx, rec) })
	written := *rec
	written.State = attach.Attached
	var err error
	if rec.State != attach.Attached {
		err = n.deps.Records.Put(ctx, written)
	}
	if err := errors.Join(group.Wait(), err); err != nil {
		return err
	}
	rec.State = attach.Attached
	return nil
}

// podOf returns what the flows need of an attachment.
func podOf(rec *attach.Record) (*pipeline.Pod, ports.Details, error) {
	d, err := ports.DetailsOf(rec)
	if err != nil {
		return nil, d, err
	}
	mac, err := net.ParseMAC(rec.MAC)
	if err != nil {
		return nil, d, fmt.Errorf("attachment %s: %w", rec.Key(), err)
	}
	return &pipeline.Pod{
		Owner: ownerOf(rec), OFPort: d.Slot.Pod(), Patch: d.Slot.Patch(), Zone: d.Slot.Zone(), MAC: mac, Addresses: addrs(rec.Addresses),
		Published: publishedPorts(rec),
	}, d, nil
}

// pair returns the pod's interface.
func (n *Network) pair(rec *attach.Record, d *ports.Details) (podlink.Pair, error) {
	pair, err := plan.Pair(rec, &plan.Settings{HostGroup: host.PodGroup, TxOffloadOff: n.vswitch.Datapath == ovsdb.DatapathNetdev})
	if err != nil {
		return podlink.Pair{}, err //nolint:wrapcheck // it names the attachment
	}
	pair.PodRoutes = routesOf(rec, d)
	if rec.Bandwidth.Limited() || ports.OnPair(rec) {
		pair.Preplugged = n.node.Ports
	}
	return pair, nil
}

// routesOf returns the pod's routes: to the host, those of the subnets, and by the gateways.
func routesOf(rec *attach.Record, d *ports.Details) []link.Route {
	var routes []link.Route
	near := func(hop netip.Addr) bool {
		for _, p := range rec.Addresses {
			if p.Contains(hop) {
				return true
			}
		}
		return false
	}
	for _, p := range rec.Addresses {
		if p.Addr().Is4() {
			routes = append(routes, link.Route{Dst: netip.PrefixFrom(pipeline.HostAddress(), 32), Scope: link.ScopeLink})
			if len(rec.HostPorts) > 0 {
				routes = append(routes, link.Route{Dst: netip.PrefixFrom(pipeline.OutsideAddress(), 32), Scope: link.ScopeLink})
			}
			break
		}
	}
	for _, r := range d.Routes {
		routes = append(routes, link.Route{Dst: r.Destination, Gateway: r.NextHop})
	}
	if rec.Secondary {
		return routes
	}
	for _, gateway := range rec.Gateway {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gateway.Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		routes = append(routes, link.Route{Dst: all, Gateway: gateway, OnLink: !near(gateway)})
	}
	return routes
}

// result is the answer to an ADD.
func result(rec *attach.Record, d *ports.Details, routes []link.Route, hostMAC net.HardwareAddr) *types100.Result {
	answer := plan.Result(rec, &plan.Settings{}, hostMAC)
	answer.Routes = nil
	for _, r := range routes {
		route := &types.Route{Dst: net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())}}
		if r.Gateway.IsValid() {
			route.GW = r.Gateway.AsSlice()
		}
		answer.Routes = append(answer.Routes, route)
	}
	answer.DNS.Nameservers = d.DNS
	return answer
}
