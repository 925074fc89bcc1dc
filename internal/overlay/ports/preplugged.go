package ports

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Preplugged creates and removes pre-plugged ports: ports of the switch that exist before their pods. A new port with its link makes the
// switch go over all its ports, which takes longer the more there are. A pod on a pre-plugged port makes the switch do nothing
// (podlink.Preplugged).
type Preplugged struct {
	*pool

	engines *Engines
	numbers *Numbers
	// checkEnds starts a check of all host veths.
	checkEnds func()
	// unplugging locks a port, by its number, while what is on it is removed.
	unplugging attach.Keyed[uint32]
	// logged is the last error that was logged. Only run uses it.
	logged string
}

// prepluggedGroup is how many ports are created at once. The switch forwards no packet meanwhile.
const prepluggedGroup = 8

// Delays between retries to create and remove ports.
const (
	firstPrepluggedRetry = 200 * time.Millisecond
	lastPrepluggedRetry  = 30 * time.Second
)

// run creates and removes ports until ctx ends. It begins when the engines run.
func (s *Preplugged) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.opts.Running:
	}
	delay := firstPrepluggedRetry
	for {
		err := errors.Join(s.remove(ctx), s.fill(ctx))
		s.logOnce(ctx, err)
		var retry <-chan time.Time
		if err != nil && !errors.Is(err, link.ErrNoNamespace) { // the plugin creates the namespace with the next ADD
			retry, delay = time.After(delay), min(2*delay, lastPrepluggedRetry)
		} else {
			delay = firstPrepluggedRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-retry:
		}
	}
}

// logOnce logs an error once, until another follows.
func (s *Preplugged) logOnce(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	words := ""
	if err != nil {
		words = err.Error()
	}
	again := s.logged == words
	s.logged = words
	switch {
	case again || err == nil:
	case errors.Is(err, link.ErrNoNamespace):
		s.opts.Log.Info("no pre-plugged ports: the plugin creates their namespace with the next pod", "error", err)
	default:
		s.opts.Log.Warn("pre-plugging ports failed, trying again; pods get ports of their own meanwhile", "error", err)
	}
}

// TakeOver takes over the pre-plugged ports from before the restart. Those that records name are taken, the others are free, or are removed
// if something is on them that no record names.
func (s *Preplugged) TakeOver(ctx context.Context) error {
	found, err := s.engines.Preplugged.ListPreplugged(ctx, s.opts.Namespace)
	if err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	taken := map[uint32]attach.Record{}
	for _, rec := range s.opts.Store.List() {
		if rec.BootID == s.opts.BootID && rec.OFPort != 0 {
			taken[rec.OFPort] = rec
		}
	}
	s.adopt(found, taken)
	return nil
}

// Configure sets the desired configuration of ports, and hands over the rows of pre-plugged ports. The shape's Name is empty.
func (s *Preplugged) Configure(shape podlink.Preplugged) {
	s.conform(shape, func(ports map[uint32]host.PortUser) { s.engines.Rows.Set(host.PrepluggedRows(ports)) })
}

// Occupy names the pod in the row of its pre-plugged port. It does not wait: the switch forwards the same with either row.
func (s *Preplugged) Occupy(rec *attach.Record) {
	user := host.UserOf(rec)
	rows := host.PrepluggedRows(map[uint32]host.PortUser{rec.OFPort: user})
	rows[owner(rec)] = s.PodRows(rec)
	s.seat(rec.OFPort, user, func() { s.engines.Rows.Set(rows) })
}

// Vacate removes the pod from the row of its pre-plugged port. The row stays, so there is nothing to wait for.
func (s *Preplugged) Vacate(rec *attach.Record) {
	s.engines.Rows.Set(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner(rec): nil})
	s.seat(rec.OFPort, host.PortUser{}, func() { s.engines.Rows.Set(host.FreeRows(rec.OFPort)) })
}

// remove removes the ports that are marked for it: rows first, so that the switch has released the links.
func (s *Preplugged) remove(ctx context.Context) error {
	leaving := s.leaving()
	if len(leaving) == 0 {
		return nil
	}
	rows, names := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}, make([]string, 0, len(leaving))
	for _, ofport := range leaving {
		o, _ := host.PrepluggedRow(ofport, host.PortUser{})
		rows[o], names = nil, append(names, attach.PortName(ofport))
	}
	if err := s.engines.Rows.Apply(ctx, rows); err != nil {
		return fmt.Errorf("removing ports: %w", err)
	}
	if err := s.engines.Pods.Delete(ctx, names...); err != nil {
		return fmt.Errorf("removing ports: %w", err)
	}
	if err := s.unshape(ctx, names); err != nil {
		return fmt.Errorf("removing ports: %w", err)
	}
	s.removed(leaving)
	return nil
}

