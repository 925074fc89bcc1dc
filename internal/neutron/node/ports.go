package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

const (
	// portOwner is the prefix of the owners of plugged ports' rows.
	portOwner = "neutron/port/"
	// firstRetry and lastRetry are the delays before a failed pass is repeated.
	firstRetry, lastRetry = time.Second, 30 * time.Second
	// resend is when a status is written again that the watch has not shown.
	resend = 10 * time.Second
	// gather is how long a pass waits after a pod came or went: changes of patch ports are made together, because ovn-controller computes
	// everything again for each, and none is made in the middle of a burst of pods.
	gather = time.Second
	// maxMessage limits a NeutronPort's status.message, in bytes.
	maxMessage = 1024
)

// errTwice is the problem of a port whose names on the switch another port has.
var errTwice = errors.New("another port of this node has the same first 12 digits: delete this port and create another")

// port is a port of this node.
type port struct {
	uuid string
	// object is the NeutronPort; nil: it was deleted, and the port is kept for its pod.
	object *weftv1.NeutronPort
	spec   spec
	// problem is why the port cannot be plugged; nil if it can.
	problem error
	// unroutable is why the node cannot route the port's address to a pod; nil if it can. Such a port stays plugged, and no pod gets it.
	unroutable error
	slot       host.Slot
	// mac is that of the rows.
	mac net.HardwareAddr
	// pair is the pre-plugged pair; without a Name there is none. making keeps pods off the port while a pair is created for it.
	pair   link.Preplugged
	making bool
	// wanted reports that the port has to be plugged, desired that Open vSwitch's loop has its rows, and plugged that they are in effect.
	wanted, desired, plugged bool
	// wired is what the port is plugged with; zero if that is not known, because a pod of a former agent process is on it.
	wired wiring
	// outdated reports that the port is not plugged as it has to be: its object has changed, or its pair is missing. leaving reports that it
	// is being unplugged. Both stay until the port is unplugged, whatever fails and whatever its object says meanwhile; stuck is what failed.
	outdated, leaving bool
	stuck             error
	// unplugs counts how often the port was unplugged.
	unplugs int
	// holder is the attachment on the port, with its pod; nil if there is none.
	holder *attach.Record
	// used reports that a pod was attached since the port was last plugged: it is unplugged and plugged again, which gives it a new conntrack
	// zone and new flows on br-int.
	used     bool
	released time.Time
	// again reports that the port was plugged before: spec.active may be what Neutron reported then. bound reports that the program that
	// controls br-int has bound the port since it was last plugged.
	again, bound bool
	// sent is the last status written, and sentAt when.
	sent   *weftv1.NeutronPortStatus
	sentAt time.Time
}

func (p *port) owner() reconcile.Owner { return reconcile.Owner(portOwner + p.uuid) }

// rows are the port's rows while it is plugged. Their mark outlives this agent process: a port that a pod has used is plugged again and
// rests, even if no status reports it. With a pre-plugged pair, a pod changes no row: there the attachment's record outlives the process,
// because it is kept until the port is unplugged.
func (p *port) rows() map[ovsdb.Key]ovsdb.Row {
	mark := host.Mark{Used: p.used && !p.paired(), Released: p.released}
	rows := host.PortRows(p.owner(), p.uuid, p.mac, host.Left{Slot: p.slot, Mark: mark})
	if p.paired() {
		maps.Copy(rows, host.PodRows(p.owner(), p.pair.Name, p.slot))
	}
	return rows
}

// paired reports whether the port has a pre-plugged pair.
func (p *port) paired() bool { return p.pair.Name != "" }

// wiring is the part of a port's spec that it is plugged with, besides its pair.
type wiring struct{ network, mac string }

// settled reports whether the port is plugged as its object says, and nothing is about to change that.
func (p *port) settled() bool {
	return p.wanted && p.plugged && !p.used && !p.making && !p.outdated && !p.leaving
}

