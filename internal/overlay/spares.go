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

const (
	// DefaultSpares is how many ports a node keeps ahead: a burst of 32 pods over two nodes finds them there. Each costs the
	// switch some 45 us whenever it goes over its ports (measured, 100 ports in the userspace datapath).
	DefaultSpares = 16
	// lowSpares is the part of them below which more are made at once: 1/4. Until then it waits for a lull, so that the
	// switch makes ports when nobody waits for it.
	lowSpares = 4
	// DefaultLull is how long nobody may have taken a port before ports are made ahead and taken ones are named after
	// their pods. Pods that come one after the other, as a kubelet starts them, come within it.
	DefaultLull = time.Second
)

// spare is a port made ahead: a veth pair with its host end in the bridge, and no flows, so that it is closed. What there
// is of spares is told by the kernel's links: no record of them could be lost.
type spare struct {
	ofport uint32
	mtu    int
}

func (s spare) name() string { return attach.PortName(s.ofport) }

func (s spare) owner() reconcile.Owner { return reconcile.Owner(link.SpareOwner(s.name())) }

func (s spare) rows() map[ovsdb.Key]ovsdb.Row {
	return host.PodRows(host.PodPort{Owner: s.owner(), Interface: s.name(), OFPort: s.ofport})
}

func (s spare) link(settings *settings) link.Spare {
	return link.Spare{
		HostName: s.name(), MTU: s.mtu, HostGroup: settings.attachments.HostGroup, TxOffloadOff: settings.attachments.TxOffloadOff,
	}
}

// spares makes ports ahead, in groups: what the switch takes for one grows with all that it has, and one group takes it
// once. Every ADD takes its port from here, and waits for the next group when there is none.
type spares struct {
	network *Network
	size    int
	lull    time.Duration
	wake    chan struct{}

	mu sync.Mutex
	// mtu is what a spare must have.
	mtu int
	// known are all spares that no record claims: found, being made, ready, taken, and those to be removed.
	known map[uint32]spare
	// found are those that a former life left, to be looked after before they are ready.
	found []spare
	// ready are those that can be taken, the oldest first.
	ready []spare
	// retired are those to be removed.
	retired []spare
	// barred are ofports whose names somebody else's links have.
	barred map[uint32]bool
	// waiting are those who wait for a spare, the first first.
	waiting []chan taken
	// last is when one was taken.
	last time.Time
	// unnamed tells that rows of ports that were taken still have the spares' names.
	unnamed bool
	// doubtful tells that the ready ones are to be looked at.
	doubtful bool
	// busy tells that the keeper is at work.
	busy bool
}

// taken is what one who waits is given.
type taken struct {
	spare spare
	err   error
}

func newSpares(n *Network, size int, lull time.Duration) *spares {
	return &spares{
		network: n, size: size, lull: lull, wake: make(chan struct{}, 1),
		known: map[uint32]spare{}, barred: map[uint32]bool{},
	}
}

// take returns a spare, which is then the caller's: to give to a record, or back. It waits when there is none.
func (p *spares) take(ctx context.Context) (spare, error) {
	if err := ctx.Err(); err != nil {
		return spare{}, err
	}
	p.mu.Lock()
	p.last = time.Now()
	if len(p.ready) > 0 {
		s := p.ready[0]
		p.ready = p.ready[1:]
		p.mu.Unlock()
		p.wakeUp()
		return s, nil
	}
	turn := make(chan taken, 1)
	p.waiting = append(p.waiting, turn)
	p.mu.Unlock()
	p.wakeUp()
	select {
	case t := <-turn:
		return t.spare, t.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.waiting = slices.DeleteFunc(p.waiting, func(c chan taken) bool { return c == turn })
	p.mu.Unlock()
	select {
	case t := <-turn: // it came at the same time
		if t.err == nil {
			p.putBack(t.spare)
		}
	default:
	}
	return spare{}, fmt.Errorf("waiting for a port: %w", context.Cause(ctx))
}

// given tells that a record claims the spare from now on.
func (p *spares) given(s spare) {
	p.mu.Lock()
	delete(p.known, s.ofport)
	p.unnamed = true
	p.mu.Unlock()
	p.wakeUp()
}

// putBack returns a spare that was taken and is as it was.
func (p *spares) putBack(s spare) {
	p.mu.Lock()
	p.settle(s)
	p.mu.Unlock()
	p.wakeUp()
}

// settle gives a spare to who waits for one, or to the ready ones. The caller holds mu.
func (p *spares) settle(s spare) {
	switch {
	case s.mtu != p.mtu:
		p.retired = append(p.retired, s)
	case len(p.waiting) > 0:
		p.waiting[0] <- taken{spare: s}
		p.waiting = p.waiting[1:]
	case len(p.ready) >= p.size:
		p.retired = append(p.retired, s) // it was made for somebody who has given up
	default:
		p.ready = append(p.ready, s)
	}
}

// setMTU sets what spares have from now on. Others are removed.
func (p *spares) setMTU(mtu int) {
	p.mu.Lock()
	p.mtu = mtu
	p.ready = slices.DeleteFunc(p.ready, func(s spare) bool {
		if s.mtu != mtu {
			p.retired = append(p.retired, s)
		}
		return s.mtu != mtu
	})
	p.mu.Unlock()
	p.wakeUp()
}

func (p *spares) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// fragments are the rows of the spares that a former life left and that are kept.
func (p *spares) fragments() map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	for _, s := range slices.Concat(p.found, p.ready) {
		rows[s.owner()] = s.rows()
	}
	return rows
}

