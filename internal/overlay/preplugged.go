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

// preplugged keeps pre-plugged ports: ports of the switch that exist before their pods. A new port with its link makes the switch go over all
// its ports, which takes longer the more there are. A pod on a pre-plugged port makes the switch do nothing (link.Preplugged).
//
// A port serves one pod after another: it goes from free to taken and back. It is removed only when it is unusable, or when far more ports
// are free than are ever taken at once.
type preplugged struct {
	network *Network
	wake    chan struct{}
	// unplugging locks a port, by its number, while what is on it is removed.
	unplugging attach.Keyed[uint32]

	mu sync.Mutex
	// shape is the desired configuration of ports; its Name is empty.
	shape link.Preplugged
	ports map[uint32]*prepluggedPort
	// free are the numbers of the free ports, the one that has been free longest first. It is taken next, so that nothing in the switch refers
	// to its former pod any more.
	free []uint32
	// rest is the least time that a port stays free.
	rest time.Duration
	// logged is the last error that was logged.
	logged string
}

// prepluggedPort is one pre-plugged port.
type prepluggedPort struct {
	state        prepluggedState
	mtu          int
	txOffloadOff bool
	// freed is when its last pod was removed.
	freed time.Time
	// clean says that nothing is on the port; condemned, that it must not be used again; lingersSince is since when something is on it that should
	// not be.
	clean, condemned bool
	lingersSince     time.Time
	// seen is the last reported state of its host veth.
	seen link.HostEnd
}

type prepluggedState int

const (
	prepluggedMaking prepluggedState = iota
	prepluggedFree
	prepluggedTaken
	prepluggedLeaving
)

const (
	// prepluggedGroup is how many ports are created at once. The switch forwards no packet meanwhile.
	prepluggedGroup = 8
	// prepluggedRest is the least time that a port stays free. By then the switch has revalidated what it has cached for the former pod (Open
	// vSwitch's max-revalidator is half of it).
	prepluggedRest = time.Second
	// lingering is how long something may be on a port after its pod was removed: the kernel deletes namespaces asynchronously.
	lingering = 5 * time.Second
	// surplus times Options.Spare is how many ports may be free before those above half of that are removed.
	surplus = 4
)

// Delays between retries to create and remove ports.
const (
	firstPrepluggedRetry = 200 * time.Millisecond
	lastPrepluggedRetry  = 30 * time.Second
)

func newPreplugged(n *Network) *preplugged {
	return &preplugged{network: n, wake: make(chan struct{}, 1), ports: map[uint32]*prepluggedPort{}, rest: prepluggedRest}
}

// wakeUp makes run check whether to create or remove ports.
func (s *preplugged) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// take returns the number of a free port, if there is one that fits.
func (s *preplugged) take(mtu int) (ofport uint32, ok bool) {
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
	port.state, port.clean = prepluggedTaken, false
	return ofport, true
}

// give returns a port, which becomes free or, if it was condemned, is removed. A port that is not pre-plugged or not taken is ignored.
func (s *preplugged) give(ofport uint32) {
	defer s.wakeUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	if port := s.ports[ofport]; port != nil && port.state == prepluggedTaken {
		port.freed = time.Now()
		s.release(ofport, port, true)
	}
}

// release makes a port free, or marks it for removal. The caller holds mu.
func (s *preplugged) release(ofport uint32, port *prepluggedPort, whole bool) {
	if !whole || port.condemned || !s.fits(port) {
		port.state = prepluggedLeaving
		return
	}
	port.state, port.lingersSince = prepluggedFree, time.Time{}
	s.free = append(s.free, ofport)
}

// fits reports whether a port has the desired configuration. Before configure every port does. The caller holds mu.
func (s *preplugged) fits(port *prepluggedPort) bool {
	return s.shape.MTU == 0 || port.mtu == s.shape.MTU && port.txOffloadOff == s.shape.TxOffloadOff
}

// discard marks an unusable port for removal.
func (s *preplugged) discard(ofport uint32) {
	s.mark(ofport, func(port *prepluggedPort) { port.condemned = true })
	s.give(ofport)
}

// clean notes that nothing is on a port any more.
func (s *preplugged) clean(ofport uint32) {
	s.mark(ofport, func(port *prepluggedPort) { port.clean = true })
}

