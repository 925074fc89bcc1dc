package overlay

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Close closes the pod's port, and begins to remove its link. It implements network.Network.
func (a *attachments) Close(ctx context.Context, rec attach.Record) error {
	key := rec.Key()
	a.pods.shut(key)
	ports := a.hostPorts.Withdraw(rec)
	began := a.ports.Unlinker.Add(&rec)
	// Once the DEL is answered, the next egress router may have the same address. If the pod's namespace cannot be entered, the macvlan stays,
	// and the runtime repeats the DEL.
	left := a.routers.Remove(ctx, rec)
	if left != nil {
		left = cni.Errorf(cni.CodeIO, "attachment %s: its second interface is left in the node's network: %w", key, left)
	}
	closed := map[reconcile.Owner]map[openflow.Key]openflow.Entry{owner(key): nil}
	if a.pods.settings.Load() == nil {
		a.engines.Flows.Set(closed) // before the engines run there is nothing to wait for
		return left
	}
	flowCtx, done := startCommit(ctx, stepFlows)
	err := a.engines.Flows.Apply(flowCtx, closed)
	done(err)
	err = errors.Join(err, a.hostPorts.Await(ctx, ports))
	select {
	case <-began: // the runtime deletes the pod's namespace as soon as it has its answer
	case <-ctx.Done():
	}
	// The fragment stays withdrawn after an error: the port closes as soon as the switch can be reached. Until then its address stays taken.
	return errors.Join(left, err)
}

// Remove removes everything of the attachments: together, and one by one if that fails. It implements network.Network.
func (a *attachments) Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error {
	err := a.remove(ctx, recs)
	if err == nil {
		return nil
	}
	together := len(recs) == 1 || errors.Is(err, reconcile.ErrUnavailable) || ctx.Err() != nil
	failed := map[attach.Key]error{}
	for _, rec := range recs {
		if !together {
			err = a.remove(ctx, []attach.Record{rec})
		}
		if err != nil {
			failed[rec.Key()] = err
		}
	}
	return failed
}

// remove removes everything of the attachments: flows first, then ports and links. It is idempotent.
func (a *attachments) remove(ctx context.Context, recs []attach.Record) error {
	flows := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	var links []string
	var preplugged []attach.Record
	keys := make([]attach.Key, 0, len(recs))
	for i := range recs {
		keys = append(keys, recs[i].Key())
	}
	a.pods.shut(keys...)
	for i, rec := range recs {
		o := owner(keys[i])
		flows[o], rows[o] = nil, nil
		switch {
		case rec.HostInterface == "" || rec.BootID != a.opts.BootID:
		case a.ports.Preplugged.Has(rec.OFPort):
			preplugged = append(preplugged, rec)
			delete(rows, o)
			a.ports.Preplugged.Vacate(&recs[i])
		default:
			links = append(links, rec.HostInterface)
		}
	}
	a.hostPorts.Withdraw(recs...) // another pod may have them already, even if the rest fails
	failure := func(o reconcile.Owner) error { return named(string(o), a.engines.Flows.Failure(o)) }
	if err := errors.Join(a.engines.Flows.Apply(ctx, flows), a.multicast.Withdrawn(keys, failure)); err != nil {
		return fmt.Errorf("closing ports: %w", err)
	}
	// In parallel: one waits for netlink, the other for the switch.
	var both errgroup.Group
	both.Go(func() error { return named("removing ports", a.engines.Rows.Apply(ctx, rows)) })
	both.Go(func() error { return named("removing links", a.engines.Pods.Delete(ctx, links...)) })
	both.Go(func() error { return named("removing interfaces", a.ports.Preplugged.UnplugAll(ctx, preplugged)) })
	both.Go(func() error { return named("removing macvlans", a.routers.Remove(ctx, recs...)) })
	both.Go(func() error { return named("removing host ports", a.hostPorts.Unpublish(ctx, recs)) })
	if err := both.Wait(); err != nil {
		return err
	}
	a.ports.Unlinker.Forget(links)
	return nil
}