// takeOver sorts the pairs made ahead that a former life left: intact ones are spares again, as many as there should be;
// the others, unless a record has them, are removed. inPods are all pairs' owners by their names.
func (p *spares) takeOver(ctx context.Context, inPods map[string]string, recorded map[string]bool) error {
	n := p.network
	intact, err := n.engines.Pods.Spares(ctx)
	if err != nil {
		return fmt.Errorf("ports made ahead: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range intact {
		ofport, ok := attach.PortOf(s.HostName)
		if !ok || s.HostGroup != host.PodGroup || recorded[s.HostName] {
			continue
		}
		one := spare{ofport: ofport, mtu: s.MTU}
		p.known[ofport] = one
		if len(p.found) < p.size {
			p.found = append(p.found, one)
		} else {
			p.retired = append(p.retired, one)
		}
	}
	slices.SortFunc(p.found, func(a, b spare) int { return int(a.ofport) - int(b.ofport) })
	for name, owner := range inPods {
		ofport, ok := attach.PortOf(name)
		if _, known := p.known[ofport]; !ok || known || recorded[name] || owner != link.SpareOwner(name) {
			continue
		}
		n.opts.Log.Warn("a pod's link has no record, removing it", "link", name)
		p.known[ofport] = spare{ofport: ofport}
		p.retired = append(p.retired, p.known[ofport])
	}
	return nil
}

// run keeps spares until ctx ends. It begins when the engines run.
func (p *spares) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.network.running:
	}
	delay := firstReapRetry
	for {
		wait, err := p.tend(ctx)
		switch {
		case ctx.Err() != nil:
			p.fail(ctx.Err())
			return nil //nolint:nilerr // the end of ctx is why, and is no failure
		case err != nil:
			p.network.opts.Log.Warn("making ports ahead, trying again", "error", err)
			wait, delay = delay, min(2*delay, lastReapRetry)
		default:
			delay = firstReapRetry
		}
		p.sleep(ctx, wait)
	}
}

// sleep waits until there may be something to do; wait is when there will be, 0: nobody knows.
func (p *spares) sleep(ctx context.Context, wait time.Duration) {
	var due <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-p.wake:
	case <-due:
	}
}

// tend does what is due, and returns how long nothing will be if nothing happens; 0: for ever.
func (p *spares) tend(ctx context.Context) (time.Duration, error) {
	p.mu.Lock()
	p.busy = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.busy = false
		p.mu.Unlock()
	}()
	p.adopt(ctx)
	if err := p.checkIfDoubtful(ctx); err != nil {
		return 0, err
	}
	p.mu.Lock()
	urgent := len(p.waiting) > 0 || len(p.ready) < p.size/lowSpares
	need := max(len(p.waiting)+p.size-len(p.ready), 0)
	housekeeping := need > 0 || p.unnamed || len(p.retired) > 0
	quiet := p.lull - time.Since(p.last)
	p.mu.Unlock()
	switch {
	case urgent:
		return time.Nanosecond, p.make(ctx, need) // and look again
	case !housekeeping:
		return 0, nil
	case quiet > 0:
		return quiet, nil
	}
	if err := p.remove(ctx); err != nil {
		return 0, err
	}
	return time.Nanosecond, p.make(ctx, need)
}

// make makes spares, all in one go, and has the rows of those that were taken named after their pods on the way.
func (p *spares) make(ctx context.Context, count int) error {
	n := p.network
	made, err := p.choose(count)
	s := n.settings.Load()
	links := make([]link.Spare, len(made))
	for i := range made {
		links[i] = made[i].link(s)
	}
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	for i, failed := range n.engines.Pods.Prepare(ctx, links...) {
		if failed == nil {
			rows[made[i].owner()] = made[i].rows()
		} else {
			err = failed
			p.drop(made[i], failed)
		}
	}
	p.mu.Lock()
	p.unnamed = false
	p.mu.Unlock()
	applied := n.engines.Rows.Apply(ctx, rows)
	for _, one := range made {
		if rows[one.owner()] == nil {
			continue
		}
		failed := n.engines.Rows.Failure(one.owner())
		if errors.Is(applied, reconcile.ErrUnavailable) || ctx.Err() != nil {
			failed = applied
		}
		if failed != nil {
			err = failed
			p.drop(one, failed)
			continue
		}
		p.mu.Lock()
		p.settle(one)
		p.mu.Unlock()
	}
	if err != nil {
		p.fail(err)
	}
	return err
}

