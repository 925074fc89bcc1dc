// Package node is the flannel network on one node of the agent: the node's lease and the connections to other nodes as in `weft flanneld`,
// and pods that are ports of a kernel bridge, as the configuration's delegate defines.
//
// A pod's packet passes, in this order: the table of the bridge family, where port, MAC and address must match (in ARP too); the lease's
// table, which keeps it out of tunnels; the judge, which enforces NetworkPolicies in the forward and input hooks; the bridge, the tunnel
// device or the uplink. A pod becomes a port of the bridge once the tables of bridge and judge have its items; before that, a device group keeps its packets
// from the node.
package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/address"
	"weft.dev/weft/internal/flannel/daemon"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/flannel/judge"
	"weft.dev/weft/internal/flannel/published"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/nft/nftnl"
	machine "weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/timing"
)

// Name is the network's name, in annotations, records, metrics and logs.
const Name = "flannel"

// owner is the owner of the items that exist without pods.
const owner reconcile.Owner = "flannel"

// Leases maintain this node's lease, and the connections to other nodes.
type Leases interface {
	// Run calls established whenever a lease is in effect, until ctx ends.
	Run(ctx context.Context, established func(daemon.State)) error
	// Ready returns why no lease is in effect yet.
	Ready() error
}

// Judge enforces NetworkPolicies on the pods of this node. A pod must be kept from the bridge until it is admitted.
type Judge interface {
	// Run follows policies until ctx ends.
	Run(ctx context.Context) error
	// HandedOver is closed once all policies are known.
	HandedOver() <-chan struct{}
	// Admit returns once the pods' verdicts are in effect. The first call, after HandedOver, has all attached pods. A pod may be admitted
	// again.
	Admit(ctx context.Context, pods []judge.Pod) error
	// Dismiss withdraws the verdicts of pods. It does not wait. Pods that were isolated stay closed until Left.
	Dismiss(keys []attach.Key)
	// Alone notes that the bridge has no other ports than those of admitted pods.
	Alone()
	// Left notes dismissed pods that are no ports of the bridge any more.
	Left(keys []attach.Key)
}

// Options of a Network.
type Options struct {
	Node    *machine.Node
	Records network.Records
	// Conf returns the current cni-conf.json.
	Conf   func(ctx context.Context) ([]byte, error)
	Leases Leases
	// Judge enforces NetworkPolicies on the ports of Bridge; "": a bridge with any name.
	Judge  Judge
	Bridge string
	// Closed are the UDP ports of tunnels between nodes, which are never translated to pods.
	Closed []uint16
	// Results is the container runtime's directory of ADD results, from which pods of flannel's plugin are found; "": none.
	Results string
	// Log receives reports about unreadable records. Nil: none.
	Log *slog.Logger
	// Changed is called when the result of Ready may have changed.
	Changed func()
	// Conflict is called when the network starts for each pod that lacks a host port because another pod has it. Nil: it is only logged.
	Conflict func(rec *attach.Record, why error)
	// Report replaces the network's section of the node's NodeNetwork. Nil: there is none.
	Report func(weftv1.NodeNetworkSection)
}

// Network is the network on this node. It implements network.Network and network.Runner.
type Network struct {
	opts      Options
	engine    *nftnl.Engine
	ports     *portLoop
	addresses *addresses
	handed    chan struct{}
	mac       net.HardwareAddr // the bridge's, from its first programming on
	ends      *ends
	tracked   *conntrack.Table
	kernel    *netlink.Handle
	hostPorts *publish.Publisher
	// forwarding is on while the node's pods have IPv6 addresses.
	forwarding forwarding

	// mu guards what follows. It is not held across I/O.
	mu     sync.Mutex
	bridge *bridge // nil before the first lease
	why    error   // why there is no bridge
	// shut are the attachments that were closed: a new attachment with the same key is another pod's.
	shut map[attach.Key]bool

	// reporting guards conflicts, the number of pods that were last reported to lack a host port. It is held until Report returns, so that the
	// section of the newest state is the last one.
	reporting sync.Mutex
	conflicts int
}

