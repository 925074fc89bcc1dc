package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Del detaches a pod's interface: it closes the port and answers; the reaper takes away the rest, in batches. It
// succeeds when there is nothing. It implements cni.Handler.
func (n *Network) Del(ctx context.Context, req *cni.Request) error {
	return n.detach(ctx, attach.Key{ContainerID: req.ContainerID, IfName: req.IfName})
}

// closeTimeout bounds how long a DEL waits for the switch to close the port, so that a switch that hangs does not keep the
// runtime from taking its pods down. (A second DEL waits for the reaper, which may be waiting for that switch.)
const closeTimeout = 3 * time.Second

func (n *Network) detach(ctx context.Context, key attach.Key) error {
	unlock, err := n.locks.Lock(ctx, key)
	if err != nil {
		return cni.Errorf(cni.CodeTryAgainLater, "attachment %s: another request for it is in progress: %w", key, err)
	}
	defer n.reaper.wakeUp() // once the lock is free
	defer unlock()
	rec, err := n.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) {
		if err := n.store.RemoveBroken(key); err != nil {
			return cni.Errorf(cni.CodeIO, "attachment %s: %w", key, err)
		}
		return nil
	}
	if err != nil {
		return cni.Errorf(cni.CodeIO, "%w", err)
	}
	ports := n.withdrawHostPorts(rec) // before the record says so: then the next pod may have them
	if rec.State != attach.Closing {
		rec.State = attach.Closing
		if err := n.put(ctx, &rec); err != nil {
			return n.detachNow(ctx, key, err)
		}
	}
	n.shut(key)
	n.withdrawHostPorts(rec) // again: a start that took the record over meanwhile has handed them over
	n.reaper.add(key)
	began := n.links.add(&rec)
	// The next router may have its address once this is answered. A macvlan in a namespace that cannot be entered stays: the runtime asks again.
	left := n.removeMacvlans(ctx, []attach.Record{rec})
	if left != nil {
		left = cni.Errorf(cni.CodeIO, "attachment %s: its second interface is left in the node's network: %w", key, left)
	}
	closed := map[reconcile.Owner]map[openflow.Key]openflow.Entry{owner(key): nil}
	if n.settings.Load() == nil {
		n.engines.Flows.Set(closed) // before the engines run there is nothing to wait for
		return left
	}
	waiting, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	flowCtx, done := startCommit(waiting, stepFlows)
	err = n.engines.Flows.Apply(flowCtx, closed)
	done(err)
	if len(ports) > 0 {
		err = errors.Join(err, n.engines.Rules.Apply(waiting, ports))
	}
	if err != nil {
		// The fragment is withdrawn for good: the port closes as soon as the switch can be reached. Its address stays
		// taken until then.
		n.opts.Log.Warn("closing a port, going on in the background", "attachment", key.String(), "error", err)
	}
	select {
	case <-began: // the runtime takes the pod's namespace down as soon as it has its answer
	case <-ctx.Done():
	}
	return left
}

// detachNow detaches what cannot be marked as closing, which is why, before it answers: on a full disk no record can be
// written, and still be removed. Without the mark there is no answer before the end: an agent that ended in between would
// open the port again.
func (n *Network) detachNow(ctx context.Context, key attach.Key, why error) error {
	if n.settings.Load() == nil {
		return cni.Errorf(cni.CodeIO, "%w", why)
	}
	if err := n.remove(ctx, []attach.Key{key}); err != nil {
		return cni.Errorf(cni.CodeIO, "%w; %w", why, err)
	}
	n.reaper.forget(key)
	return nil
}

// GC detaches what the runtime does not know any more. It implements cni.Handler.
func (n *Network) GC(ctx context.Context, req *cni.Request) error {
	valid := map[attach.Key]bool{}
	for _, a := range req.NetConf.ValidAttachments {
		valid[attach.Key{ContainerID: a.ContainerID, IfName: a.IfName}] = true
	}
	var errs []error
	for _, rec := range n.store.List() {
		if rec.Network == NetworkName && !valid[rec.Key()] {
			errs = append(errs, n.detach(ctx, rec.Key()))
		}
	}
	return errors.Join(errs...)
}

