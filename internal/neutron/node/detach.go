package node

import (
	"context"
	"errors"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/neutron/ports"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Close implements network.Network: it closes the pod's port. If the switch cannot, it deletes the pod's link.
func (n *Network) Close(ctx context.Context, rec attach.Record) error {
	owner := ownerOf(&rec)
	n.compiler.close(&rec)
	n.node.Links.Set(map[reconcile.Owner]map[link.Key]link.Item{owner: nil})
	withdrawn := n.publisher.Withdraw(rec)
	if n.Ready() == nil && errors.Join(n.flows().Loop.Apply(ctx, fragments{owner: nil}), n.publisher.Await(ctx, withdrawn)) == nil {
		return nil
	}
	if ports.OnPair(&rec) && rec.BootID != n.node.BootID {
		return nil // the name is another pair's since this boot
	}
	return n.node.Pods.Delete(context.WithoutCancel(ctx), rec.HostInterface) //nolint:wrapcheck // the caller names the attachment
}

// Remove implements network.Network. An attachment on a pre-plugged pair is removed once its port is unplugged: until then its record keeps
// the next pod off the port, also if the agent ends in between.
func (n *Network) Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error {
	var veths []string
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	links := map[reconcile.Owner]map[link.Key]link.Item{}
	flows := fragments{}
	n.compiler.withdraw(recs)
	for i := range recs {
		owner := ownerOf(&recs[i])
		links[owner], flows[owner] = nil, nil
		if !ports.OnPair(&recs[i]) {
			veths, rows[owner] = append(veths, recs[i].HostInterface), nil
		}
	}
	err := errors.Join(n.flows().Loop.Apply(ctx, flows), n.node.Links.Apply(ctx, links))
	if len(veths) > 0 {
		err = errors.Join(err, n.node.Pods.Delete(ctx, veths...), n.vswitch.Rows.Apply(ctx, rows))
	}
	err = errors.Join(err, n.shapes.remove(ctx, recs), n.publisher.Unpublish(ctx, recs))
	if err != nil {
		failed := map[attach.Key]error{}
		for i := range recs {
			failed[recs[i].Key()] = err
		}
		return failed
	}
	n.ports.Release(recs...)
	failed := n.ports.Unplugged(ctx, recs)
	n.compiler.removed(slices.DeleteFunc(slices.Clone(recs), func(rec attach.Record) bool { return failed[rec.Key()] != nil }))
	return failed
}