// ports keep the node's NeutronPorts plugged, assign them to attachments, and report them.
type ports struct {
	node    string
	rest    time.Duration
	rows    *node.RowLoop
	objects client.Reader
	api     client.Client
	log     *slog.Logger
	// wake requests a pass now, and later one that gathers what follows.
	wake, later chan struct{}
	pairs       pairs
	// unseen reports that a pair may be missing: the next pass looks.
	unseen atomic.Bool
	// describe reports the node. It is called by each pass.
	describe func(ctx context.Context) error
	// elsewhere returns why the node cannot route an address to a pod: "" if it can.
	elsewhere func(addr netip.Addr) (string, error)
	// awaitBound waits until at least one of the ports of br-int is bound, and returns the bound ones.
	awaitBound func(ctx context.Context, names []string) ([]string, error)

	mu  sync.Mutex
	all map[string]*port
	// slots has the port of each slot.
	slots map[host.Slot]string
	// former is what a former agent process left, by the digits of the port.
	former map[string]host.Left
	// changed is closed and replaced when a port may have become free.
	changed chan struct{}
	// replugged is called when there are other ports to wait for until they are bound.
	replugged func()
}

func newPorts(name string, rest time.Duration, rows *node.RowLoop, objects client.Reader, api client.Client) *ports {
	return &ports{
		node: name, rest: rest, rows: rows, objects: objects, api: api, wake: make(chan struct{}, 1), later: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
		describe: func(context.Context) error { return nil }, elsewhere: func(netip.Addr) (string, error) { return "", nil },
		all: map[string]*port{}, slots: map[host.Slot]string{}, former: map[string]host.Left{}, changed: make(chan struct{}), replugged: func() {},
	}
}

func (ps *ports) wakeUp() {
	select {
	case ps.wake <- struct{}{}:
	default:
	}
}

// wakeLater requests a pass at the latest after the time gather.
func (ps *ports) wakeLater() {
	select {
	case ps.later <- struct{}{}:
	default:
	}
}

