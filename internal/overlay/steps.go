package overlay

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/timing"
)

// Steps of a request, as metrics and traces name them.
const (
	// stepRecord writes the record, until it is on disk.
	stepRecord = "record"
	// stepLink makes the veth pair and what is on it in the pod.
	stepLink = "link"
	// stepPort has the port in the switch and stepFlows its flows, each until the switch has said so. Where a step waits for
	// an engine, stepCommit below it is what the engine was busy with it, for all requests that share the commit.
	stepPort   = "port"
	stepFlows  = "flows"
	stepCommit = "commit"
	// stepHostPorts has the node's rules lead host ports to the pod, if it has any.
	stepHostPorts = "hostports"
)

// startCommit begins a step that waits for an engine's commit.
func startCommit(ctx context.Context, step string) (context.Context, func(error)) {
	ctx, done := timing.Start(ctx, step)
	return reconcile.WithReceipt(ctx, func(r reconcile.Receipt) {
		timing.Record(ctx, stepCommit, r.Begin, r.End,
			attribute.Int("weft.set", r.Set), attribute.Int("weft.deleted", r.Deleted), attribute.Int("weft.requests", r.Requests))
	}), done
}

// putAttached writes that an attachment is there, as a step.
func (n *Network) putAttached(ctx context.Context, rec *attach.Record) error {
	ctx, end := timing.Start(ctx, stepRecord)
	err := n.opts.Records.Put(ctx, attached(*rec))
	end(err)
	if err != nil {
		return cni.Errorf(cni.CodeIO, "%w", err)
	}
	return nil
}

// attached returns the record of an attachment that is there.
func attached(rec attach.Record) attach.Record {
	rec.State = attach.Attached
	return rec
}

// Addresses returns how many of the pod addresses of the node's subnet are taken, and how many there are.
func (n *Network) Addresses() (used, all uint64) {
	n.picking.Lock()
	pool := n.pool
	n.picking.Unlock()
	if pool == nil {
		return 0, 0
	}
	return uint64(len(n.store.InUse().Addresses[NetworkName])), pool.Capacity()
}
