// Package ports keeps the Neutron ports of a node plugged ahead of their pods: with their patch ports between br-n and br-int, and with a
// pre-plugged veth pair each. It assigns them to attachments, unplugs those that pods have used, and reports them.
package ports

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

const (
	// ownerPrefix is the prefix of the owners of plugged ports' rows.
	ownerPrefix = "neutron/port/"
	// firstRetry and lastRetry are the delays before a failed pass is repeated.
	firstRetry, lastRetry = time.Second, 30 * time.Second
	// resend is when a status is written again that the watch has not shown.
	resend = 10 * time.Second
	// maxMessage limits a NeutronPort's status.message, in bytes.
	maxMessage = 1024
)

// Options of Ports. Node, Rows, Objects and API are required.
type Options struct {
	// Node is the node's name.
	Node string
	// Rest is how long a port rests between two pods.
	Rest time.Duration
	// Rows is the loop of Open vSwitch's database.
	Rows *node.RowLoop
	// Objects has the NeutronPorts, and API writes their statuses.
	Objects client.Reader
	API     client.Client
	// Log gets what is not returned to a caller. Nil: discarded.
	Log *slog.Logger
	// Links creates the pre-plugged pairs; nil: there are none. Path is that of the namespace with the veth peers: while it does not exist, pods
	// get interfaces of their own. Shape has what is common to all pairs.
	Links Links
	Path  string
	Shape podlink.Preplugged
	// Describe reports the node. It is called by each pass. Nil: not called.
	Describe func(ctx context.Context) error
	// Elsewhere returns why the node cannot route an address to a pod: "" if it can. Nil: it can route all.
	Elsewhere func(addr netip.Addr) (string, error)
	// AwaitBound waits until at least one of the ports of br-int is bound, or the flows of one of the others are installed, and returns all
	// of which this is true.
	AwaitBound func(ctx context.Context, bind, install []string) ([]string, error)
}

// Ports keep the node's NeutronPorts plugged, assign them to attachments, and report them.
type Ports struct {
	alarm

	opts  Options
	pairs pairs
	// unseen reports that a pair may be missing: the next pass looks.
	unseen atomic.Bool

	mu  sync.Mutex
	all map[string]*port
	slots
	// changed is closed and replaced when a port may have become free.
	changed chan struct{}
	// replugged is called when there are other ports to wait for until they are bound.
	replugged func()
}

// New returns the ports of a node. Nothing is read before Start, and nothing changed before Pass or Run.
func New(opts Options) *Ports {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Describe == nil {
		opts.Describe = func(context.Context) error { return nil }
	}
	if opts.Elsewhere == nil {
		opts.Elsewhere = func(netip.Addr) (string, error) { return "", nil }
	}
	return &Ports{
		alarm: newAlarm(), opts: opts, pairs: pairs{links: opts.Links, path: opts.Path, shape: opts.Shape},
		all: map[string]*port{}, slots: newSlots(), changed: make(chan struct{}), replugged: func() {},
	}
}

// Start reads what a former agent process left, and the objects. attached are the attachments whose pods are complete. Call it once, before
// the others.
func (ps *Ports) Start(ctx context.Context, rows map[ovsdb.Key]ovsdb.Row, attached []attach.Record) error {
	if err := ps.pairs.recover(ctx); err != nil {
		return err
	}
	if err := ps.recover(rows, attached); err != nil {
		ps.opts.Log.Error("attachments that cannot be restored", "error", err)
	}
	return ps.read(ctx)
}

// recover reads what a former agent process left: the slots of plugged ports, and the ports of attached pods.
func (ps *Ports) recover(rows map[ovsdb.Key]ovsdb.Row, attached []attach.Record) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, row := range rows {
		if digits, left, ok := host.LeftOf(row); ok {
			ps.former[digits] = left
		}
	}
	var errs []error
	for i := range attached {
		errs = append(errs, ps.restore(&attached[i]))
	}
	return errors.Join(errs...)
}

