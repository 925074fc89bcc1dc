package overlay

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/timing"
)

// Steps of a request, as named in metrics and traces.
const (
	// stepRecord writes the record to disk.
	stepRecord = "record"
	// stepLink creates the veth pair, and configures it in the pod.
	stepLink = "link"
	// stepPort adds the port to the switch, and stepFlows its flows; each lasts until the switch confirms. Where a step waits for an engine,
	// its child stepCommit is the engine's commit, which may serve several requests.
	stepPort   = "port"
	stepFlows  = "flows"
	stepCommit = "commit"
	// stepHostPorts programs the node's rules for the pod's host ports, if it has any.
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

// attached returns the record with the state Attached.
func attached(rec attach.Record) attach.Record {
	rec.State = attach.Attached
	return rec
}

// putAttached writes the record of an attached attachment, as a step.
func (a *attachments) putAttached(ctx context.Context, rec *attach.Record) error {
	ctx, end := timing.Start(ctx, stepRecord)
	err := a.opts.Records.Put(ctx, attached(*rec))
	end(err)
	if err != nil {
		return cni.Errorf(cni.CodeIO, "%w", err)
	}
	return nil
}
