//go:build real

package node

import (
	"context"
	"errors"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/nat"
)

// noRecords has no attachment.
type noRecords struct{ network.Records }

func (noRecords) Attached() []attach.Record { return nil }

// A step that has listed a gateway before it was removed does not open it again: it would keep the namespace of a deleted pod, and program
// the addresses that the gateway's next pod has.
func TestRemovedGatewayStaysClosed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pods, err := link.NewPods()
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Close()
	links := reconcile.NewLoop(link.NewFake(), reconcile.Options[link.Key, link.Item]{})
	g := newGateways(&node.Node{Pods: pods, Links: links}, network.Deps{Records: noRecords{}})
	defer g.closeAll()
	rec := attach.Record{
		ContainerID: "sandbox", IfName: "eth0", Netns: ovntest.NewPod(t).ProcPath(), Details: []byte(`{"gateway":"gw1"}`),
	}
	if err := g.disconnect(ctx, &rec); err != nil {
		t.Fatal(err)
	}
	g.removed(rec.Key())
	if err := g.follow(ctx, &rec, nat.Compile(&nat.Objects{})); !errors.Is(err, errClosed) {
		t.Errorf("a removed gateway is opened: %v", err)
	}
	if recs := g.attached(); len(recs) > 0 {
		t.Errorf("gateways after the last one was removed: %v", recs)
	}
}
