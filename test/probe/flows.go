package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/session"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/lab"
)

// FlowWatch sees every change of a bridge's flows, by a flow monitor of its own.
type FlowWatch struct {
	conn *session.Conn
	// ignored reports flows of which changes do not count.
	ignored func(*openflow.Flow) bool

	mu      sync.Mutex
	removed []*openflow.Flow
	changed []*openflow.Flow
	added   int
	groups  int
	paused  bool
}

// WatchFlows watches the flows of a node's br0 until it is closed, without the agent's note and those that the switch learns.
func WatchFlows(ctx context.Context, n lab.Node) (*FlowWatch, error) {
	return watch(ctx, n, "br0", func(f *openflow.Flow) bool { return pipeline.IsNote(f.Key()) || f.IdleTimeout > 0 })
}

// WatchBridge watches the flows and groups of a node's bridge until it is closed. It counts each change that another connection requests, also
// one after which the flow or group is what it was before.
func WatchBridge(ctx context.Context, n lab.Node, bridge string) (*FlowWatch, error) {
	w, err := watch(ctx, n, bridge, func(*openflow.Flow) bool { return false })
	if err != nil {
		return nil, err
	}
	if err := w.conn.MonitorRest(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("watching the groups of %s: %w", n.Name, err), w.Close())
	}
	return w, nil
}

func watch(ctx context.Context, n lab.Node, bridge string, ignored func(*openflow.Flow) bool) (*FlowWatch, error) {
	w := &FlowWatch{ignored: ignored}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	conn, err := session.Dial(ctx, n.Root("/run/openvswitch/"+bridge+".mgmt"), session.Options{OnAsync: w.note})
	if err != nil {
		return nil, fmt.Errorf("watching the flows of %s: %w", n.Name, err)
	}
	if err := conn.Monitor(ctx, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("watching the flows of %s: %w", n.Name, err), conn.Close())
	}
	w.conn = conn
	return w, nil
}

// Close ends the watch.
func (w *FlowWatch) Close() error { return w.conn.Close() }

func (w *FlowWatch) note(message any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, changed := message.(*openflow.GroupsChanged); changed {
		w.groups++
	}
	updates, _ := message.([]openflow.FlowUpdate)
	for _, u := range updates {
		switch {
		case u.Event == openflow.MonitorPaused || u.Event == openflow.MonitorUnclear:
			w.paused = true
		case u.Flow == nil || w.ignored(u.Flow):
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
	wanted := make([]uint64, 0, len(pods))
	for _, p := range pods {
		key := attach.Key{ContainerID: p.Sandbox.ID, IfName: "eth0"}
		wanted = append(wanted, cookies.Of(reconcile.Owner(key.Owner())))
	}
	return wanted
}

// Check returns an error unless nothing was removed but flows of the pods that were deleted. A barrier before it makes
// sure that everything has been reported.
func (w *FlowWatch) Check(ctx context.Context, deleted []*lab.Pod) error {
	if err := w.conn.Barrier(ctx); err != nil {
		return fmt.Errorf("the flow monitor: %w", err)
	}
	own := ownedBy(deleted)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused {
		return errors.New("the flow monitor was paused: it may have missed changes")
	}
	for _, flow := range w.removed {
		if !slices.Contains(own, flow.Cookie) {
			return fmt.Errorf("removed flow that is no deleted pod's: %s", flow)
		}
	}
	return nil
}

// Counts returns how many flows were added, changed and removed, without those that the switch learns by itself.
func (w *FlowWatch) Counts() (added, changed, removed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.added, len(w.changed), len(w.removed)
}

// String says what was seen, in words.
func (w *FlowWatch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%d flows added, %d changed, %d removed", w.added, len(w.changed), len(w.removed))
}

// Count is how many flows were added, changed or removed so far, and with WatchBridge groups too. A barrier before it makes sure that
// everything has been reported.
func (w *FlowWatch) Count(ctx context.Context) (int, error) {
	if err := w.conn.Barrier(ctx); err != nil {
		return 0, fmt.Errorf("the flow monitor: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused {
		return 0, errors.New("the flow monitor was paused: it may have missed changes")
	}
	return w.added + len(w.changed) + len(w.removed) + w.groups, nil
}

// Groups returns the number of groups of a node's bridge.
func Groups(ctx context.Context, n lab.Node, bridge string) (int, error) {
	out, err := Run(ctx, n.Enter("ovs-ofctl", "-O", "OpenFlow15", "dump-groups", bridge))
	return strings.Count(out, "group_id="), err
}
