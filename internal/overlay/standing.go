package overlay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// standing keeps ports of the switch ready for pods. A port and its link cost the switch a look at all its ports, which takes
// the longer the more there are; a pod that is put upon a port that is there already costs it nothing (link.Standing).
//
// A port is kept through its pods: it goes from free to taken and back, and is removed only when it is of no use, or when far
// more are free than are ever taken at once.
type standing struct {
	network *Network
	wake    chan struct{}
	// unplugging is locked, by a port's number, by who removes what is upon it.
	unplugging attach.Keyed[uint32]

	mu sync.Mutex
	// shape is what ports are to be like; its Name is empty.
	shape link.Standing
	ports map[uint32]*standingPort
	// free are the numbers of those that are free: the one that has been free for longest is taken next, so that what a
	// switch still holds for its former pod is gone by then.
	free []uint32
	// rest is how long a port stays free at least.
	rest time.Duration
	// told is the last trouble that was logged.
	told string
}

// standingPort is one of them.
type standingPort struct {
	state        standingState
	mtu          int
	txOffloadOff bool
	// freed is when its last pod had gone.
	freed time.Time
	// clean tells that nothing is upon it; condemned that it is not to serve again; doubted is since when something is upon it
	// that should not be.
	clean, condemned bool
	doubted          time.Time
	// seen is what its host end was like last, of those changes that were reported.
	seen link.HostEnd
}

type standingState int

const (
	standingMaking standingState = iota
	standingFree
	standingTaken
	standingLeaving
)

const (
	// standingGroup is how many are made in one go. The switch forwards nothing meanwhile.
	standingGroup = 8
	// standingRest is how long a port stays free at least: what the switch still has cached for its former pod, it has looked at again by
	// then (Open vSwitch's max-revalidator is half of it).
	standingRest = time.Second
	// lingering is how long something may be upon a port whose pod has gone: namespaces end in the kernel's own time.
	lingering = 5 * time.Second
	// surplus is how many times Options.Spare may be free before those above half of that are removed.
	surplus = 4
)

// Delays between tries to make and remove ports.
const (
	firstStandingRetry = 200 * time.Millisecond
	lastStandingRetry  = 30 * time.Second
)

func newStanding(n *Network) *standing {
	return &standing{network: n, wake: make(chan struct{}, 1), ports: map[uint32]*standingPort{}, rest: standingRest}
}

// wakeUp has it look whether ports are to be made or removed.
func (s *standing) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// take returns the number of a port that is ready, if there is one.
func (s *standing) take(mtu int) (ofport uint32, ok bool) {
	defer s.wakeUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 || s.network.opts.Spare == 0 {
		return 0, false
	}
	ofport = s.free[0]
	port := s.ports[ofport]
	if port.mtu != mtu || time.Since(port.freed) < s.rest {
		return 0, false
	}
	s.free = s.free[1:]
	port.state, port.clean = standingTaken, false
	return ofport, true
}

// give takes a port back, to be taken again or, if it was condemned, to be removed. One that does not stand, or is not taken, is
// nothing to it.
func (s *standing) give(ofport uint32) {
	defer s.wakeUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	if port := s.ports[ofport]; port != nil && port.state == standingTaken {
		port.freed = time.Now()
		s.release(ofport, port, true)
	}
}

// release makes a port free, or has it removed. The caller holds mu.
func (s *standing) release(ofport uint32, port *standingPort, whole bool) {
	if !whole || port.condemned || !s.fits(port) {
		port.state = standingLeaving
		return
	}
	port.state, port.doubted = standingFree, time.Time{}
	s.free = append(s.free, ofport)
}

// fits reports whether a port is as ports are to be now. Before that is known all are. The caller holds mu.
func (s *standing) fits(port *standingPort) bool {
	return s.shape.MTU == 0 || port.mtu == s.shape.MTU && port.txOffloadOff == s.shape.TxOffloadOff
}

// discard has a port removed that turned out to be unusable.
func (s *standing) discard(ofport uint32) {
	s.mark(ofport, func(port *standingPort) { port.condemned = true })
	s.give(ofport)
}

// clean notes that nothing is upon a port any more.
func (s *standing) clean(ofport uint32) {
	s.mark(ofport, func(port *standingPort) { port.clean = true })
}

func (s *standing) mark(ofport uint32, how func(*standingPort)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if port := s.ports[ofport]; port != nil && port.state == standingTaken {
		how(port)
	}
}

// isClean reports whether it is known that nothing is upon a port.
func (s *standing) isClean(ofport uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	port := s.ports[ofport]
	return port != nil && port.clean
}

// hopeless reports whether a port whose pod is to be removed from it cannot serve again, which it then will not: removing the
// port removes what is upon it as well.
func (s *standing) hopeless(rec *attach.Record, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	port := s.ports[rec.OFPort]
	switch {
	case err == nil || port == nil:
		return false
	case errors.Is(err, link.ErrNoDevice) || errors.Is(err, link.ErrForeign):
	case !errors.Is(err, link.ErrOccupied):
		return false
	case port.condemned:
	case port.doubted.IsZero():
		port.doubted = time.Now()
		return false
	case time.Since(port.doubted) < lingering:
		return false
	}
	port.condemned = true
	return true
}