var (
	_ network.Network   = (*Network)(nil)
	_ network.Runner    = (*Network)(nil)
	_ network.Discarder = (*Network)(nil)
)

// New returns the network in the caller's network namespace. It changes nothing before Run, which has to be called.
func New(opts Options) (*Network, error) {
	engine, err := nftnl.NewEngine(nftnl.Options{Family: nftnl.FamilyBridge, Table: portsTable})
	if err != nil {
		return nil, err
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	tracked, err := conntrack.New("")
	if err != nil {
		engine.Close()
		return nil, err
	}
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		engine.Close()
		tracked.Close()
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &Network{
		opts: opts, engine: engine, tracked: tracked, kernel: kernel, forwarding: openForwarding(),
		handed: make(chan struct{}), ends: newEnds(), why: errors.New("starting"), shut: map[attach.Key]bool{},
		addresses: newAddresses(&opts), hostPorts: publish.New(publish.Options{
			Rules: opts.Node.Rules, Compile: published.Compile(opts.Closed), IPv6: true, Reserved: opts.Node.Reserved, Tracked: tracked, BootID: opts.Node.BootID,
			Attached: opts.Records.Attached, Conflict: opts.Conflict, Log: opts.Log,
		}),
		ports: reconcile.NewLoop(engine, reconcile.Options[nftnl.Key, nftnl.Item]{Name: "nftables " + portsTable}),
	}, nil
}

// HandedOver implements network.Runner.
func (n *Network) HandedOver() <-chan struct{} { return n.handed }

// Ready implements network.Network.
func (n *Network) Ready() error {
	if _, err := n.current(); err != nil {
		return err
	}
	select {
	case <-n.handed:
		return nil
	default:
		return errors.New("its bridge and rules have not been programmed yet")
	}
}

// current returns the bridge, or why there is none.
func (n *Network) current() (*bridge, error) {
	n.mu.Lock()
	b, why := n.bridge, n.why
	n.mu.Unlock()
	switch {
	case b != nil:
		return b, filtered()
	case why != nil:
		return nil, why
	}
	if err := n.opts.Leases.Ready(); err != nil {
		return nil, fmt.Errorf("no lease is in effect: %w", err)
	}
	return nil, errors.New("no lease is in effect yet")
}

// filtered returns an error if packets between pods of this node bypass its rules.
func filtered() error {
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil {
		return fmt.Errorf("NetworkPolicies cannot be enforced between pods of this node: the kernel module br_netfilter is not loaded: "+
			"run modprobe br_netfilter on the node, and name it in a file of /etc/modules-load.d: %w", err)
	}
	return nil
}

// Plan implements network.Network.
func (n *Network) Plan(ctx context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error) {
	if at.Part != "" {
		return attach.Record{}, cni.Errorf(cni.CodeRefused, "network %s has no parts: write %q instead of %q", Name, Name, Name+"/"+at.Part)
	}
	b, err := n.current()
	if err != nil {
		return attach.Record{}, cni.Errorf(cni.CodeTryAgainLater, "network %s: %w", Name, err)
	}
	long, err := address.Duration(at.Annotations)
	if err != nil {
		return attach.Record{}, refused(req, err)
	}
	addresses, err := n.addresses.choose(ctx, req, b, at.Annotations, inUse.Addresses[Name])
	if err != nil {
		return attach.Record{}, err
	}
	rec, err := newRecord(b, hostName(req), addresses, origin{Reason: at.Reason, Sticky: long})
	if err != nil {
		return rec, cni.Errorf(cni.CodeInternal, "network %s: %w", Name, err)
	}
	rec.HostPorts, err = n.hostPorts.Requested(req, addresses...)
	return rec, err
}

// hostName returns the name of a host veth, which depends only on the attachment.
func hostName(req *cni.Request) string {
	sum := sha256.Sum256([]byte(req.ContainerID + "/" + req.IfName))
	return "wf" + hex.EncodeToString(sum[:6])
}

// The steps of an ADD below connect, in metrics and traces. All but the last run side by side.
const (
	// stepLink creates the veth pair, and configures it in the pod.
	stepLink = "link"
	// stepAddresses programs the check of the port's addresses, and stepPolicies the pod's NetworkPolicies.
	stepAddresses = "addresses"
	stepPolicies  = "policies"
	// stepFiles writes the files of flannel's plugins, and programs host ports.
	stepFiles = "files"
	// stepPort makes the host veth a port of the bridge, and writes the record.
	stepPort = "port"
)

// Connect implements network.Network. Everything of the pod is made at the same time, but the pod joins the bridge only when all of it is
// there: the rules, and the files by which host-local's addresses are the pod's.
func (n *Network) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	d, err := detailsOf(rec)
	if err != nil {
		return nil, err
	}
	pair, err := d.pair(rec)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	delete(n.shut, rec.Key())
	n.mu.Unlock()
	var created podlink.Created
	group, groupCtx := errgroup.WithContext(ctx)
	step := func(name string, run func(context.Context) error) {
		group.Go(func() error { return timing.Run(groupCtx, name, run) })
	}
	step(stepLink, func(ctx context.Context) (err error) {
		created, err = n.opts.Node.Pods.Create(ctx, pair)
		return err
	})
	step(stepAddresses, func(ctx context.Context) error { return n.ports.Apply(ctx, portFragment(rec, portItems(rec))) })
	step(stepPolicies, func(ctx context.Context) error { return n.opts.Judge.Admit(ctx, []judge.Pod{judge.PodOf(rec)}) })
	step(stepFiles, func(ctx context.Context) error {
		if err := d.write(rec); err != nil {
			return err
		}
		return n.hostPorts.Publish(ctx, rec) // only now are the addresses certainly the pod's
	})
	switch err := group.Wait(); {
	case errors.Is(err, handover.ErrReserved):
		return nil, replan(ctx, n, rec, err)
	case err != nil:
		return nil, err
	}
	if err := timing.Run(ctx, stepPort, func(ctx context.Context) error { return join(ctx, n, rec, &d) }); err != nil {
		return nil, err
	}
	return d.result(rec, created.HostMAC), nil
}