// remove takes away everything of the attachments: flows first, then ports and links, and last the records, which
// free the addresses. The caller holds their locks. It may be repeated; what is gone is no error.
func (n *Network) remove(ctx context.Context, keys []attach.Key) error {
	flows := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	var links []string
	var standing, all []attach.Record
	n.shut(keys...)
	for _, key := range keys {
		flows[owner(key)], rows[owner(key)] = nil, nil
		if name := n.reaper.link(key); name != "" {
			links = append(links, name)
		}
		rec, err := n.store.Get(key)
		all = append(all, rec)
		switch {
		case err != nil || rec.HostInterface == "" || rec.BootID != n.opts.BootID:
		case n.standing.has(rec.OFPort):
			standing = append(standing, rec)
			delete(rows, owner(key))
			n.engines.Rows.Set(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner(key): nil}) // the row stays: there is nothing to wait for
		default:
			links = append(links, rec.HostInterface)
		}
	}
	hostPorts := n.withdrawHostPorts(all...) // they may be another pod's already, whatever becomes of the rest
	if err := errors.Join(n.engines.Flows.Apply(ctx, flows), n.multicastWithdrawn(keys)); err != nil {
		return fmt.Errorf("closing ports: %w", err)
	}
	// Side by side: both wait, the links for the kernel and the ports for the switch, and neither for the other.
	var both errgroup.Group
	both.Go(func() error { return named("removing ports", n.engines.Rows.Apply(ctx, rows)) })
	both.Go(func() error { return named("removing links", n.engines.Pods.Delete(ctx, links...)) })
	both.Go(func() error { return named("removing interfaces", n.unplugAll(ctx, standing)) })
	both.Go(func() error { return named("removing macvlans", n.removeMacvlans(ctx, all)) })
	both.Go(func() error { return named("removing host ports", n.removeHostPorts(ctx, all, hostPorts)) })
	if err := both.Wait(); err != nil {
		return err
	}
	n.links.forget(links)
	for _, key := range keys {
		err := n.store.Delete(ctx, key)
		if _, have := n.store.Get(key); errors.Is(have, attach.ErrNotFound) { // even if something beside it is left
			if i := slices.IndexFunc(standing, func(rec attach.Record) bool { return rec.Key() == key }); i >= 0 {
				n.standing.give(standing[i].OFPort)
			}
		}
		if err != nil && !errors.Is(err, attach.ErrNotFound) {
			return err
		}
	}
	return nil
}

// unplugAll removes pods' interfaces from standing ports.
func (n *Network) unplugAll(ctx context.Context, recs []attach.Record) error {
	errs := make([]error, len(recs))
	var group errgroup.Group
	for i := range recs {
		group.Go(func() error {
			errs[i] = n.unplug(ctx, &recs[i], func() {})
			if n.standing.hopeless(&recs[i], errs[i]) {
				n.opts.Log.Warn("pre-plugged port no longer usable, removing it", "port", recs[i].HostInterface, "error", errs[i])
				errs[i] = nil
			}
			return nil
		})
	}
	return errors.Join(group.Wait(), errors.Join(errs...))
}

// unplug removes a pod's interface from a standing port, unless that is done; one that is doing so is waited for. began is as
// that of link.PodLinks.
func (n *Network) unplug(ctx context.Context, rec *attach.Record, began func()) error {
	defer began()
	unlock, err := n.standing.unplugging.Lock(ctx, rec.OFPort)
	if err != nil {
		return err
	}
	defer unlock()
	if n.standing.isClean(rec.OFPort) {
		return nil
	}
	pair, err := n.pair(rec, &plan.Settings{})
	if err != nil {
		return err
	}
	if err := n.engines.Pods.Unplug(ctx, pair, began); err != nil {
		return err
	}
	n.standing.clean(rec.OFPort)
	return nil
}

