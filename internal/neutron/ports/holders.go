package ports

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Choice is a port that was chosen for an attachment.
type Choice struct {
	UUID string
	Slot host.Slot
	Spec Spec
	// Paired reports that the port has a pre-plugged pair.
	Paired bool
}

// Choose is choose, for a port whose addresses the node can route to a pod.
func (ps *Ports) Choose(network string, claimed func(uuid string, s *Spec) bool) (chosen *Choice, next time.Duration, changed <-chan struct{}) {
	for {
		chosen, next, changed = ps.choose(network, claimed)
		if chosen == nil {
			return nil, next, changed
		}
		err := ps.opts.routable(&chosen.Spec) // routes may have changed since the last pass
		if err == nil {
			return chosen, 0, nil
		}
		ps.mu.Lock()
		if p := ps.all[chosen.UUID]; p != nil {
			p.unroutable = err // until a pass finds that it can
		}
		ps.mu.Unlock()
		ps.WakeUp()
	}
}

// choose returns the free port of the network that has rested longest, one with a pre-plugged pair first. Without one it returns when the
// next will have rested (zero: unknown), and a channel that is closed when that may have changed.
func (ps *Ports) choose(network string, claimed func(uuid string, s *Spec) bool) (chosen *Choice, next time.Duration, changed <-chan struct{}) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var best *port
	for _, p := range ps.all {
		if !p.free(network) || claimed(p.uuid, &p.spec) {
			continue
		}
		if left := ps.opts.Rest - time.Since(p.released); left > 0 && !p.released.IsZero() {
			next = cmp.Or(min(next, left), left)
			continue
		}
		if best == nil || p.before(best) {
			best = p
		}
	}
	if best == nil {
		return nil, next, ps.changed
	}
	return &Choice{best.uuid, best.slot, best.spec, best.paired()}, 0, nil
}

// before reports whether a free port is chosen rather than another one.
func (p *port) before(other *port) bool {
	switch {
	case p.paired() != other.paired():
		return p.paired()
	case !p.released.Equal(other.released):
		return p.released.Before(other.released)
	default:
		return p.uuid < other.uuid
	}
}

// free reports whether a pod of the network can be attached now, apart from the port's rest. The API server has to show the port as
// plugged: the controller deletes a port in OpenStack that is reported as unplugged.
func (p *port) free(network string) bool {
	return p.object != nil && p.object.Spec.Network.UID == network && p.object.DeletionTimestamp.IsZero() && p.object.Status.Plugged &&
		p.settled() && p.active() && p.holder == nil && p.problem == nil && p.unroutable == nil
}

// active reports whether the port can be expected to work: Neutron has reported it as ACTIVE, or OVN has installed its flows; and if it was
// plugged before, it is bound again.
func (p *port) active() bool {
	if p.again {
		return p.bound && p.object.Spec.Active
	}
	return p.bound || p.object.Spec.Active
}

// Count returns how many ports of a network the node has, and how many of them are plugged but not active yet.
func (ps *Ports) Count(network string) (all, inactive int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.all {
		if p.object == nil || p.object.Spec.Network.UID != network {
			continue
		}
		all++
		if p.plugged && p.holder == nil && !p.active() {
			inactive++
		}
	}
	return all, inactive
}

// Hold marks the port as the attachment's, and returns its rows with that mark; nil if the port has a pre-plugged pair, because then no row
// changes. It fails if the port is not as it was when it was chosen, or is another attachment's.
func (ps *Ports) Hold(rec *attach.Record, d *Details) (map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[d.Port]
	if p == nil || p.slot != d.Slot || p.holder == nil && (!p.settled() || !p.fits(rec)) {
		return nil, fmt.Errorf("port %s is not plugged on this node any more as it was when it was chosen", d.Port)
	}
	if p.holder != nil && p.holder.Key() != rec.Key() {
		return nil, fmt.Errorf("port %s is that of attachment %s", d.Port, p.holder.Key())
	}
	kept := *rec
	p.holder, p.used = &kept, true
	ps.wakeLater()
	if p.paired() {
		return nil, nil
	}
	return map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{p.owner(): p.rows()}, nil
}

// fits reports whether an attachment's record is about the port as it is.
func (p *port) fits(rec *attach.Record) bool {
	return p.paired() == OnPair(rec) && rec.MAC == p.spec.MAC.String() && cmp.Or(rec.MTU, defaultMTU) == cmp.Or(p.spec.MTU, defaultMTU)
}

// Replace takes a port back from an attachment whose pair was missing: no pod has used the port. It is plugged anew, and need not rest. The
// ports whose pairs are missing as well are not chosen any more when it returns.
func (ps *Ports) Replace(ctx context.Context, rec *attach.Record, d *Details) {
	ps.mu.Lock()
	if p := ps.all[d.Port]; p != nil && p.holder != nil && p.holder.Key() == rec.Key() {
		p.holder, p.used, p.outdated = nil, false, true
	}
	ps.mu.Unlock()
	ps.unseen.Store(true)
	if err := ps.look(ctx); err != nil {
		ps.opts.Log.WarnContext(ctx, "missing pre-plugged ports, looking again", "error", err)
	}
	ps.WakeUp()
}

// Release frees the ports of attachments that are removed. Each is unplugged, and plugged again.
func (ps *Ports) Release(recs ...attach.Record) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for i := range recs {
		d, err := DetailsOf(&recs[i])
		if err != nil {
			continue // it has no port
		}
		// Without a holder the attachment is of a former agent process: what it left on the port is unknown.
		if p := ps.all[d.Port]; p != nil && (p.holder == nil || p.holder.Key() == recs[i].Key()) {
			p.holder, p.used = nil, true
		}
	}
	ps.wakeLater()
}

// replugPatience limits how long Unplugged waits. Then the removal is tried again.
const replugPatience = 10 * time.Second

// Unplugged waits until the ports of released attachments are unplugged, and plugged again with the mark that they rest. It returns what
// keeps the others from it.
func (ps *Ports) Unplugged(ctx context.Context, recs []attach.Record) map[attach.Key]error {
	ctx, cancel := context.WithTimeout(ctx, replugPatience)
	defer cancel()
	for {
		left, changed := ps.stillPlugged(recs)
		if len(left) == 0 {
			return left
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return left
		}
	}
}

// stillPlugged returns those attachments whose ports are not unplugged yet, and a channel that is closed when that may have changed.
func (ps *Ports) stillPlugged(recs []attach.Record) (left map[attach.Key]error, changed <-chan struct{}) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	left = map[attach.Key]error{}
	for i := range recs {
		d, err := DetailsOf(&recs[i])
		if err != nil {
			continue // it has no port
		}
		p := ps.all[d.Port]
		if p == nil || p.holder != nil && p.holder.Key() != recs[i].Key() {
			continue
		}
		failure := ps.opts.Rows.Failure(p.owner())
		if p.used || p.leaving || p.wanted && !p.plugged && failure == nil {
			left[recs[i].Key()] = fmt.Errorf("port %s is not unplugged yet: %w", d.Port, cmp.Or(p.stuck, failure, errWaits))
		}
	}
	return left, ps.changed
}

// errWaits says that nothing is known to be wrong with a port.
var errWaits = errors.New("it waits for Open vSwitch's database")

// Counts returns how many ports the node has, and on how many of them pods are.
func (ps *Ports) Counts() (all, used int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.all {
		if p.holder != nil {
			used++
		}
	}
	return len(ps.all), used
}
