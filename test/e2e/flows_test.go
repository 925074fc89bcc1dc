//go:build lab

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/lab"
)

// flowWatch sees every change of a node's flows, by a flow monitor of its own.
type flowWatch struct {
	conn *openflow.Conn

	mu      sync.Mutex
	removed []*openflow.Flow
	changed []*openflow.Flow
	added   int
	paused  bool
}

// watchFlows watches a node's flows until the test ends.
func watchFlows(t *testing.T, n lab.Node) *flowWatch {
	t.Helper()
	w := &flowWatch{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := openflow.Dial(ctx, n.Root("/run/openvswitch/br0.mgmt"), openflow.Options{OnAsync: w.note})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.Monitor(ctx, 1); err != nil {
		t.Fatal(err)
	}
	w.conn = conn
	return w
}

func (w *flowWatch) note(message any) {
	updates, ok := message.([]openflow.FlowUpdate)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range updates {
		switch {
		case u.Event == openflow.MonitorPaused:
			w.paused = true
		case u.Flow == nil || pipeline.IsNote(u.Flow.Key()):
		case u.Event == openflow.FlowRemoved:
			w.removed = append(w.removed, u.Flow)
		case u.Event == openflow.FlowModified:
			w.changed = append(w.changed, u.Flow)
		case u.Event == openflow.FlowAdded:
			w.added++
		}
	}
}

// ownedBy are the cookies of pods' flows.
func ownedBy(pods []*lab.Pod) []uint64 {
	cookies := make([]uint64, 0, len(pods))
	for _, p := range pods {
		key := attach.Key{ContainerID: p.Sandbox.ID, IfName: "eth0"}
		cookies = append(cookies, pipeline.Cookie(reconcile.Owner(key.Owner())))
	}
	return cookies
}

// check returns an error unless nothing was removed but flows of the pods that were deleted. A barrier before it makes
// sure that everything has been told.
func (w *flowWatch) check(ctx context.Context, deleted []*lab.Pod) error {
	if err := w.conn.Barrier(ctx); err != nil {
		return fmt.Errorf("the flow monitor: %w", err)
	}
	own := ownedBy(deleted)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused {
		return fmt.Errorf("the flow monitor was paused: it may have missed something")
	}
	for _, flow := range w.removed {
		if !slices.Contains(own, flow.Cookie) {
			return fmt.Errorf("removed, and no deleted pod's: %s", flow)
		}
	}
	return nil
}

func (w *flowWatch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%d flows added, %d changed, %d removed", w.added, len(w.changed), len(w.removed))
}
