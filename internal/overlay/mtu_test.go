package overlay

import (
	"context"
	"testing"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// When the MTU changes, the switch sets it on tun0 from its row. The desired links have the same MTU by then: Weft's own change through the
// switch is neither reported as a change by another program nor undone.
func TestMTUChangeIsNoDrift(t *testing.T) {
	l := start(t)
	changed := make(chan int, 1)
	l.node.rowEngine.refuse(func(change reconcile.Change[ovsdb.Key, ovsdb.Row]) error {
		ctx := context.Background()
		for _, row := range change.Set {
			port, ok := row.(*ovsdb.Port)
			if !ok || port.Name != host.Tun {
				continue
			}
			links, err := l.node.links.Read(ctx)
			if err != nil {
				return err
			}
			for key, item := range links {
				if device, ok := item.(*link.Device); ok && device.Name == host.Tun {
					moved := *device
					moved.MTU = port.MTURequest
					if err := l.node.links.Commit(ctx, reconcile.Change[link.Key, link.Item]{Set: map[link.Key]link.Item{key: &moved}}); err != nil {
						return err
					}
				}
			}
			drift, err := l.engines.Links.Verify(ctx)
			changed <- drift
			return err
		}
		return nil
	})
	view := sample()
	view.Cluster.MTU = 1400
	l.update(t, view)
	select {
	case drift := <-changed:
		if drift > 0 {
			t.Errorf("%d of Weft's own changes of the links were taken for another program's", drift)
		}
	default:
		t.Fatal("the row of tun0 did not change")
	}
}