// recover reads what a former agent process left: the slots of plugged ports, and the ports of attached pods.
func (ps *ports) recover(rows map[ovsdb.Key]ovsdb.Row, attached []attach.Record) error {
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
func (ps *ports) restore(rec *attach.Record) error {
	d, err := detailsOf(rec)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(rec.MAC)
	if err != nil {
		return fmt.Errorf("attachment %s: %w", rec.Key(), err)
	}
	if owner, taken := ps.slots[d.Slot]; taken {
		return fmt.Errorf("attachment %s: slot %d of its port %s is that of port %s", rec.Key(), d.Slot, d.Port, owner)
	}
	digits := host.Digits(d.Port)
	p := &port{uuid: d.Port, slot: d.Slot, mac: mac, wanted: true, desired: true, holder: rec, used: true, released: ps.former[digits].Mark.Released}
	delete(ps.former, digits)
	if rec.HostInterface == d.Slot.Preplugged() {
		p.pair = ps.pairs.of(d.Slot, rec.MTU)
		delete(ps.pairs.left, d.Slot)
	}
	ps.all[p.uuid], ps.slots[p.slot] = p, p.uuid
	ps.rows.Set(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{p.owner(): p.rows()})
	return nil
}

// run keeps ports in step with the objects until ctx ends.
func (ps *ports) run(ctx context.Context) {
	delay := firstRetry
	for {
		err := ps.pass(ctx)
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

// due waits until a pass is due, and reports false if ctx has ended.
func (ps *ports) due(ctx context.Context, retry <-chan time.Time) bool {
	var gathered <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ps.later:
			if gathered == nil {
				gathered = time.After(gather)
			}
		case <-ps.wake:
			return true
		case <-gathered:
			return true
		case <-retry:
			return true
		}
	}
}

// pass compares all ports with their objects once: rows first, then reports.
func (ps *ports) pass(ctx context.Context) error {
	if err := ps.read(ctx); err != nil {
		return err
	}
	return errors.Join(ps.describe(ctx), ps.look(ctx), ps.unplug(ctx), ps.sweep(ctx), ps.plug(ctx), ps.report(ctx))
}

// read reads the objects, and decides which ports have to be plugged.
func (ps *ports) read(ctx context.Context) error {
	var list weftv1.NeutronPortList
	if err := ps.objects.List(ctx, &list); err != nil {
		return fmt.Errorf("list NeutronPorts: %w", err)
	}
	unroutable := map[string]error{}
	for i := range list.Items {
		if s, err := parse(&list.Items[i]); err == nil && list.Items[i].Spec.Node == ps.node {
			unroutable[list.Items[i].Name] = ps.routable(&s)
		}
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	there, digits := map[string]bool{}, map[string]bool{}
	for i := range list.Items {
		object := &list.Items[i]
		if object.Spec.Node != ps.node {
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

func (ps *ports) take(object *weftv1.NeutronPort) {
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
	p.spec, p.problem = parse(object)
	if p.problem == nil && !p.slot.Valid() {
		p.slot, p.problem = ps.assign(p.uuid)
		ps.adopt(p)
	}
	p.outdated = p.outdated || p.problem == nil && p.holder == nil && (p.wired != (wiring{}) && p.wired != p.spec.wiring || ps.pairs.outdated(p))
	p.wanted = p.holder != nil || p.problem == nil && object.DeletionTimestamp.IsZero()
}

// routable returns why the node cannot route a port's addresses to a pod. A route to it would divert what the node sends to others.
func (ps *ports) routable(s *spec) error {
	for _, p := range s.addresses {
		if !p.Addr().Is4() {
			continue // only IPv4 is routed
		}
		where, err := ps.elsewhere(p.Addr())
		if err != nil {
			return fmt.Errorf("spec.addresses: %w", err)
		}
		if where != "" {
			return fmt.Errorf("spec.addresses: no pod can have %s on this node: %s", p.Addr(), where)
		}
	}
	return nil
}

// refuse keeps pods off a port whose address the node cannot route to a pod, until a pass finds that it can.
func (ps *ports) refuse(uuid string, why error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.all[uuid]; p != nil {
		p.unroutable = why
	}
	ps.wakeUp()
}

// assign assigns a port a slot: that of a former agent process if it had one.
func (ps *ports) assign(uuid string) (host.Slot, error) {
	digits := host.Digits(uuid)
	for other := range ps.all {
		if other != uuid && host.Digits(other) == digits && ps.all[other].slot.Valid() {
			return -1, errTwice
		}
	}
	left, had := ps.former[digits]
	delete(ps.former, digits)
	if _, taken := ps.slots[left.Slot]; had && !taken {
		ps.slots[left.Slot] = uuid
		return left.Slot, nil
	}
	kept := map[host.Slot]bool{}
	for _, left := range ps.former {
		kept[left.Slot] = true
	}
	for slot := range host.Slot(host.Slots) {
		if _, taken := ps.slots[slot]; !taken && !kept[slot] {
			ps.slots[slot] = uuid
			return slot, nil
		}
	}
	return -1, fmt.Errorf("the node has %d ports already", host.Slots)
}

// unplug removes the rows and the pairs of ports that are not wanted, outdated, or have been used, and deletes those whose object was
// deleted. What fails is repeated by the next pass.
func (ps *ports) unplug(ctx context.Context) error {
	all, gone := ps.leave()
	if len(all) == 0 {
		return nil
	}
	err := ps.rows.Apply(ctx, gone)
	stuck := map[*port]error{}
	for _, p := range all {
		switch failure := ps.rows.Failure(p.owner()); {
		case failure != nil:
			stuck[p] = failure
		case err != nil && (ctx.Err() != nil || errors.Is(err, reconcile.ErrStopped)): // whether the rows were removed is unknown
			stuck[p] = err
		}
	}
	ps.unpair(ctx, all, stuck)
	return ps.left(all, stuck)
}

// leave marks the ports that have to be unplugged, and returns them with their empty fragments. From then on no pod gets them, and they are
// not plugged before they are unplugged.
func (ps *ports) leave() (all []*port, gone map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	gone = map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	for _, p := range ps.all {
		if p.holder == nil && (p.leaving || p.used || p.outdated || !p.wanted && (p.desired || p.paired() || p.object == nil)) {
			p.leaving, p.plugged, p.making = true, false, false
			all = append(all, p)
			gone[p.owner()] = nil
		}
	}
	return all, gone
}

// left notes which ports are unplugged, and what keeps the others from it.
func (ps *ports) left(all []*port, stuck map[*port]error) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var errs []error
	for _, p := range all {
		if p.stuck = stuck[p]; p.stuck != nil {
			errs = append(errs, fmt.Errorf("port %s is still plugged: %w", p.uuid, p.stuck))
			continue
		}
		p.leaving, p.outdated, p.desired, p.wired, p.pair = false, false, false, wiring{}, link.Preplugged{}
		p.again, p.bound = true, false
		p.unplugs++
		if p.used {
			p.used, p.released = false, time.Now().Truncate(time.Second)
		}
		if p.object == nil {
			delete(ps.all, p.uuid)
			delete(ps.slots, p.slot)
		}
	}
	return errors.Join(errs...)
}

// plug writes the rows of ports that are wanted, all in one transaction, with their pre-plugged pairs.
func (ps *ports) plug(ctx context.Context) error {
	unpaired := ps.pair(ctx)
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	var all []*port
	ps.mu.Lock()
	for _, p := range ps.all {
		if p.wanted && !p.leaving && (!p.plugged || p.making) && (p.holder != nil || !p.used) {
			if p.holder == nil {
				p.mac = p.spec.mac
			}
			p.desired = true
			all = append(all, p)
			rows[p.owner()] = p.rows()
		}
	}
	ps.mu.Unlock()
	if len(rows) == 0 {
		return unpaired
	}
	err := errors.Join(ps.rows.Apply(ctx, rows), unpaired)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range all {
		p.making, p.plugged = false, ps.rows.Failure(p.owner()) == nil && ctx.Err() == nil
		if p.plugged && p.holder == nil {
			p.wired = p.spec.wiring
		}
		if !p.plugged && p.paired() {
			ps.unseen.Store(true) // a port without its link is not added to the switch
		}
	}
	ps.replugged()
	ps.wakeWaiting()
	return err
}

// wakeWaiting wakes the callers that wait for a free port. The caller holds mu.
func (ps *ports) wakeWaiting() {
	close(ps.changed)
	ps.changed = make(chan struct{})
}

// report writes the status of ports if it differs.
func (ps *ports) report(ctx context.Context) error {
	type writing struct {
		object *weftv1.NeutronPort
		status weftv1.NeutronPortStatus
	}
	var all []writing
	ps.mu.Lock()
	for _, p := range ps.all {
		if p.object == nil {
			continue
		}
		status := p.status(ps.rows)
		if equalStatus(&status, &p.object.Status) {
			p.sent = nil
			continue
		}
		if p.sent != nil && equalStatus(&status, p.sent) && time.Since(p.sentAt) < resend {
			continue // the watch will show it
		}
		p.sent, p.sentAt = &status, time.Now()
		all = append(all, writing{p.object, status})
	}
	ps.wakeWaiting()
	ps.mu.Unlock()
	var errs []error
	for _, w := range all {
		if err := ps.write(ctx, w.object, &w.status); err != nil {
			errs = append(errs, err)
			ps.mu.Lock()
			if p := ps.all[w.object.Name]; p != nil {
				p.sent = nil
			}
			ps.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// write replaces the status. Only the agent writes these fields, so that no version is compared.
func (ps *ports) write(ctx context.Context, object *weftv1.NeutronPort, status *weftv1.NeutronPortStatus) error {
	fields := map[string]any{"plugged": nil, "pod": nil, "releasedAt": nil, "message": nil}
	if status.Plugged {
		fields["plugged"] = true
	}
	if status.Pod != nil {
		fields["pod"] = map[string]any{"namespace": status.Pod.Namespace, "name": status.Pod.Name, "uid": status.Pod.UID}
	}
	if status.ReleasedAt != nil {
		fields["releasedAt"] = status.ReleasedAt
	}
	if status.Message != "" {
		fields["message"] = status.Message
	}
	data, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		return fmt.Errorf("status of NeutronPort %s: %w", object.Name, err)
	}
	target := &weftv1.NeutronPort{ObjectMeta: metav1.ObjectMeta{Name: object.Name}}
	err = ps.api.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, data))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of NeutronPort %s: %w", object.Name, err)
	}
	return nil
}

// status returns the port's status.
func (p *port) status(rows *node.RowLoop) weftv1.NeutronPortStatus {
	s := weftv1.NeutronPortStatus{Plugged: p.plugged || p.holder != nil || p.used || p.leaving}
	problem := cmp.Or(p.problem, p.unroutable, p.stuck)
	if problem == nil && p.wanted {
		problem = rows.Failure(p.owner())
	}
	if problem != nil {
		s.Message = problem.Error()[:min(len(problem.Error()), maxMessage)]
	}
	if p.holder != nil {
		s.Pod = &weftv1.NeutronPortPod{Namespace: p.holder.PodNamespace, Name: p.holder.PodName, UID: p.holder.PodUID}
	} else if !p.released.IsZero() {
		at := metav1.NewTime(p.released.Truncate(time.Second))
		s.ReleasedAt = &at
	}
	return s
}

func equalStatus(a, b *weftv1.NeutronPortStatus) bool {
	samePod := (a.Pod == nil) == (b.Pod == nil) && (a.Pod == nil || *a.Pod == *b.Pod)
	sameTime := (a.ReleasedAt == nil) == (b.ReleasedAt == nil) && (a.ReleasedAt == nil || a.ReleasedAt.Equal(b.ReleasedAt))
	return a.Plugged == b.Plugged && samePod && sameTime && a.Message == b.Message
}
