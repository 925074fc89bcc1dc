//go:build real

package node

import (
	"context"
	"errors"
	"testing"
	"time"

	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/podveth"
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
	pods, err := podveth.New()
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Close()
	links := reconcile.NewLoop(marked.NewFake(), reconcile.Options[link.Key, link.Item]{})
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

// attachments are records of attachments.
type attachments struct {
	network.Records
	recs []attach.Record
}

func (a *attachments) Attached() []attach.Record { return a.recs }

// noObjects is an API server without objects.
type noObjects struct{ ctrlcache.Cache }

func (noObjects) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// Gateways whose programming does not end delay no other: a step programs the others, also those whose objects change later. When the
// programming ends, what has changed meanwhile is programmed.
func TestStuckGatewayDelaysNoOther(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pods, err := podveth.New()
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Close()
	recs := &attachments{}
	record := func(name string) *attach.Record {
		recs.recs = append(recs.recs, attach.Record{
			ContainerID: name, IfName: "eth0", Netns: ovntest.NewPod(t).ProcPath(), Details: []byte(`{"gateway":"` + name + `"}`),
		})
		return &recs.recs[len(recs.recs)-1]
	}
	links := reconcile.NewLoop(marked.NewFake(), reconcile.Options[link.Key, link.Item]{})
	g := newGateways(&node.Node{Pods: pods, Links: links}, network.Deps{Records: recs, Objects: noObjects{}})
	g.watching = true
	defer g.closeAll()
	defer g.following.Wait()
	defer cancel()
	var stuck []*natGateway
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		made, err := g.get(ctx, record(name), false)
		if err != nil {
			t.Fatal(err)
		}
		if err := made.lock(ctx); err != nil {
			t.Fatal(err)
		}
		stuck = append(stuck, made)
	}
	programmed := func(rec *attach.Record) bool { // without objects, the table is read to find what to withdraw
		made, err := g.get(ctx, rec, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := made.lock(ctx); err != nil {
			t.Fatal(err)
		}
		defer made.unlock()
		return made.items != nil
	}
	for _, name := range []string{"f", "g"} {
		rec := record(name)
		if err := g.step(ctx); err != nil && !errors.Is(err, errSlow) || ctx.Err() != nil {
			t.Fatalf("step with gateway %s: %v", name, err)
		}
		ovntest.Eventually(t, "gateway "+name+", which waits for no other", func() bool { return programmed(rec) })
	}
	for _, one := range stuck {
		one.unlock()
	}
	g.following.Wait()
	select {
	case <-g.wake:
	default:
		t.Error("gateways that a step omitted are not programmed again")
	}
	ovntest.Eventually(t, "all gateways, when all can be programmed", func() bool {
		err := g.step(ctx)
		g.following.Wait()
		return err == nil && len(g.busy) == 0 && programmed(&recs.recs[0])
	})
}