// withdrawTimeout is how long an ADD removes what it has made before it is planned again.
const withdrawTimeout = 10 * time.Second

// replan returns ErrPlanAgain once nothing is left of what an ADD has made for an address that is another container's. An attachment that
// was complete before stays: the caller removes it.
func replan(ctx context.Context, n *Network, rec *attach.Record, reserved error) error {
	if rec.State != attach.Attached {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
		defer cancel()
		if err := withdraw(ctx, n, []attach.Record{*rec}); err != nil {
			return errors.Join(err, reserved)
		}
	}
	return fmt.Errorf("%w: %w", network.ErrPlanAgain, reserved)
}

// join makes a pod a port of the bridge. Meanwhile it marks the record as attached: all else is in effect, and if the agent ends now, the
// next one makes the port of the record.
func join(ctx context.Context, n *Network, rec *attach.Record, d *details) error {
	var group errgroup.Group
	if rec.State != attach.Attached {
		rec.State = attach.Attached
		attached := *rec
		group.Go(func() error {
			if err := n.opts.Records.Put(ctx, attached); err != nil {
				return cni.Errorf(cni.CodeIO, "%w", err)
			}
			return nil
		})
	}
	err := n.opts.Node.Links.Apply(ctx, map[reconcile.Owner]map[link.Key]link.Item{linkOwner(rec): d.port(rec)})
	if errors.Is(err, unix.EXFULL) {
		err = cni.Errorf(cni.CodeRefused, "bridge %s is full: the kernel's bridges have 1,023 ports", d.Bridge)
	}
	return errors.Join(err, group.Wait())
}