func (s *preplugged) mark(ofport uint32, how func(*prepluggedPort)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if port := s.ports[ofport]; port != nil && port.state == prepluggedTaken {
		how(port)
	}
}

// isClean reports whether nothing is known to be on a port.
func (s *preplugged) isClean(ofport uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	port := s.ports[ofport]
	return port != nil && port.clean
}

// hopeless reports whether a port from which a pod's interface cannot be removed must not be used again, and condemns it if so: removing
// the port removes what is on it as well.
func (s *preplugged) hopeless(rec *attach.Record, err error) bool {
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
	case port.lingersSince.IsZero():
		port.lingersSince = time.Now()
		return false
	case time.Since(port.lingersSince) < lingering:
		return false
	}
	port.condemned = true
	return true
}

// missing marks free ports for removal whose links another program has deleted. A pod on such a port keeps it until it is detached.
func (s *preplugged) missing(have map[string]link.HostEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ofport := range slices.Clone(s.free) {
		if _, there := have[attach.PortName(ofport)]; !there {
			s.leave(ofport)
			s.wakeUp()
		}
	}
}

// has reports whether a number is that of a pre-plugged port.
func (s *preplugged) has(ofport uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ports[ofport] != nil
}

// ends returns the desired host veths of pre-plugged ports, by name.
func (s *preplugged) ends() map[string]link.HostEnd {
	s.mu.Lock()
	defer s.mu.Unlock()
	ends := make(map[string]link.HostEnd, len(s.ports))
	for ofport, port := range s.ports {
		if port.state == prepluggedFree || port.state == prepluggedTaken {
			ends[attach.PortName(ofport)] = s.end(port)
		}
	}
	return ends
}

// end returns the desired host veth of a port. The caller holds mu.
func (s *preplugged) end(port *prepluggedPort) link.HostEnd {
	return link.HostEnd{MTU: port.mtu, Group: s.shape.HostGroup, Up: true}
}