// choose picks ofports for new spares; an error says why there are fewer than asked for.
func (p *spares) choose(count int) (made []spare, err error) {
	n := p.network
	// In this order: a spare that is given to a record meanwhile is in one of the two.
	p.mu.Lock()
	taken := map[uint32]bool{}
	for ofport := range p.known {
		taken[ofport] = true
	}
	for ofport := range p.barred {
		taken[ofport] = true
	}
	mtu := p.mtu
	p.mu.Unlock()
	inUse := n.store.InUse()
	n.picking.Lock()
	for range count {
		var ofport uint32
		ofport, err = n.ofports.Pick(func(o uint32) bool { return taken[o] || held(inUse.OFPorts, o) })
		if err != nil {
			break
		}
		taken[ofport] = true
		made = append(made, spare{ofport: ofport, mtu: mtu})
	}
	n.picking.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range made {
		p.known[one.ofport] = one
	}
	return made, err
}

// drop gives up a spare that could not be made.
func (p *spares) drop(s spare, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(why, link.ErrForeign) {
		p.barred[s.ofport] = true
		delete(p.known, s.ofport)
		return
	}
	p.retired = append(p.retired, s)
}

// fail tells those who wait that there will be no spare for them.
func (p *spares) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, turn := range p.waiting {
		turn <- taken{err: err}
	}
	p.waiting = nil
}

// remove removes the retired spares.
func (p *spares) remove(ctx context.Context) error {
	n := p.network
	p.mu.Lock()
	retired := slices.Clone(p.retired)
	p.mu.Unlock()
	if len(retired) == 0 {
		return nil
	}
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	var names []string
	for _, s := range retired {
		rows[s.owner()] = nil
		names = append(names, s.name())
	}
	if err := n.engines.Rows.Apply(ctx, rows); err != nil {
		return fmt.Errorf("removing ports made ahead: %w", err)
	}
	if err := n.engines.Pods.Delete(ctx, names...); err != nil && !errors.Is(err, link.ErrForeign) {
		return fmt.Errorf("removing links made ahead: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range retired {
		delete(p.known, s.ofport)
	}
	p.retired = slices.DeleteFunc(p.retired, func(s spare) bool { return slices.Contains(retired, s) })
	return nil
}

// adopt completes what a former life left, and makes it ready.
func (p *spares) adopt(ctx context.Context) {
	p.mu.Lock()
	found := p.found
	p.found = nil
	p.mu.Unlock()
	if len(found) == 0 {
		return
	}
	n, s := p.network, p.network.settings.Load()
	links := make([]link.Spare, len(found))
	for i := range found {
		links[i] = found[i].link(s)
	}
	for i, failed := range n.engines.Pods.Prepare(ctx, links...) {
		failed = errors.Join(failed, n.engines.Rows.Failure(found[i].owner()))
		p.mu.Lock()
		if failed != nil {
			p.retired = append(p.retired, found[i])
		} else {
			p.settle(found[i])
		}
		p.mu.Unlock()
	}
}

// CheckSpares has the spares looked at, and those made anew that somebody has changed. It is for whoever is told of changes
// of ports, and does not wait.
func (n *Network) CheckSpares() {
	n.spares.mu.Lock()
	n.spares.doubtful = true
	n.spares.mu.Unlock()
	n.spares.wakeUp()
}

func (p *spares) checkIfDoubtful(ctx context.Context) error {
	p.mu.Lock()
	doubtful := p.doubtful
	p.doubtful = false
	p.mu.Unlock()
	if !doubtful {
		return nil
	}
	return p.check(ctx)
}

// check retires the ready spares that are not as they were made.
func (p *spares) check(ctx context.Context) error {
	p.mu.Lock()
	before := slices.Clone(p.ready)
	p.mu.Unlock()
	list, err := p.network.engines.Pods.Spares(ctx)
	if err != nil {
		return fmt.Errorf("ports made ahead: %w", err)
	}
	intact := map[string]bool{}
	for _, s := range list {
		intact[s.HostName] = s.HostGroup == host.PodGroup
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = slices.DeleteFunc(p.ready, func(s spare) bool {
		damaged := slices.Contains(before, s) && !intact[s.name()]
		if damaged {
			p.network.opts.Log.Warn("a port made ahead was changed by somebody else, and is made anew", "port", s.name())
			p.retired = append(p.retired, s)
		}
		return damaged
	})
	p.wakeUp()
	return nil
}

// atRest reports whether there is nothing to do, as tests want to know.
func (p *spares) atRest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.busy && len(p.waiting)+len(p.retired)+len(p.found) == 0 && len(p.ready) == p.size && len(p.known) == p.size && !p.unnamed && !p.doubtful
}
