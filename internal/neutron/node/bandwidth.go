package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/node"
)

// shapes creates pods' interfaces with their bandwidth limits, and restores limits that another program changed.
type shapes struct {
	node    *node.Node
	records network.Records
	log     *slog.Logger
}

// create creates a pod's interface. A limited pod's interface is on a veth pair whose peer is in a separate namespace of the node: there
// its traffic is shaped, out of the pod's reach and with both datapaths (podlink.Shape). The pair belongs to the attachment; what an
// interrupted run left of it is replaced. A pair that was plugged ahead is not: the switch would not notice another link of that name.
func (s *shapes) create(ctx context.Context, pair podlink.Pair) (podlink.Created, error) {
	created, err := s.node.Pods.Create(ctx, pair)
	if _, ahead := host.PrepluggedSlot(pair.HostName); ahead || pair.Preplugged == "" || !errors.Is(err, podlink.ErrUnusable) {
		return created, err //nolint:wrapcheck // the caller names the attachment
	}
	if err := s.node.Pods.Delete(ctx, pair.HostName); err != nil {
		return created, err //nolint:wrapcheck // the caller names the attachment
	}
	under := podlink.Preplugged{Name: pair.HostName, MTU: pair.MTU, HostGroup: pair.HostGroup, TxOffloadOff: pair.TxOffloadOff}
	if err := s.node.Pods.CreatePreplugged(ctx, pair.Preplugged, under); err != nil {
		// Its text alone: a missing namespace of ports must not look like a missing namespace of the pod.
		return created, cni.Errorf(cni.CodeTryAgainLater, "bandwidth limits need a port whose peer is in %s: %s: try again later", pair.Preplugged, err.Error())
	}
	return s.node.Pods.Create(ctx, pair) //nolint:wrapcheck // the caller names the attachment
}

// remove removes what remains of the limits of pods whose interfaces were removed.
func (s *shapes) remove(ctx context.Context, recs []attach.Record) error {
	var errs []error
	for i := range recs {
		if recs[i].Bandwidth.Limited() {
			errs = append(errs, s.node.Pods.Reshape(ctx, s.node.Ports, recs[i].HostInterface, podlink.Shape{}))
		}
	}
	return errors.Join(errs...)
}

// keep restores the limits of attached pods that another program changed: at the start, and at each verification, because no event
// reports such a change. It returns when ctx ends.
func (s *shapes) keep(ctx context.Context) {
	var due <-chan time.Time
	if s.node.Verify > 0 {
		ticker := time.NewTicker(s.node.Verify)
		defer ticker.Stop()
		due = ticker.C
	}
	for {
		var retry <-chan time.Time
		if err := s.reshape(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("bandwidth limits of pods", "error", err)
			retry = time.After(lastRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
		case <-retry:
		}
	}
}

// errBusy reports that a request for an attachment is in progress.
var errBusy = errors.New("a request for the attachment is under way")

// limited returns the attached pods that have limits.
func (s *shapes) limited() map[attach.Key]attach.Record {
	found := map[attach.Key]attach.Record{}
	for _, rec := range s.records.Attached() {
		if rec.Bandwidth.Limited() {
			found[rec.Key()] = rec
		}
	}
	return found
}

// reshape compares the limits of attached pods once.
func (s *shapes) reshape(ctx context.Context) error {
	limited := s.limited()
	if len(limited) == 0 {
		return nil
	}
	have, err := s.node.Pods.Shapes(ctx, s.node.Ports)
	if err != nil {
		return err //nolint:wrapcheck // it says what failed
	}
	var errs []error
	for _, rec := range limited {
		if want, is := plan.Shape(&rec), have[rec.HostInterface]; !want.Matches(is) {
			errs = append(errs, s.reshapeOne(ctx, &rec, want, is))
		}
	}
	return errors.Join(errs...)
}

// reshapeOne restores the limits of one pod, unless a request for it is in progress.
func (s *shapes) reshapeOne(ctx context.Context, rec *attach.Record, want, is podlink.Shape) error {
	unlock, free := s.records.TryLock(rec.Key())
	if !free {
		return errBusy
	}
	defer unlock()
	if _, attached := s.limited()[rec.Key()]; !attached {
		return nil
	}
	err := s.node.Pods.Reshape(ctx, s.node.Ports, rec.HostInterface, want)
	if errors.Is(err, link.ErrNoDevice) { // its interface was removed, and no packet passes
		return nil
	}
	if err == nil {
		s.log.Warn("restored bandwidth limits that another program changed", "link", rec.HostInterface, "was", is.String(), "is", want.String())
	}
	return err //nolint:wrapcheck // it names the link
}