// unshape removes what traffic shaping has left of removed ports.
func (s *Preplugged) unshape(ctx context.Context, names []string) error {
	if s.engines.Shapers == nil {
		return nil
	}
	left, err := s.engines.Shapers.Shapes(ctx, s.opts.Namespace)
	errs := []error{err}
	for _, name := range names {
		if _, shaped := left[name]; shaped {
			errs = append(errs, s.engines.Shapers.Reshape(ctx, s.opts.Namespace, name, podlink.Shape{}))
		}
	}
	return errors.Join(errs...)
}

// fill creates ports until Options.Spare are free. It begins once less than half of that are.
func (s *Preplugged) fill(ctx context.Context) error {
	for lacking := s.lacking(false); lacking > 0 && ctx.Err() == nil; lacking = s.lacking(true) {
		if _, err := s.make(ctx, min(lacking, prepluggedGroup), portFree); err != nil {
			return err
		}
	}
	return nil
}

// makeTaken creates a port for a pod.
func (s *Preplugged) makeTaken(ctx context.Context) (ofport uint32, err error) {
	defer s.wakeUp() // an unusable port is removed
	numbers, err := s.make(ctx, 1, portTaken)
	if err != nil {
		return 0, err
	}
	return numbers[0], nil
}

// make creates ports, free or taken, and waits until the switch has them.
func (s *Preplugged) make(ctx context.Context, count int, state portState) ([]uint32, error) {
	var ports []uint32
	var pairs []podlink.Preplugged
	err := s.numbers.pickPorts(count, s.Has, func(ofport uint32) {
		ports, pairs = append(ports, ofport), append(pairs, s.making(ofport))
	})
	if err != nil {
		return nil, err
	}
	if err = s.engines.Preplugged.CreatePreplugged(ctx, s.opts.Namespace, pairs...); err == nil {
		err = named("making ports", s.engines.Rows.Apply(ctx, host.FreeRows(ports...)))
	}
	if s.made(ports, state, err) {
		s.checkEnds()
	}
	return ports, err
}

// Pair returns an attachment's veth pair, or the pre-plugged port that it uses.
func (s *Preplugged) Pair(rec *attach.Record, settings *plan.Settings) (podlink.Pair, error) {
	pair, err := plan.Pair(rec, settings)
	if err == nil && s.Has(rec.OFPort) {
		pair.Preplugged = s.opts.Namespace
	}
	return pair, err
}

// PodRows returns the row of an attachment's port. The pod owns the row of a pre-plugged port in addition to the port itself, so that failures
// of the row are reported for the pod as well.
func (s *Preplugged) PodRows(rec *attach.Record) map[ovsdb.Key]ovsdb.Row {
	if s.Has(rec.OFPort) {
		_, row := host.PrepluggedRow(rec.OFPort, host.UserOf(rec))
		return row
	}
	return host.PodRows(host.PodPort{Owner: owner(rec), Interface: rec.HostInterface, OFPort: rec.OFPort, User: host.UserOf(rec)})
}

// UnplugAll removes pods' interfaces from pre-plugged ports.
func (s *Preplugged) UnplugAll(ctx context.Context, recs []attach.Record) error {
	errs := make([]error, len(recs))
	var group errgroup.Group
	for i := range recs {
		group.Go(func() error {
			errs[i] = s.unplug(ctx, &recs[i], func() {})
			if s.hopeless(&recs[i], errs[i]) {
				s.opts.Log.Warn("pre-plugged port no longer usable, removing it", "port", recs[i].HostInterface, "error", errs[i])
				errs[i] = nil
			}
			return nil
		})
	}
	return errors.Join(group.Wait(), errors.Join(errs...))
}

// unplug removes a pod's interface from a pre-plugged port, unless that is done. It waits for another call for the same port. began is
// called as in podlink.Links.
func (s *Preplugged) unplug(ctx context.Context, rec *attach.Record, began func()) error {
	defer began()
	unlock, err := s.unplugging.Lock(ctx, rec.OFPort)
	if err != nil {
		return err
	}
	defer unlock()
	if s.isClean(rec.OFPort) {
		return nil
	}
	pair, err := s.Pair(rec, &plan.Settings{})
	if err != nil {
		return err
	}
	if err := s.engines.Pods.Unplug(ctx, pair, began); err != nil {
		return err
	}
	s.clean(rec.OFPort)
	return nil
}

// makeTakenFor creates a pre-plugged port for a pod with limited bandwidth when none is free. Traffic is shaped on the port's veth peer,
// outside the pod's namespace, where the pod cannot remove the shaping.
func (s *Preplugged) makeTakenFor(ctx context.Context, rec *attach.Record, pod *cni.Args) error {
	number, err := s.makeTaken(ctx)
	if err != nil {
		// Without wrapping err: a missing namespace of ports must not be reported as a missing namespace of the pod.
		return cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s: its bandwidth limit needs a port whose peer is in %s: %s: try again later",
			pod.PodNamespace, pod.PodName, s.opts.Namespace, err.Error())
	}
	rec.OFPort = number
	return nil
}