func linkOwner(rec *attach.Record) reconcile.Owner { return reconcile.Owner(rec.Key().Owner()) }

func portFragment(rec *attach.Record, fragment items) map[reconcile.Owner]map[nftnl.Key]nftnl.Item {
	return map[reconcile.Owner]map[nftnl.Key]nftnl.Item{linkOwner(rec): fragment}
}

// Close implements network.Network: without its elements, the pod's port drops everything that the pod sends, and the judge drops new
// connections to the pod. No host port leads to it any more. Remove deletes the link, which takes the kernel a while; if the tables do not
// exist yet, Close deletes it.
func (n *Network) Close(ctx context.Context, rec attach.Record) error {
	n.mu.Lock()
	n.shut[rec.Key()] = true
	n.mu.Unlock()
	n.addresses.keep(&rec)
	n.opts.Judge.Dismiss([]attach.Key{rec.Key()})
	withdrawn := n.hostPorts.Withdraw(rec)
	n.opts.Node.Links.Set(map[reconcile.Owner]map[link.Key]link.Item{linkOwner(&rec): nil})
	var err error
	select {
	case <-n.handed:
		err = errors.Join(n.ports.Apply(ctx, portFragment(&rec, nil)), n.hostPorts.Await(ctx, withdrawn))
		if err == nil {
			return nil
		}
	default:
		n.ports.Set(portFragment(&rec, nil))
	}
	return errors.Join(err, n.opts.Node.Pods.Delete(ctx, rec.HostInterface))
}

// Remove implements network.Network.
func (n *Network) Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error {
	failed := map[attach.Key]error{}
	err := withdraw(ctx, n, recs)
	for i := range recs {
		if recs[i].BootID != n.opts.Node.BootID { // it was never closed
			n.addresses.keep(&recs[i])
		}
		d, broken := detailsOf(&recs[i])
		if broken == nil && err == nil {
			broken = d.Remove(&recs[i])
		}
		if wrong := errors.Join(err, broken); wrong != nil {
			failed[recs[i].Key()] = wrong
		}
	}
	n.mu.Lock()
	for i := range recs {
		if key := recs[i].Key(); failed[key] == nil {
			delete(n.shut, key)
		}
	}
	n.mu.Unlock()
	n.conflictsEnded()
	return failed
}

// withdraw removes what the kernel has of attachments.
func withdraw(ctx context.Context, n *Network, recs []attach.Record) error {
	var names []string
	var keys []attach.Key
	links, ports := map[reconcile.Owner]map[link.Key]link.Item{}, map[reconcile.Owner]map[nftnl.Key]nftnl.Item{}
	for i := range recs {
		names, keys = append(names, recs[i].HostInterface), append(keys, recs[i].Key())
		links[linkOwner(&recs[i])], ports[linkOwner(&recs[i])] = nil, nil
	}
	n.opts.Judge.Dismiss(keys)
	err := errors.Join(n.opts.Node.Pods.Delete(ctx, names...), n.opts.Node.Links.Apply(ctx, links), n.ports.Apply(ctx, ports), n.hostPorts.Unpublish(ctx, recs))
	if err == nil {
		n.opts.Judge.Left(keys)
	}
	return err
}

// Discard implements network.Discarder: the record's addresses are free.
func (n *Network) Discard(rec attach.Record) { n.addresses.left(rec.Key()) }

// Check implements network.Network.
func (n *Network) Check(ctx context.Context, rec attach.Record) error {
	d, err := detailsOf(&rec)
	if err != nil {
		return err
	}
	pair, err := d.pair(&rec)
	if err != nil {
		return err
	}
	node, owner := n.opts.Node, linkOwner(&rec)
	return errors.Join(node.Pods.Check(ctx, pair), node.Links.Failure(owner), node.Rules.Failure(owner), n.hostPorts.Check(ctx, &rec), n.ports.Failure(owner))
}
