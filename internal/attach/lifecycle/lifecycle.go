// Package lifecycle serves the container runtime's requests for all networks of a node: it is the only cni.Handler. ADD is passed to the
// network where placement puts the pod. CHECK, DEL and GC are passed only to the network that the attachment's record names.
//
// It keeps the locks and the records. A record is written before the first side effect of an ADD and removed after the last one of its
// DEL. A repeated ADD gets the same answer. A failed ADD is undone. Detached interfaces are removed in the background, in batches.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/timing"
)

const (
	// undoTimeout is the time limit for undoing a failed ADD. The rest is removed in the background.
	undoTimeout = 10 * time.Second
	// closeTimeout is how long a DEL waits for a network to stop the pod's traffic.
	closeTimeout = 3 * time.Second
)

// Steps of a request, as in metrics and traces.
const (
	stepPlace   = "place"
	stepPlan    = "plan"
	stepRecord  = "record"
	stepConnect = "connect"
)

// Options of a Handler.
type Options struct {
	// BootID identifies this boot of the node (attach.ReadBootID). Required.
	BootID string
	// Place returns the network of an ADD's pod. Required.
	Place func(ctx context.Context, req *cni.Request) (placement.Decision, error)
	// Default returns the name of the default network, empty if there is none. It fails while the name is not known yet. STATUS reports the
	// state of this network. Required.
	Default func() (string, error)
	// Waiting returns what the agent waits for while there is no network. Required.
	Waiting func() string
	// Removed is called after the record of a network's attachment was removed. It must not block. Nil: not called.
	Removed func(network string)
	// Log gets errors that no request returns. Default: discarded.
	Log *slog.Logger
}

// Handler is the only cni.Handler of a node. Serve adds a network; its stop function removes it.
type Handler struct {
	store  *attach.Store
	opts   Options
	locks  attach.Keyed[attach.Key]
	reaper *reaper

	// board has the networks, and closing the attachments whose DEL is running or done.
	board   *switchboard
	closing closing
}

var _ cni.Handler = (*Handler)(nil)

// New returns a handler of the attachments in store. Run must run, because it removes detached interfaces.
func New(store *attach.Store, opts Options) *Handler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Removed == nil {
		opts.Removed = func(string) {}
	}
	h := &Handler{store: store, opts: opts, board: newSwitchboard(opts.Waiting), closing: closing{keys: map[attach.Key]bool{}}}
	h.reaper = newReaper(h)
	return h
}

// Run removes detached interfaces until ctx ends.
func (h *Handler) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	running := map[*served]bool{}
	for {
		for _, s := range h.board.all() {
			if !running[s] {
				running[s] = true
				loops.Go(func() { h.reaper.run(ctx, s) })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-h.board.changed:
		}
	}
}

// Idle reports whether no detached interface waits for its removal.
func (h *Handler) Idle() bool { return len(h.reaper.keys()) == 0 }

// complete reports whether a record's attachment survives a restart.
func (h *Handler) complete(rec *attach.Record) bool {
	return rec.State == attach.Attached && rec.BootID == h.opts.BootID
}

// lock takes the attachment's lock. unlock frees it and then wakes the reaper.
func (h *Handler) lock(ctx context.Context, key attach.Key) (unlock func(), err error) {
	free, err := h.locks.Lock(ctx, key)
	if err != nil {
		return nil, cni.Errorf(cni.CodeTryAgainLater, "attachment %s: another request for it is in progress: %w", key, err)
	}
	return func() {
		free()
		h.reaper.wakeUp()
	}, nil
}

