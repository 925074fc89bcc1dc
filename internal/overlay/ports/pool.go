package ports

import (
	"errors"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/host"
)

// pool is the state of the pre-plugged ports: which are free, taken, unusable. It does no I/O: Preplugged creates and removes ports.
//
// A port serves one pod after another: it goes from free to taken and back. It is removed only when it is unusable, or when far more ports
// are free than are ever taken at once.
type pool struct {
	opts *Options
	// wake is signalled when ports may have to be created or removed.
	wake chan struct{}

	// mu guards what follows. It is not held across I/O.
	mu sync.Mutex
	// shape is the desired configuration of ports; its Name is empty.
	shape podlink.Preplugged
	ports map[uint32]*prepluggedPort
	// free are the numbers of the free ports, the one that has been free longest first. It is taken next, so that nothing in the switch refers
	// to its former pod any more.
	free []uint32
}

func newPool(opts *Options) *pool {
	return &pool{opts: opts, wake: make(chan struct{}, 1), ports: map[uint32]*prepluggedPort{}}
}

// prepluggedPort is one pre-plugged port.
type prepluggedPort struct {
	state        portState
	mtu          int
	txOffloadOff bool
	// freed is when its last pod was removed.
	freed time.Time
	// clean says that nothing is on the port; condemned, that it must not be used again; lingersSince is since when something is on it that should
	// not be.
	clean, condemned bool
	lingersSince     time.Time
	// seen is the last reported state of its host veth.
	seen podlink.HostEnd
	// user is the pod that the port's row names.
	user host.PortUser
}

// fits reports whether the port has the configuration shape. Before Configure, when shape is empty, every port does.
func (p *prepluggedPort) fits(shape *podlink.Preplugged) bool {
	return shape.MTU == 0 || p.mtu == shape.MTU && p.txOffloadOff == shape.TxOffloadOff
}

// end returns the desired host veth of the port.
func (p *prepluggedPort) end(shape *podlink.Preplugged) podlink.HostEnd {
	return podlink.HostEnd{MTU: p.mtu, Group: shape.HostGroup, Up: true}
}

type portState int

const (
	portMaking portState = iota
	portFree
	portTaken
	portLeaving
)

const (
	// DefaultRest is the least time that a port stays free. By then the switch has revalidated what it has cached for the former pod (Open
	// vSwitch's max-revalidator is half of it).
	DefaultRest = time.Second
	// lingering is how long something may be on a port after its pod was removed: the kernel deletes namespaces asynchronously.
	lingering = 5 * time.Second
	// Surplus times Options.Spare is how many ports may be free before those above half of that are removed.
	Surplus = 4
)

// wakeUp makes run check whether to create or remove ports.
func (p *pool) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// take returns the number of a free port, if there is one that fits.
func (p *pool) take(mtu int) (ofport uint32, ok bool) {
	defer p.wakeUp()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 || p.opts.Spare == 0 {
		return 0, false
	}
	ofport = p.free[0]
	port := p.ports[ofport]
	if port.mtu != mtu || p.opts.Now().Sub(port.freed) < p.opts.Rest {
		return 0, false
	}
	p.free = p.free[1:]
	port.state, port.clean = portTaken, false
	return ofport, true
}

// Give returns a port, which becomes free or, if it was condemned, is removed. A port that is not pre-plugged or not taken is ignored.
func (p *pool) Give(ofport uint32) {
	defer p.wakeUp()
	p.mu.Lock()
	defer p.mu.Unlock()
	if port := p.ports[ofport]; port != nil && port.state == portTaken {
		port.freed = p.opts.Now()
		p.release(ofport, port, true)
	}
}

// release makes a port free, or marks it for removal. The caller holds mu.
func (p *pool) release(ofport uint32, port *prepluggedPort, whole bool) {
	if !whole || port.condemned || !port.fits(&p.shape) {
		port.state = portLeaving
		return
	}
	port.state, port.lingersSince, port.user = portFree, time.Time{}, host.PortUser{}
	p.free = append(p.free, ofport)
}

// seat notes the pod that a taken port's row names, and calls program, which hands over the row and must not block.
func (p *pool) seat(ofport uint32, user host.PortUser, program func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if port := p.ports[ofport]; port != nil && port.state == portTaken {
		port.user = user
		program()
	}
}

// Discard marks an unusable port for removal.
func (p *pool) Discard(ofport uint32) {
	p.mark(ofport, func(port *prepluggedPort) { port.condemned = true })
	p.Give(ofport)
}

// clean notes that nothing is on a port any more.
func (p *pool) clean(ofport uint32) {
	p.mark(ofport, func(port *prepluggedPort) { port.clean = true })
}

func (p *pool) mark(ofport uint32, how func(*prepluggedPort)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if port := p.ports[ofport]; port != nil && port.state == portTaken {
		how(port)
	}
}

// isClean reports whether nothing is known to be on a port.
func (p *pool) isClean(ofport uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	port := p.ports[ofport]
	return port != nil && port.clean
}

// hopeless reports whether a port from which a pod's interface cannot be removed must not be used again, and condemns it if so: removing
// the port removes what is on it as well.
func (p *pool) hopeless(rec *attach.Record, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	port := p.ports[rec.OFPort]
	switch {
	case err == nil || port == nil:
		return false
	case errors.Is(err, link.ErrNoDevice) || errors.Is(err, link.ErrForeign):
	case !errors.Is(err, podlink.ErrOccupied):
		return false
	case port.condemned:
	case port.lingersSince.IsZero():
		port.lingersSince = p.opts.Now()
		return false
	case p.opts.Now().Sub(port.lingersSince) < lingering:
		return false
	}
	port.condemned = true
	return true
}