// changed notes the state of a host veth, and reports whether it has to be restored.
func (s *preplugged) changed(name string, now link.HostEnd) bool {
	ofport, ok := attach.PortNumber(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	port := s.ports[ofport]
	if !ok || port == nil {
		return false
	}
	port.seen = now
	return (port.state == prepluggedFree || port.state == prepluggedTaken) && now != s.end(port)
}

// takeOver takes over the pre-plugged ports from before the restart. Those that records name are taken, the others are free, or are removed
// if something is on them that no record names.
func (s *preplugged) takeOver(ctx context.Context) error {
	n := s.network
	found, err := n.engines.Preplugged.ListPreplugged(ctx, n.opts.Ports)
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
	s.ports, s.free = map[uint32]*prepluggedPort{}, nil
	for name, listed := range found {
		ofport, ok := attach.PortNumber(name)
		if !ok {
			continue
		}
		port := &prepluggedPort{mtu: listed.MTU, txOffloadOff: listed.TxOffloadOff, state: prepluggedTaken}
		s.ports[ofport] = port
		if mtu, ok := taken[ofport]; ok {
			port.mtu = mtu
		} else {
			s.release(ofport, port, listed.Idle)
		}
	}
	slices.Sort(s.free)
	return nil
}

// configure sets the desired configuration of ports, and hands over the rows of pre-plugged ports.
func (s *preplugged) configure(with *settings) {
	defer s.wakeUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shape = link.Preplugged{MTU: with.mtu, HostGroup: with.attachments.HostGroup, TxOffloadOff: with.attachments.TxOffloadOff}
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	for ofport, port := range s.ports {
		if port.state == prepluggedFree && !s.fits(port) {
			s.leave(ofport)
		}
		if port.state == prepluggedFree || port.state == prepluggedTaken {
			o, row := prepluggedRow(ofport)
			rows[o] = row
		}
	}
	s.network.engines.Rows.Set(rows)
}

// leave marks a free port for removal. The caller holds mu.
func (s *preplugged) leave(ofport uint32) {
	s.ports[ofport].state = prepluggedLeaving
	s.free = slices.DeleteFunc(s.free, func(other uint32) bool { return other == ofport })
}

func prepluggedRow(ofport uint32) (reconcile.Owner, map[ovsdb.Key]ovsdb.Row) {
	name := attach.PortName(ofport)
	o := reconcile.Owner(link.PrepluggedOwner(name))
	return o, host.PodRows(host.PodPort{Owner: o, Interface: name, OFPort: ofport})
}

// run creates and removes ports until ctx ends. It begins when the engines run.
func (s *preplugged) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.network.running:
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
func (s *preplugged) logOnce(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	words := ""
	if err != nil {
		words = err.Error()
	}
	s.mu.Lock()
	again := s.logged == words
	s.logged = words
	s.mu.Unlock()
	switch {
	case again || err == nil:
	case errors.Is(err, link.ErrNoNamespace):
		s.network.opts.Log.Info("no pre-plugged ports: the plugin creates their namespace with the next pod", "error", err)
	default:
		s.network.opts.Log.Warn("pre-plugging ports failed, trying again; pods get ports of their own meanwhile", "error", err)
	}
}

// remove removes the ports that are marked for it: rows first, so that the switch has released the links.
func (s *preplugged) remove(ctx context.Context) error {
	n := s.network
	s.mu.Lock()
	s.trim()
	var leaving []uint32
	for ofport, port := range s.ports {
		if port.state == prepluggedLeaving {
			leaving = append(leaving, ofport)
		}
	}
	s.mu.Unlock()
	if len(leaving) == 0 {
		return nil
	}
	rows, names := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}, make([]string, 0, len(leaving))
	for _, ofport := range leaving {
		o, _ := prepluggedRow(ofport)
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

// unshape removes what traffic shaping has left of removed ports.
func (s *preplugged) unshape(ctx context.Context, names []string) error {
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

// trim marks ports for removal when far more are free than desired. The caller holds mu.
func (s *preplugged) trim() {
	spare := s.network.opts.Spare
	if len(s.free) <= surplus*spare {
		return
	}
	for _, ofport := range slices.Clone(s.free[surplus*spare/2:]) {
		s.leave(ofport)
	}
}

// fill creates ports until Options.Spare are free. It begins once less than half of that are.
func (s *preplugged) fill(ctx context.Context) error {
	for lacking := s.lacking(false); lacking > 0 && ctx.Err() == nil; lacking = s.lacking(true) {
		if _, err := s.make(ctx, min(lacking, prepluggedGroup), prepluggedFree); err != nil {
			return err
		}
	}
	return nil
}

// lacking returns how many ports to create. Until fill has begun, it is 0 while at least half of Options.Spare are free.
func (s *preplugged) lacking(begun bool) int {
	spare := s.network.opts.Spare
	s.mu.Lock()
	defer s.mu.Unlock()
	if free := len(s.free); begun && free < spare || free < (spare+1)/2 {
		return spare - free
	}
	return 0
}

// makeTaken creates a port for a pod.
func (s *preplugged) makeTaken(ctx context.Context) (ofport uint32, err error) {
	defer s.wakeUp() // an unusable port is removed
	numbers, err := s.make(ctx, 1, prepluggedTaken)
	if err != nil {
		return 0, err
	}
	return numbers[0], nil
}

// make creates ports, free or taken, and waits until the switch has them.
func (s *preplugged) make(ctx context.Context, count int, state prepluggedState) ([]uint32, error) {
	n := s.network
	numbers, pairs, err := s.plan(count)
	if err != nil {
		return nil, err
	}
	if err = n.engines.Preplugged.CreatePreplugged(ctx, n.opts.Ports, pairs...); err == nil {
		rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
		for _, ofport := range numbers {
			o, row := prepluggedRow(ofport)
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
		if port := s.ports[ofport]; err == nil && state == prepluggedTaken {
			port.state = prepluggedTaken
		} else {
			s.release(ofport, port, err == nil)
		}
		if port := s.ports[ofport]; err == nil && port.seen != (link.HostEnd{}) && port.seen != s.end(port) {
			n.CheckHostEnds()
		}
	}
	return numbers, err
}

// plan picks numbers for new ports.
func (s *preplugged) plan(count int) (numbers []uint32, pairs []link.Preplugged, err error) {
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
		s.ports[ofport] = &prepluggedPort{state: prepluggedMaking, mtu: pair.MTU, txOffloadOff: pair.TxOffloadOff}
		s.mu.Unlock()
		pair.Name = attach.PortName(ofport)
		numbers, pairs = append(numbers, ofport), append(pairs, pair)
	}
	return numbers, pairs, nil
}