// Add attaches a pod's interface. It implements cni.Handler.
func (h *Handler) Add(ctx context.Context, req *cni.Request) (*types100.Result, error) {
	if err := h.board.any(); err != nil {
		return nil, err
	}
	key := attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	unlock, err := h.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	rec, err := h.store.Get(key)
	if err != nil && !errors.Is(err, attach.ErrNotFound) {
		return nil, cni.Errorf(cni.CodeIO, "%w", err)
	}
	have := err == nil
	if have && h.complete(&rec) && rec.Netns == req.Netns { // the runtime did not get the answer
		result, err := h.again(ctx, &rec)
		if !errors.Is(err, network.ErrPlanAgain) {
			return result, err
		}
	}
	placed, place := timing.Start(ctx, stepPlace)
	at, err := h.opts.Place(placed, req)
	place(err)
	if err != nil {
		return nil, err
	}
	if at.Refuse != "" {
		return nil, cni.Errorf(cni.CodeRefused, "pod %s/%s is not attached: %s", req.Args.PodNamespace, req.Args.PodName, at.Refuse)
	}
	s, err := h.board.of(at.Network, cni.CodeTryAgainLater)
	if err != nil {
		return nil, err
	}
	if have || h.reaper.waits(key) {
		if err := h.clear(ctx, key); err != nil {
			return nil, err
		}
	}
	return h.attach(ctx, s, req, at)
}

// again answers an ADD for an existing attachment, after checking it.
func (h *Handler) again(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	s, err := h.board.of(network.KindOf(rec.Network), cni.CodeTryAgainLater)
	if err != nil {
		return nil, err
	}
	if err := ready(s); err != nil {
		return nil, err
	}
	h.forget(rec.Key()) // a failed undo may have left it to the reaper
	return h.connect(ctx, s, rec)
}

// clear removes an unfinished attachment of the same key, before a network plans a new one.
func (h *Handler) clear(ctx context.Context, key attach.Key) error {
	rec, err := h.record(key)
	if err != nil {
		return err
	}
	s, err := h.board.of(network.KindOf(rec.Network), cni.CodeTryAgainLater)
	if err != nil {
		return err
	}
	if !isClosed(s.handedOver) {
		return cni.Errorf(cni.CodeTryAgainLater, "attachment %s: network %s has not taken over yet what an earlier one left: try again later", key, s.name)
	}
	if err := h.remove(ctx, s, rec); err != nil {
		h.reaper.takeOver(ctx, key)
		return cni.Errorf(cni.CodeTryAgainLater, "attachment %s: removing the remains of an earlier one: %w", key, err)
	}
	return nil
}

// record returns the attachment's record, or the reaper's data about an attachment without one.
func (h *Handler) record(key attach.Key) (attach.Record, error) {
	rec, err := h.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) {
		if stray, waits := h.reaper.stray(key); waits {
			return stray, nil
		}
	}
	if err != nil {
		return rec, cni.Errorf(cni.CodeIO, "%w", err)
	}
	return rec, nil
}

// attach plans, records and connects. If the plan proves unusable, it plans once more.
func (h *Handler) attach(ctx context.Context, s *served, req *cni.Request, at placement.Decision) (*types100.Result, error) {
	if err := ready(s); err != nil {
		return nil, err
	}
	var former attach.Record
	for attempt := 0; ; attempt++ {
		rec, err := h.plan(ctx, s, req, at)
		if err != nil {
			if attempt > 0 {
				h.undo(ctx, s, former)
			}
			return nil, err
		}
		h.forget(rec.Key())
		result, err := h.connect(ctx, s, &rec)
		if !errors.Is(err, network.ErrPlanAgain) {
			return result, err
		}
		if ctx.Err() != nil || attempt > 0 {
			h.undo(ctx, s, rec)
			return nil, err
		}
		h.opts.Log.Warn("planning an attachment again", "attachment", rec.Key().String(), "error", err)
		former = rec
	}
}