// Delays between the reaper's tries.
const (
	firstReapRetry = 100 * time.Millisecond
	lastReapRetry  = 5 * time.Second
)

// reaper removes attachments in the background: all that wait together, since links and ports are cheaper by the
// dozen.
type reaper struct {
	network *Network
	wake    chan struct{}

	mu sync.Mutex
	// waiting are the attachments to be removed, with the name of a link where no record has it.
	waiting map[attach.Key]string
}

func newReaper(n *Network) *reaper {
	return &reaper{network: n, wake: make(chan struct{}, 1), waiting: map[attach.Key]string{}}
}

// add hands an attachment over: it is removed, whatever its record says, unless forget comes first. It does not wait,
// and may be called with the attachment's lock held; wakeUp then follows when the lock is free.
func (r *reaper) add(key attach.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, waits := r.waiting[key]; !waits { // addLink may have told of its link
		r.waiting[key] = ""
	}
}

// addLink is add for a link that no record has.
func (r *reaper) addLink(key attach.Key, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[key] = name
}

// forget takes attachments back, as they are removed, or are not to be any more. The caller holds their locks.
func (r *reaper) forget(keys ...attach.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		delete(r.waiting, key)
	}
}

// wakeUp makes the reaper look at what waits.
func (r *reaper) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// link returns the name of a link that addLink told of, else "".
func (r *reaper) link(key attach.Key) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting[key]
}

func (r *reaper) keys() []attach.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.waiting))
}

func (r *reaper) waits(key attach.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.waiting[key]
	return ok
}

// run reaps until ctx ends. It begins when the engines run: what it holds meanwhile would be held for nothing.
func (r *reaper) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.network.running:
	}
	delay := firstReapRetry
	for ctx.Err() == nil {
		left := r.reap(ctx)
		if !left {
			delay = firstReapRetry
		}
		if r.sleep(ctx, left, delay) {
			delay = min(2*delay, lastReapRetry)
		}
	}
	return nil
}

// sleep waits for work, or, if a retry is due, at most for the delay; it reports whether that is over. The delay does not
// grow with the work that comes meanwhile.
func (r *reaper) sleep(ctx context.Context, retry bool, delay time.Duration) (over bool) {
	var timeout <-chan time.Time
	if retry {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-timeout:
		return true
	}
	return false
}

// reap removes what waits and is not in use by a request, and reports whether something is left.
func (r *reaper) reap(ctx context.Context) (left bool) {
	n := r.network
	now, cancel := context.WithCancel(ctx)
	cancel() // a lock that is not free is not waited for: the others' would be held as long
	var held []attach.Key
	for _, key := range r.keys() {
		unlock, err := n.locks.Lock(now, key)
		if err != nil {
			left = true
			continue
		}
		defer unlock()
		if r.waits(key) { // an ADD of the same attachment may have been faster
			held = append(held, key)
		}
	}
	if len(held) == 0 {
		return left
	}
	err := n.remove(ctx, held)
	if err == nil {
		r.forget(held...)
		return left
	}
	if errors.Is(err, reconcile.ErrUnavailable) || ctx.Err() != nil {
		r.tell(ctx, held[0], err)
		return true
	}
	// One that cannot be removed does not keep the others.
	for _, key := range held {
		if err := n.remove(ctx, []attach.Key{key}); err != nil {
			r.tell(ctx, key, err)
			left = true
			continue
		}
		r.forget(key)
	}
	return left
}

func (r *reaper) tell(ctx context.Context, key attach.Key, err error) {
	if ctx.Err() == nil {
		r.network.opts.Log.Warn("removing a detached interface failed, trying again", "attachment", key.String(), "error", err)
	}
}
