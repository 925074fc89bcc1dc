package overlay

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// podPorts are the pods' ports of the switch, pre-plugged ones and those of one pod, with the links behind them.
type podPorts struct {
	engines *Engines
	opts    *Options
	// ready reports whether pods can be attached.
	ready func() bool

	numbers    numbers
	preplugged *preplugged
	ends       *ends
	unlinker   *unlinker
}

// newPorts returns the ports of a network. running is closed when the engines have started.
func newPorts(n *Network, live livePods) *podPorts {
	p := &podPorts{engines: &n.engines, opts: &n.opts, ready: func() bool { return n.pods.settings.Load() != nil }, numbers: numbers{store: n.store}}
	pool := newPortPool(p.opts)
	p.ends = &ends{
		engines: p.engines, opts: p.opts, live: live, pool: pool, running: n.running,
		wake: make(chan struct{}, 1), seen: map[attach.Key]link.HostEnd{}, unverified: true,
	}
	p.preplugged = &preplugged{
		portPool: pool, engines: p.engines, store: n.store, numbers: &p.numbers, running: n.running, checkEnds: p.ends.verify,
	}
	p.unlinker = newUnlinker(p)
	return p
}

// run keeps pre-plugged ports free, restores links that another program changed, and deletes links, until ctx ends.
func (p *podPorts) run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { return p.unlinker.run(ctx) })
	group.Go(func() error { return p.ends.run(ctx) })
	group.Go(func() error { return p.preplugged.run(ctx) })
	return group.Wait()
}

// choice is how an attachment's address and port are chosen.
type choice struct {
	key attach.Key
	// prePlugged allows a pre-plugged port.
	prePlugged bool
}

// pick is choose, except that it creates a port when choose needs a pre-plugged one and none is free.
func (p *podPorts) pick(ctx context.Context, s *settings, rec *attach.Record, pod *cni.Args, from choice) error {
	err := p.choose(s, rec, from)
	if !errors.Is(err, errNonePreplugged) {
		return err
	}
	if err := p.preplugged.makeTakenFor(ctx, rec, pod); err != nil {
		return err
	}
	from.prePlugged = false
	if err = p.choose(s, rec, from); err != nil {
		p.preplugged.give(rec.OFPort)
	}
	return err
}

// errNonePreplugged says that an attachment needs a pre-plugged port and none is free.
var errNonePreplugged = errors.New("no pre-plugged port is free")

// choose picks an address and a port number that no record has. A port number that the record has already is kept.
func (p *podPorts) choose(s *settings, rec *attach.Record, from choice) error {
	port := func() (uint32, error) {
		ofport := rec.OFPort
		if ofport == 0 && from.prePlugged {
			ofport, _ = p.preplugged.take(s.mtu)
		}
		if ofport == 0 && rec.Bandwidth.Limited() {
			return 0, errNonePreplugged
		}
		return ofport, nil
	}
	address, ofport, err := p.numbers.pick(from.key, s.view.Local.Subnet, port, p.preplugged.has)
	if err != nil {
		return err
	}
	rec.Addresses = []netip.Prefix{netip.PrefixFrom(address, s.view.Local.Subnet.Bits())}
	rec.MAC = plan.MAC(rec.Addresses).String()
	rec.OFPort, rec.HostInterface = ofport, attach.PortName(ofport)
	return nil
}

// plug adds the attachment's port to the switch, and returns when the switch has it: when the switch reports it (OFPT_PORT_STATUS) or its
// database does, whichever is first. The link must exist: the switch fails a port without one, and the row of a failed port is removed
// again, even if the link is created meanwhile.
func (p *podPorts) plug(ctx context.Context, rec *attach.Record) error {
	added, stop := p.engines.Ports.Added(rec.HostInterface, rec.OFPort)
	defer stop()
	portCtx, done := startCommit(ctx, stepPort)
	committed := make(chan error, 1)
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner(rec.Key()): p.preplugged.rows(rec)}
	go func() { committed <- p.engines.Rows.Apply(portCtx, rows) }()
	select {
	case <-added:
		done(nil)
		return nil
	case err := <-committed:
		done(err)
		return err
	}
}