// missing marks free ports for removal whose links another program has deleted. A pod on such a port keeps it until it is detached.
func (p *pool) missing(have map[string]podlink.HostEnd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ofport := range slices.Clone(p.free) {
		if _, there := have[attach.PortName(ofport)]; !there {
			p.leave(ofport)
			p.wakeUp()
		}
	}
}

// Has reports whether a number is that of a pre-plugged port.
func (p *pool) Has(ofport uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ports[ofport] != nil
}

// List returns the numbers of the free ports, of the taken ones, and of those that are being created or removed.
func (p *pool) List() (free, taken, unfinished []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ofport, port := range p.ports {
		switch port.state {
		case portFree:
			free = append(free, ofport)
		case portTaken:
			taken = append(taken, ofport)
		case portMaking, portLeaving:
			unfinished = append(unfinished, ofport)
		}
	}
	return free, taken, unfinished
}

// ends returns the desired host veths of pre-plugged ports, by name.
func (p *pool) ends() map[string]podlink.HostEnd {
	p.mu.Lock()
	defer p.mu.Unlock()
	ends := make(map[string]podlink.HostEnd, len(p.ports))
	for ofport, port := range p.ports {
		if port.state == portFree || port.state == portTaken {
			ends[attach.PortName(ofport)] = port.end(&p.shape)
		}
	}
	return ends
}

// changed notes the state of a host veth, and reports whether it has to be restored.
func (p *pool) changed(name string, now podlink.HostEnd) bool {
	ofport, ok := attach.PortNumber(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	port := p.ports[ofport]
	if !ok || port == nil {
		return false
	}
	port.seen = now
	return (port.state == portFree || port.state == portTaken) && now != port.end(&p.shape)
}

// leave marks a free port for removal. The caller holds mu.
func (p *pool) leave(ofport uint32) {
	p.ports[ofport].state = portLeaving
	p.free = slices.DeleteFunc(p.free, func(other uint32) bool { return other == ofport })
}

// trim marks ports for removal when far more are free than desired. The caller holds mu.
func (p *pool) trim() {
	spare := p.opts.Spare
	if len(p.free) <= Surplus*spare {
		return
	}
	for _, ofport := range slices.Clone(p.free[Surplus*spare/2:]) {
		p.leave(ofport)
	}
}

// lacking returns how many ports to create. Until fill has begun, it is 0 while at least half of Options.Spare are free.
func (p *pool) lacking(begun bool) int {
	spare := p.opts.Spare
	p.mu.Lock()
	defer p.mu.Unlock()
	if free := len(p.free); begun && free < spare || free < (spare+1)/2 {
		return spare - free
	}
	return 0
}

// conform sets the desired configuration of ports, and marks free ports that do not fit it for removal. It calls program with the other
// ports, free and taken ones, of which none is removed meanwhile. program must not block.
func (p *pool) conform(shape podlink.Preplugged, program func(ports map[uint32]host.PortUser)) {
	defer p.wakeUp()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shape = shape
	ports := map[uint32]host.PortUser{}
	for ofport, port := range p.ports {
		if port.state == portFree && !port.fits(&p.shape) {
			p.leave(ofport)
		}
		if port.state == portFree || port.state == portTaken {
			ports[ofport] = port.user
		}
	}
	program(ports)
}

// adopt makes the pool that of a former process: found are the existing ports, by name, and taken the records that name a port.
// A port on which something is that no record names is marked for removal.
func (p *pool) adopt(found map[string]podlink.PrepluggedPort, taken map[uint32]attach.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports, p.free = map[uint32]*prepluggedPort{}, nil
	for name, listed := range found {
		ofport, ok := attach.PortNumber(name)
		if !ok {
			continue
		}
		port := &prepluggedPort{mtu: listed.MTU, txOffloadOff: listed.TxOffloadOff, state: portTaken}
		p.ports[ofport] = port
		if rec, ok := taken[ofport]; ok {
			port.mtu = rec.MTU
			if rec.State == attach.Attached {
				port.user = host.UserOf(&rec)
			}
		} else {
			p.release(ofport, port, listed.Idle)
		}
	}
	slices.Sort(p.free)
}

// leaving returns the ports to remove: those that are marked, and free ones if there are far too many.
func (p *pool) leaving() (ports []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trim()
	for ofport, port := range p.ports {
		if port.state == portLeaving {
			ports = append(ports, ofport)
		}
	}
	return ports
}

// removed forgets ports that do not exist any more.
func (p *pool) removed(ports []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ofport := range ports {
		delete(p.ports, ofport)
	}
}

// making adds a port that is about to be created, and returns its configuration.
func (p *pool) making(ofport uint32) podlink.Preplugged {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports[ofport] = &prepluggedPort{state: portMaking, mtu: p.shape.MTU, txOffloadOff: p.shape.TxOffloadOff}
	pair := p.shape
	pair.Name = attach.PortName(ofport)
	return pair
}

// made notes the result of the creation of ports, which are free or taken now, or are removed. It reports whether the host veth of one was
// changed meanwhile.
func (p *pool) made(ports []uint32, state portState, err error) (altered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ofport := range ports {
		if errors.Is(err, link.ErrNoNamespace) {
			delete(p.ports, ofport) // nothing was made
			continue
		}
		port := p.ports[ofport]
		if err == nil && state == portTaken {
			port.state = portTaken
		} else {
			p.release(ofport, port, err == nil)
		}
		altered = altered || err == nil && port.seen != (podlink.HostEnd{}) && port.seen != port.end(&p.shape)
	}
	return altered
}