// restore creates the port of a complete attachment.
func (ps *Ports) restore(rec *attach.Record) error {
	d, err := DetailsOf(rec)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(rec.MAC)
	if err != nil {
		return fmt.Errorf("attachment %s: %w", rec.Key(), err)
	}
	if owner, taken := ps.of[d.Slot]; taken {
		return fmt.Errorf("attachment %s: slot %d of its port %s is that of port %s", rec.Key(), d.Slot, d.Port, owner)
	}
	digits := host.Digits(d.Port)
	p := &port{uuid: d.Port, slot: d.Slot, mac: mac, wanted: true, desired: true, holder: rec, used: true, released: ps.former[digits].Mark.Released}
	delete(ps.former, digits)
	if rec.HostInterface == d.Slot.Preplugged() {
		p.pair = ps.pairs.of(d.Slot, rec.MTU)
		delete(ps.pairs.left, d.Slot)
	}
	ps.all[p.uuid], ps.of[p.slot] = p, p.uuid
	ps.opts.Rows.Set(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{p.owner(): p.rows()})
	return nil
}

// Run keeps ports in step with the objects until ctx ends.
func (ps *Ports) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { (&bindings{ps}).follow(ctx) })
	delay := firstRetry
	for {
		err := ps.Pass(ctx)
		var retry <-chan time.Time
		if err != nil {
			retry = time.After(delay)
			delay = min(2*delay, lastRetry)
		} else {
			delay = firstRetry
		}
		if !ps.due(ctx, retry) {
			return
		}
	}
}

// Pass compares all ports with their objects once: rows first, then reports.
func (ps *Ports) Pass(ctx context.Context) error {
	if err := ps.read(ctx); err != nil {
		return err
	}
	return errors.Join(ps.opts.Describe(ctx), ps.look(ctx), ps.unplug(ctx), ps.pairs.sweep(ctx), ps.plug(ctx), ps.report(ctx))
}

// read reads the objects, and decides which ports have to be plugged.
func (ps *Ports) read(ctx context.Context) error {
	var list weftv1.NeutronPortList
	if err := ps.opts.Objects.List(ctx, &list); err != nil {
		return fmt.Errorf("list NeutronPorts: %w", err)
	}
	unroutable := map[string]error{}
	for i := range list.Items {
		if s, err := Parse(&list.Items[i]); err == nil && list.Items[i].Spec.Node == ps.opts.Node {
			unroutable[list.Items[i].Name] = ps.opts.routable(&s)
		}
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	there, digits := map[string]bool{}, map[string]bool{}
	for i := range list.Items {
		object := &list.Items[i]
		if object.Spec.Node != ps.opts.Node {
			continue
		}
		there[object.Name], digits[host.Digits(object.Name)] = true, true
		ps.take(object)
		ps.all[object.Name].unroutable = unroutable[object.Name]
	}
	for uuid, p := range ps.all {
		if !there[uuid] {
			p.object = nil
			p.wanted = p.holder != nil
		}
	}
	// The slots of ports that were deleted while no agent ran: the first state has no rows of theirs.
	maps.DeleteFunc(ps.former, func(of string, _ host.Left) bool { return !digits[of] })
	return nil
}

func (ps *Ports) take(object *weftv1.NeutronPort) {
	p := ps.all[object.Name]
	if p == nil {
		p = &port{uuid: object.Name, slot: -1}
		// A pod of a former agent process, or a pod that ended before its port was plugged again.
		p.used = object.Status.Pod != nil
		if at := object.Status.ReleasedAt; at != nil {
			p.released = at.Time
		}
		if left, had := ps.former[host.Digits(p.uuid)]; had {
			p.used = p.used || left.Mark.Used
			if p.released.Before(left.Mark.Released) {
				p.released = left.Mark.Released
			}
		}
		p.again = !p.released.IsZero()
		ps.all[p.uuid] = p
	}
	p.object = object
	p.spec, p.problem = Parse(object)
	if p.problem == nil && !p.slot.Valid() {
		p.slot, p.problem = ps.assign(p.uuid)
		ps.pairs.adopt(p)
	}
	p.outdated = p.outdated || p.problem == nil && p.holder == nil && (p.wired != (wiring{}) && p.wired != p.spec.wiring || ps.pairs.outdated(p))
	p.wanted = p.holder != nil || p.problem == nil && object.DeletionTimestamp.IsZero()
}

// wakeWaiting wakes the callers that wait for a free port. The caller holds mu.
func (ps *Ports) wakeWaiting() {
	close(ps.changed)
	ps.changed = make(chan struct{})
}
