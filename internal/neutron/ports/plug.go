package ports

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// unplug removes the rows and the pairs of ports that are not wanted, outdated, or have been used, and deletes those whose object was
// deleted. What fails is repeated by the next pass.
func (ps *Ports) unplug(ctx context.Context) error {
	all, gone := ps.leave()
	if len(all) == 0 {
		return nil
	}
	err := ps.opts.Rows.Apply(ctx, gone)
	stuck := map[*port]error{}
	for _, p := range all {
		switch failure := ps.opts.Rows.Failure(p.owner()); {
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
func (ps *Ports) leave() (all []*port, gone map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row) {
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
func (ps *Ports) left(all []*port, stuck map[*port]error) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var errs []error
	for _, p := range all {
		if p.stuck = stuck[p]; p.stuck != nil {
			errs = append(errs, fmt.Errorf("port %s is still plugged: %w", p.uuid, p.stuck))
			continue
		}
		p.leaving, p.outdated, p.desired, p.wired, p.pair = false, false, false, wiring{}, podlink.Preplugged{}
		p.again, p.bound = true, false
		p.unplugs++
		if p.used {
			p.used, p.released = false, time.Now().Truncate(time.Second)
		}
		if p.object == nil {
			delete(ps.all, p.uuid)
			delete(ps.of, p.slot)
		}
	}
	return errors.Join(errs...)
}

// plug writes the rows of ports that are wanted, all in one transaction, with their pre-plugged pairs.
func (ps *Ports) plug(ctx context.Context) error {
	unpaired := ps.pair(ctx)
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	var all []*port
	ps.mu.Lock()
	for _, p := range ps.all {
		if p.wanted && !p.leaving && (!p.plugged || p.making) && (p.holder != nil || !p.used) {
			if p.holder == nil {
				p.mac = p.spec.MAC
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
	err := errors.Join(ps.opts.Rows.Apply(ctx, rows), unpaired)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range all {
		p.making, p.plugged = false, ps.opts.Rows.Failure(p.owner()) == nil && ctx.Err() == nil
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