// plan lets the network choose, and records the choice before any side effect. If another ADD claims the same meanwhile, the network
// chooses again. The network returns an error of its own when nothing is free.
func (h *Handler) plan(ctx context.Context, s *served, req *cni.Request, at placement.Decision) (attach.Record, error) {
	for {
		planned, done := timing.Start(ctx, stepPlan)
		rec, err := s.network.Plan(planned, req, at, h.store.InUse())
		done(err)
		if err != nil {
			if superseded(ctx, h, req, err) {
				continue
			}
			return rec, codeOf(err)
		}
		if network.KindOf(rec.Network) != s.name {
			return rec, cni.Errorf(cni.CodeInternal, "network %s planned a record of network %q", s.name, rec.Network)
		}
		rec.ContainerID, rec.IfName, rec.Netns = req.ContainerID, req.IfName, req.Netns
		rec.PodNamespace, rec.PodName, rec.PodUID = req.Args.PodNamespace, req.Args.PodName, req.Args.PodUID
		rec.BootID, rec.State, rec.Created = h.opts.BootID, attach.Planned, time.Now().UTC()
		err = h.put(ctx, &rec)
		if err == nil {
			return rec, nil
		}
		discard(s, rec)
		var conflict *attach.ConflictError
		var taken *attach.HostPortError
		switch {
		case errors.As(err, &taken) && h.yields(ctx, &rec, taken):
		case errors.As(err, &taken):
			return rec, cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s cannot have host port %s of this node: pod %s has it",
				rec.PodNamespace, rec.PodName, taken.Port, taken.Pod)
		case errors.As(err, &conflict) && ctx.Err() == nil:
		default:
			return rec, cni.Errorf(cni.CodeIO, "%w", err)
		}
	}
}

// yields detaches the holder of a host port that the record claims, if the holder belongs to a former sandbox of the same pod whose
// namespace no longer exists: a runtime that has lost its state never detaches it. It reports whether the holder is detached.
func (h *Handler) yields(ctx context.Context, rec *attach.Record, taken *attach.HostPortError) bool {
	holder, err := h.store.Get(taken.Holder)
	if err != nil || rec.PodName == "" || holder.PodName != rec.PodName || holder.PodNamespace != rec.PodNamespace {
		return false
	}
	s, err := h.board.of(network.KindOf(holder.Network), cni.CodeTryAgainLater)
	if err != nil || !errors.Is(s.network.Check(ctx, holder), link.ErrNoNamespace) {
		return false
	}
	h.opts.Log.Info("host ports of a deleted sandbox move to the pod's next sandbox", "attachment", taken.Holder.String(), "port", taken.Port.String())
	return h.detach(ctx, taken.Holder) == nil
}

func (h *Handler) put(ctx context.Context, rec *attach.Record) error {
	ctx, done := timing.Start(ctx, stepRecord)
	err := h.store.Put(ctx, *rec)
	done(err)
	return err
}

// connect makes the recorded interface, and undoes everything if a step fails.
func (h *Handler) connect(ctx context.Context, s *served, rec *attach.Record) (*types100.Result, error) {
	connecting, done := timing.Start(ctx, stepConnect)
	result, err := s.network.Connect(connecting, rec)
	done(err)
	if errors.Is(err, network.ErrPlanAgain) {
		return nil, codeOf(err)
	}
	if err == nil && rec.State != attach.Attached {
		rec.State = attach.Attached
		if err = h.put(ctx, rec); err != nil {
			err = cni.Errorf(cni.CodeIO, "%w", err)
		}
	}
	if err != nil {
		h.undo(ctx, s, *rec)
		return nil, codeOf(fmt.Errorf("pod %s/%s: %w", rec.PodNamespace, rec.PodName, err))
	}
	return result, nil
}

// undo removes what a failed ADD has left. It works even if the ADD failed because its context ended.
func (h *Handler) undo(ctx context.Context, s *served, rec attach.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	h.closing.add(rec.Key())
	if err := h.remove(ctx, s, rec); err != nil {
		h.opts.Log.Warn("undoing an ADD that failed, going on in the background", "attachment", rec.Key().String(), "error", err)
		h.reaper.takeOver(ctx, rec.Key())
	}
}

// markClosing marks the record of an attachment that is being removed, so that a restart does not treat it as attached.
func markClosing(ctx context.Context, h *Handler, rec attach.Record) {
	rec.State = attach.Closing
	if err := h.store.Put(context.WithoutCancel(ctx), rec); err != nil {
		h.opts.Log.Error("attachment not marked as closing; a restart would treat it as attached", "attachment", rec.Key().String(), "error", err)
	}
}

