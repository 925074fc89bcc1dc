// Package ports keeps the pods' ports of the switch, with the links behind them: it chooses addresses and numbers of ports (Numbers), keeps
// pre-plugged ports free (Preplugged), restores what another program changed (Ends), and deletes the links of closing pods (Unlinker). Each
// part has its own state under its own lock, which it holds across no I/O. Removals of what is on one pre-plugged port wait for each other.
//
// It compiles no flows, and depends on no other part of the overlay: attachments come as records.
package ports

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Engines are what ports are made with.
type Engines struct {
	Rows *reconcile.Loop[ovsdb.Key, ovsdb.Row]
	// Switch reports ports that the switch has added.
	Switch Switch
	// Pods makes and removes the pods' veth pairs.
	Pods podlink.Links
	// Preplugged creates and lists pre-plugged ports.
	Preplugged podlink.PrepluggedLinks
	// HostEnds restores host veths that another program changed.
	HostEnds HostEnds
	// Shapers limits the bandwidth of pods. Nil: no pod has limits.
	Shapers podlink.Shapers
}

// Switch reports the switch's ports.
type Switch interface {
	// Added returns a channel that is closed when the switch reports that it has added the port. It reports nothing about a port that the
	// switch has already. stop ends the wait.
	Added(name string, ofport uint32) (added <-chan struct{}, stop func())
}

// Live are the attachments whose ports are open or being opened.
type Live interface {
	// Each calls do for every one. None is opened or closed meanwhile. do must not block, and must not change the record.
	Each(do func(rec *attach.Record))
	IsLive(key attach.Key) bool
}

// Options of Ports.
type Options struct {
	// Network is the network's name in records. Required.
	Network string
	// BootID is the node's boot: links of former boots are gone.
	BootID string
	// Store has the records, and Records locks them. Both are required.
	Store   *attach.Store
	Records network.Records
	// Live are the network's attachments. Required.
	Live Live
	// Running is closed when the engines have started. Required.
	Running <-chan struct{}
	// Ready reports whether pods can be attached. Required.
	Ready func() bool
	// Namespace is the path of the namespace with the veth peers of pre-plugged ports.
	Namespace string
	// Spare is the number of pre-plugged ports that are kept free. 0: no free port is taken.
	Spare int
	// Rest is the least time that a pre-plugged port stays free. Default DefaultRest.
	Rest time.Duration
	// Now returns the time. Default time.Now.
	Now func() time.Time
	// Log gets what no caller receives as an error. Required.
	Log *slog.Logger
}

// Ports are the pods' ports of the switch, pre-plugged ones and those of one pod, with the links behind them.
type Ports struct {
	Numbers    *Numbers
	Preplugged *Preplugged
	Ends       *Ends
	Unlinker   *Unlinker

	engines *Engines
}

// New returns the ports of a network.
func New(engines Engines, opts Options) *Ports {
	if opts.Rest == 0 {
		opts.Rest = DefaultRest
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	p := &Ports{engines: &engines, Numbers: &Numbers{network: opts.Network, store: opts.Store}}
	pool := newPool(&opts)
	p.Ends = &Ends{
		engines: &engines, opts: &opts, pool: pool, wake: make(chan struct{}, 1), seen: map[attach.Key]podlink.HostEnd{}, unverified: true,
	}
	p.Preplugged = &Preplugged{pool: pool, engines: &engines, numbers: p.Numbers, checkEnds: p.Ends.Verify}
	p.Unlinker = newUnlinker(&engines, &opts, p.Preplugged)
	return p
}

// Run keeps pre-plugged ports free, restores links that another program changed, and deletes links, until ctx ends.
func (p *Ports) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { return p.Unlinker.run(ctx) })
	group.Go(func() error { return p.Ends.run(ctx) })
	group.Go(func() error { return p.Preplugged.run(ctx) })
	return group.Wait()
}

// Choice is how an attachment's address and port are chosen.
type Choice struct {
	Key attach.Key
	// Subnet is the node's pod subnet, and MTU the pods' MTU.
	Subnet netip.Prefix
	MTU    int
	// PrePlugged allows a pre-plugged port.
	PrePlugged bool
}

// Pick chooses an address and a port for an attachment, as Choose does, except that it creates a port when Choose needs a pre-plugged one
// and none is free.
func (p *Ports) Pick(ctx context.Context, rec *attach.Record, pod *cni.Args, from Choice) error {
	err := p.Choose(rec, from)
	if !errors.Is(err, errNonePreplugged) {
		return err
	}
	if err := p.Preplugged.makeTakenFor(ctx, rec, pod); err != nil {
		return err
	}
	from.PrePlugged = false
	if err = p.Choose(rec, from); err != nil {
		p.Preplugged.Give(rec.OFPort)
	}
	return err
}

// errNonePreplugged says that an attachment needs a pre-plugged port and none is free.
var errNonePreplugged = errors.New("no pre-plugged port is free")

// Choose picks an address and a port number that no record has. A port number that the record has already is kept.
func (p *Ports) Choose(rec *attach.Record, from Choice) error {
	port := func() (uint32, error) {
		ofport := rec.OFPort
		if ofport == 0 && from.PrePlugged {
			ofport, _ = p.Preplugged.take(from.MTU)
		}
		if ofport == 0 && rec.Bandwidth.Limited() {
			return 0, errNonePreplugged
		}
		return ofport, nil
	}
	address, ofport, err := p.Numbers.pick(from.Key, from.Subnet, port, p.Preplugged.Has)
	if err != nil {
		return err
	}
	rec.Addresses = []netip.Prefix{netip.PrefixFrom(address, from.Subnet.Bits())}
	rec.MAC = plan.MAC(rec.Addresses).String()
	rec.OFPort, rec.HostInterface = ofport, attach.PortName(ofport)
	return nil
}

// Plug adds the attachment's port to the switch, and returns when the switch has it: when the switch reports it (OFPT_PORT_STATUS) or its
// database does, whichever is first. The link must exist: the switch fails a port without one, and the row of a failed port is removed
// again, even if the link is created meanwhile.
func (p *Ports) Plug(ctx context.Context, rec *attach.Record) error {
	added, stop := p.engines.Switch.Added(rec.HostInterface, rec.OFPort)
	defer stop()
	committed := make(chan error, 1)
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner(rec): p.Preplugged.PodRows(rec)}
	go func() { committed <- p.engines.Rows.Apply(ctx, rows) }()
	select {
	case <-added:
		return nil
	case err := <-committed:
		return err
	}
}

// owner returns the owner of an attachment's fragments.
func owner(rec *attach.Record) reconcile.Owner { return reconcile.Owner(rec.Key().Owner()) }

func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