// missing has ports leave whose links somebody else has removed. Who is upon one keeps it until it goes.
func (s *standing) missing(have map[string]link.HostEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ofport := range slices.Clone(s.free) {
		if _, there := have[attach.PortName(ofport)]; !there {
			s.leave(ofport)
			s.wakeUp()
		}
	}
}

// has reports whether a number is that of one of the ports.
func (s *standing) has(ofport uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ports[ofport] != nil
}

// ends returns what the host ends of those that stand are to be, by name.
func (s *standing) ends() map[string]link.HostEnd {
	s.mu.Lock()
	defer s.mu.Unlock()
	ends := make(map[string]link.HostEnd, len(s.ports))
	for ofport, port := range s.ports {
		if port.state == standingFree || port.state == standingTaken {
			ends[attach.PortName(ofport)] = s.end(port)
		}
	}
	return ends
}

// end returns what a port's host end is to be. The caller holds mu.
func (s *standing) end(port *standingPort) link.HostEnd {
	return link.HostEnd{MTU: port.mtu, Group: s.shape.HostGroup, Up: true}
}

// changed notes what a host end is like now, and reports whether it has to be restored.
func (s *standing) changed(name string, now link.HostEnd) bool {
	ofport, ok := attach.PortNumber(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	port := s.ports[ofport]
	if !ok || port == nil {
		return false
	}
	port.seen = now
	return (port.state == standingFree || port.state == standingTaken) && now != s.end(port)
}

// takeOver sorts the ports that a former life of the agent left: those that records name are taken, the others are free, or
// leave when something is upon them that no record knows.
func (s *standing) takeOver(ctx context.Context) error {
	n := s.network
	found, err := n.engines.Standing.ListStanding(ctx, n.opts.Ports)
	if err != nil {
		return fmt.Errorf("pre-plugged ports: %w", err)
	}
	taken := map[uint32]int{}
	for _, rec := range n.store.List() {
		if rec.BootID == n.opts.BootID && rec.OFPort != 0 {
			taken[rec.OFPort] = rec.MTU
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports, s.free = map[uint32]*standingPort{}, nil
	for name, stands := range found {
		ofport, ok := attach.PortNumber(name)
		if !ok {
			continue
		}
		port := &standingPort{mtu: stands.MTU, txOffloadOff: stands.TxOffloadOff, state: standingTaken}
		s.ports[ofport] = port
		if mtu, ok := taken[ofport]; ok {
			port.mtu = mtu
		} else {
			s.release(ofport, port, stands.Idle)
		}
	}
	slices.Sort(s.free)
	return nil
}

// configure sets what ports are to be like from now on, and hands over the rows of those that stand.
func (s *standing) configure(with *settings) {
	defer s.wakeUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shape = link.Standing{MTU: with.mtu, HostGroup: with.attachments.HostGroup, TxOffloadOff: with.attachments.TxOffloadOff}
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	for ofport, port := range s.ports {
		if port.state == standingFree && !s.fits(port) {
			s.leave(ofport)
		}
		if port.state == standingFree || port.state == standingTaken {
			o, row := standingRow(ofport)
			rows[o] = row
		}
	}
	s.network.engines.Rows.Set(rows)
}

// leave has a port that is free removed. The caller holds mu.
func (s *standing) leave(ofport uint32) {
	s.ports[ofport].state = standingLeaving
	s.free = slices.DeleteFunc(s.free, func(other uint32) bool { return other == ofport })
}

func standingRow(ofport uint32) (reconcile.Owner, map[ovsdb.Key]ovsdb.Row) {
	name := attach.PortName(ofport)
	o := reconcile.Owner(link.StandingOwner(name))
	return o, host.PodRows(host.PodPort{Owner: o, Interface: name, OFPort: ofport})
}

// run makes and removes ports until ctx ends. It begins when the engines run.
func (s *standing) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.network.running:
	}
	delay := firstStandingRetry
	for {
		err := errors.Join(s.remove(ctx), s.fill(ctx))
		s.tell(ctx, err)
		var retry <-chan time.Time
		if err != nil && !errors.Is(err, link.ErrNoNamespace) { // the next ADD has the namespace made
			retry, delay = time.After(delay), min(2*delay, lastStandingRetry)
		} else {
			delay = firstStandingRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-retry:
		}
	}
}

// tell logs trouble, each kind once.
func (s *standing) tell(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	words := ""
	if err != nil {
		words = err.Error()
	}
	s.mu.Lock()
	again := s.told == words
	s.told = words
	s.mu.Unlock()
	switch {
	case again || err == nil:
	case errors.Is(err, link.ErrNoNamespace):
		s.network.opts.Log.Info("no pre-plugged ports: the plugin creates their namespace with the next pod", "error", err)
	default:
		s.network.opts.Log.Warn("pre-plugging ports failed, trying again; pods get ports of their own meanwhile", "error", err)
	}
}

// remove removes the ports that leave: rows first, so that the switch has let go of the links.
func (s *standing) remove(ctx context.Context) error {
	n := s.network
	s.mu.Lock()
	s.trim()
	var leaving []uint32
	for ofport, port := range s.ports {
		if port.state == standingLeaving {
			leaving = append(leaving, ofport)
		}
	}
	s.mu.Unlock()
	if len(leaving) == 0 {
		return nil
	}
	rows, names := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}, make([]string, 0, len(leaving))
	for _, ofport := range leaving {
		o, _ := standingRow(ofport)
		rows[o], names = nil, append(names, attach.PortName(ofport))
	}
	if err := n.engines.Rows.Apply(ctx, rows); err != nil {
		return fmt.Errorf("removing ports: %w", err)
	}
	if err := n.engines.Pods.Delete(ctx, names...); err != nil {
		return fmt.Errorf("removing ports: %w", err)
	}
	if err := s.unshape(ctx, names); err != nil {
		return fmt.Errorf("removing ports: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ofport := range leaving {
		delete(s.ports, ofport)
	}
	return nil
}

// unshape removes what a pod's shape has left of ports that are gone.
func (s *standing) unshape(ctx context.Context, names []string) error {
	n := s.network
	if n.engines.Shapers == nil {
		return nil
	}
	left, err := n.engines.Shapers.Shapes(ctx, n.opts.Ports)
	errs := []error{err}
	for _, name := range names {
		if _, shaped := left[name]; shaped {
			errs = append(errs, n.engines.Shapers.Reshape(ctx, n.opts.Ports, name, link.Shape{}))
		}
	}
	return errors.Join(errs...)
}

// trim has ports leave when far more are free than are to be. The caller holds mu.
func (s *standing) trim() {
	spare := s.network.opts.Spare
	if len(s.free) <= surplus*spare {
		return
	}
	for _, ofport := range slices.Clone(s.free[surplus*spare/2:]) {
		s.leave(ofport)
	}
}

// fill makes ports until as many are free as are to be, once half of them are taken.
func (s *standing) fill(ctx context.Context) error {
	for lacking := s.lacking(false); lacking > 0 && ctx.Err() == nil; lacking = s.lacking(true) {
		if _, err := s.make(ctx, min(lacking, standingGroup), standingFree); err != nil {
			return err
		}
	}
	return nil
}

// lacking returns how many ports are to be made. It is patient until it has begun.
func (s *standing) lacking(begun bool) int {
	spare := s.network.opts.Spare
	s.mu.Lock()
	defer s.mu.Unlock()
	if free := len(s.free); begun && free < spare || free < (spare+1)/2 {
		return spare - free
	}
	return 0
}

// makeTaken makes a port for a pod that is to have it.
func (s *standing) makeTaken(ctx context.Context) (ofport uint32, err error) {
	defer s.wakeUp() // what cannot serve is removed
	numbers, err := s.make(ctx, 1, standingTaken)
	if err != nil {
		return 0, err
	}
	return numbers[0], nil
}

// make makes ports, free or taken, and waits until the switch has them.
func (s *standing) make(ctx context.Context, count int, state standingState) ([]uint32, error) {
	n := s.network
	numbers, pairs, err := s.plan(count)
	if err != nil {
		return nil, err
	}
	if err = n.engines.Standing.CreateStanding(ctx, n.opts.Ports, pairs...); err == nil {
		rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
		for _, ofport := range numbers {
			o, row := standingRow(ofport)
			rows[o] = row
		}
		err = named("making ports", n.engines.Rows.Apply(ctx, rows))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ofport := range numbers {
		if errors.Is(err, link.ErrNoNamespace) {
			delete(s.ports, ofport) // nothing was made
			continue
		}
		if port := s.ports[ofport]; err == nil && state == standingTaken {
			port.state = standingTaken
		} else {
			s.release(ofport, port, err == nil)
		}
		if port := s.ports[ofport]; err == nil && port.seen != (link.HostEnd{}) && port.seen != s.end(port) {
			n.CheckHostEnds()
		}
	}
	return numbers, err
}

// plan picks numbers for ports to be made.
func (s *standing) plan(count int) (numbers []uint32, pairs []link.Standing, err error) {
	n := s.network
	inUse := n.store.InUse()
	n.picking.Lock()
	defer n.picking.Unlock()
	for range count {
		ofport, err := n.ofports.Pick(func(p uint32) bool { return held(inUse.OFPorts, p, attach.Key{}) || s.has(p) })
		if err != nil && len(numbers) > 0 {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		s.mu.Lock()
		pair := s.shape
		s.ports[ofport] = &standingPort{state: standingMaking, mtu: pair.MTU, txOffloadOff: pair.TxOffloadOff}
		s.mu.Unlock()
		pair.Name = attach.PortName(ofport)
		numbers, pairs = append(numbers, ofport), append(pairs, pair)
	}
	return numbers, pairs, nil
}