// remove removes an attachment at once, and then its record. The caller holds its lock.
func (h *Handler) remove(ctx context.Context, s *served, rec attach.Record) error {
	key := rec.Key()
	closed := s.network.Close(ctx, rec)
	if have, err := h.store.Get(key); err == nil && have.State == attach.Attached { // an agent that starts meanwhile removes it too
		markClosing(ctx, h, have)
	}
	if err := s.network.Remove(ctx, []attach.Record{rec})[key]; err != nil {
		return errors.Join(err, closed)
	}
	return h.drop(ctx, s, rec)
}

// drop deletes the record of a removed attachment.
func (h *Handler) drop(ctx context.Context, s *served, rec attach.Record) error {
	key := rec.Key()
	err := h.store.Delete(ctx, key)
	if _, have := h.store.Get(key); errors.Is(have, attach.ErrNotFound) { // also if a file beside the record is left
		discard(s, rec)
	}
	if err != nil {
		return err
	}
	h.forget(key)
	h.opts.Removed(s.name)
	return nil
}

// discard frees what the network reserved for a record.
func discard(s *served, rec attach.Record) {
	if d, is := s.network.(network.Discarder); is {
		d.Discard(rec)
	}
}

// Del detaches a pod's interface. Its traffic ends before the answer; the rest is removed in the background. Del succeeds if there is no
// attachment. It implements cni.Handler.
func (h *Handler) Del(ctx context.Context, req *cni.Request) error {
	if err := h.board.any(); err != nil {
		return err
	}
	return h.detach(ctx, attach.Key{ContainerID: req.ContainerID, IfName: req.IfName})
}

func (h *Handler) detach(ctx context.Context, key attach.Key) error {
	unlock, err := h.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := h.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) { // or the record is unreadable: its resources are removed with the sandbox
		if err := h.store.RemoveBroken(key); err != nil {
			return cni.Errorf(cni.CodeIO, "attachment %s: %w", key, err)
		}
		return nil
	}
	if err != nil {
		return cni.Errorf(cni.CodeIO, "%w", err)
	}
	s, err := h.board.of(network.KindOf(rec.Network), cni.CodeTryAgainLater)
	if err != nil {
		return err
	}
	h.closing.add(key)
	closing, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	left := s.network.Close(closing, rec)
	if left != nil {
		h.opts.Log.Warn("closing an attachment, going on in the background", "attachment", key.String(), "error", left)
	}
	if own := new(cni.Error); !errors.As(left, &own) {
		left = nil // no error for the runtime
	}
	if rec.State != attach.Closing {
		rec.State = attach.Closing
		if err := h.put(ctx, &rec); err != nil {
			return errors.Join(h.detachNow(ctx, s, rec, err), left)
		}
	}
	h.reaper.add(key)
	return left
}

// detachNow detaches an attachment before the answer, because its record cannot be marked as closing: on a full disk no record can be
// written, but one can be removed. If the agent answered first and then ended, the next agent would open the attachment again.
func (h *Handler) detachNow(ctx context.Context, s *served, rec attach.Record, why error) error {
	if !isClosed(s.handedOver) {
		return cni.Errorf(cni.CodeIO, "%w", why)
	}
	if err := h.remove(ctx, s, rec); err != nil {
		return cni.Errorf(cni.CodeIO, "%w; %w", why, err)
	}
	return nil
}

// GC detaches the interfaces of all networks in sandboxes that the runtime no longer lists. It implements cni.Handler.
//
// A runtime lists the attachments of one configuration. Another interface of a listed sandbox may come from another one, such as a
// NetworkAttachmentDefinition of Multus. It is detached with its sandbox.
func (h *Handler) GC(ctx context.Context, req *cni.Request) error {
	if err := h.board.any(); err != nil {
		return err
	}
	alive := map[string]bool{}
	for _, a := range req.NetConf.ValidAttachments {
		alive[a.ContainerID] = true
	}
	var errs []error
	for _, rec := range h.store.List() {
		if !alive[rec.ContainerID] {
			errs = append(errs, h.detach(ctx, rec.Key()))
		}
	}
	return errors.Join(errs...)
}

// forget takes a key back from the reaper: the attachment is removed already, or there is a new one.
func (h *Handler) forget(key attach.Key) {
	h.reaper.forget(key)
	h.closing.remove(key)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
