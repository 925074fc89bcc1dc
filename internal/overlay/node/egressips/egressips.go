// Package egressips computes through which egress IPs traffic leaves, and hands them to the network.
package egressips

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/egressip"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/link/arp"
	"weft.dev/weft/internal/link/fib"
	"weft.dev/weft/internal/liveness"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/overlay/node/watch"
	"weft.dev/weft/internal/steps"
	"weft.dev/weft/internal/watermark"
)

// Follower computes the egress IPs through which traffic leaves, and updates the network. It follows NetNamespaces in the modes that have
// VNIDs.
type Follower struct {
	spaces *watch.Follower
	cache  cache.Cache
	node   string
	// withPods is signalled when the set of namespaces with pods on this node changes.
	withPods chan struct{}
	// alive detects which nodes with egress IPs do not answer.
	alive *liveness.Watcher
	// refused is called for an address that is assigned to this node and that it cannot hold, with the reason and the UID and version of its
	// HostSubnet.
	refused func(uid types.UID, version string, address netip.Addr, note string)
	// others returns the node's addresses that are not egress IPs, and gateways the next hops of its routes.
	others, gateways func() (map[netip.Addr]struct{}, error)
	// probes prevent the node from taking an address that a host outside the cluster uses.
	probes *egressProbes

	// The next fields are those of the step in progress.

	// known are the valid NetNamespaces.
	known map[string]egressip.Namespace
	site  site
	// cannot are the addresses that are assigned to this node and that it cannot hold, with the reasons.
	cannot map[netip.Addr]string
	// unfit are the addresses of cannot, and those in the node's ranges that it could not hold either.
	unfit map[netip.Addr]string

	// mu guards the fields below.
	mu sync.Mutex
	// prepared is the site of the next step, without what that step reads from the kernel.
	prepared site
	// choices are the ways that lead to several other nodes, by VNID.
	choices  map[uint32]*choice
	problems map[string]string
	// unheld are the addresses of unfit, for the node's status; nil until they are known.
	unheld map[string]string
	// notify is called when unheld has changed. It must not block.
	notify func()
}

// site is the state of the node and the network on which egress IPs depend.
type site struct {
	mode clusternetwork.Mode
	// node is the node's own address. network is the prefix of that address on its interface.
	node    netip.Addr
	network netip.Prefix
	// uplink is the name of that interface.
	uplink string
	// others are the node's addresses that are not egress IPs: other programs added them and use them. gateways are the next hops of its
	// routes.
	others, gateways map[netip.Addr]struct{}
}

// New returns a follower on the node of this name. changed is called when the node waits for NetNamespaces and one changes.
func New(store cache.Cache, vnids *watch.NetNamespaces, node string, changed func()) *Follower {
	e := &Follower{
		spaces: watch.NewFollower(vnids, changed), cache: store, node: node, withPods: make(chan struct{}, 1),
		refused: func(types.UID, string, netip.Addr, string) {}, others: fib.OtherAddresses, gateways: fib.Gateways, known: map[string]egressip.Namespace{},
		notify: func() {},
	}
	e.alive = &liveness.Watcher{Changed: e.Changed}
	e.probes = &egressProbes{changed: e.Changed, after: time.AfterFunc, verdicts: map[netip.Addr]*egressVerdict{}}
	return e
}

// Populate triggers a new look at which namespaces have pods on this node.
func (e *Follower) Populate() { steps.Wake(e.withPods) }

// Prepare gives the network all egress IPs before it enters a mode that has VNIDs, and updates them for a new View. An error says what the
// agent waits for.
func (e *Follower) Prepare(ctx context.Context, network *overlay.Network, view *overlay.View) error {
	if !view.Cluster.Mode.HasVNIDs() {
		return nil
	}
	e.mu.Lock()
	e.prepared = site{mode: view.Cluster.Mode, node: view.Local.HostIP, network: view.Node.Network, uplink: view.Node.Uplink}
	e.mu.Unlock()
	e.spaces.Await(true)
	if err := e.spaces.Begin(ctx); err != nil {
		return err
	}
	e.spaces.Await(false)
	if err := e.Step(ctx, network); errors.Is(err, watch.ErrUnprogrammed) {
		e.spaces.Signal() // the step is retried; nothing else waits for it
	} else if err != nil {
		return err
	}
	return nil
}

// End stops watching, and removes all egress IPs from the network.
func (e *Follower) End(ctx context.Context, network *overlay.Network) error {
	watched, err := e.spaces.End(ctx)
	if watched {
		e.cannot, e.unfit = nil, nil
		clear(e.known)
		e.choose(nil)
		e.UpdateProbed(network)
		e.probes.keep(nil)
		e.judge()
	}
	return errors.Join(err, network.EgressIPs.Update(ctx, egress.IPs{}))
}

// Step updates the network from the current objects and from which nodes answer.
func (e *Follower) Step(ctx context.Context, network *overlay.Network) error {
	return e.spaces.Step(ctx, func(ctx context.Context, dirty map[string]struct{}) error {
		err := e.advance(ctx, network, dirty)
		e.spaces.Mark.Done(err)
		return err
	})
}

// advance does the work of Step once objects are watched.
func (e *Follower) advance(ctx context.Context, network *overlay.Network, dirty map[string]struct{}) error {
	if err := e.learn(ctx, dirty); err != nil {
		e.spaces.Untake(dirty)
		return err
	}
	var subnets networkv1.HostSubnetList
	if err := e.cache.List(ctx, &subnets, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("HostSubnets: %w", err)
	}
	others, err := e.others()
	if err != nil {
		return fmt.Errorf("the node's addresses: %w", err)
	}
	gateways, err := e.gateways()
	if err != nil {
		return fmt.Errorf("the node's gateways: %w", err)
	}
	e.site = e.nextSite()
	e.site.others, e.site.gateways = others, gateways
	all := e.ways(subnets.Items)
	e.UpdateProbed(network)
	if err := network.EgressIPs.Update(ctx, all); err != nil {
		return fmt.Errorf("%w: %w", watch.ErrUnprogrammed, err)
	}
	return nil
}

// nextSite returns the site that was prepared.
func (e *Follower) nextSite() site {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.prepared
}

// learn reads the NetNamespaces that changed.
func (e *Follower) learn(ctx context.Context, dirty map[string]struct{}) error {
	for name := range dirty {
		var nn networkv1.NetNamespace
		exists, err := informer.Read(ctx, e.cache, client.ObjectKey{Name: name}, &nn)
		if err != nil {
			return err
		}
		if vnid, ok := watch.VNIDOf(&nn); exists && ok {
			e.known[name] = egressip.Namespace{Name: name, VNID: vnid, IPs: clusternetwork.WantedEgressIPs(&nn)}
		} else {
			delete(e.known, name)
		}
	}
	return nil
}

// judge records which NetNamespaces have an address that is assigned to this node and that it cannot hold.
func (e *Follower) judge() {
	problems := map[string]string{}
	if len(e.cannot) > 0 {
		for name, ns := range e.known {
			for _, address := range ns.IPs {
				if why := e.cannot[address]; why != "" {
					problems[name] = why
				}
			}
		}
	}
	unheld := make(map[string]string, len(e.unfit))
	for address, why := range e.unfit {
		unheld[address.String()] = why
	}
	e.mu.Lock()
	changed := e.unheld == nil || !maps.Equal(e.unheld, unheld)
	e.problems, e.unheld = problems, unheld
	e.mu.Unlock()
	if changed {
		e.notify()
	}
}

// Refusals returns the egress IPs that this node cannot hold, with the reasons; nil while they are not known.
func (e *Follower) Refusals() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.unheld)
}

// peer has the addresses of a node with egress IPs.
type peer struct {
	// node is the end of its tunnels. gateway is the address that liveness probes use: it is reached by the same path as the traffic.
	node, gateway netip.Addr
	// uid and version are those of its HostSubnet.
	uid     types.UID
	version string
}

// ways computes from all objects how traffic leaves.
func (e *Follower) ways(subnets []networkv1.HostSubnet) egress.IPs {
	var nodes []egressip.Node
	peers := map[string]peer{}
	for i := range subnets {
		object := &subnets[i]
		if parsed, err := clusternetwork.ParseHostSubnet(object); err == nil && parsed.Subnet.IsValid() {
			peers[object.Name] = peer{parsed.HostIP, parsed.Subnet.Addr().Next(), parsed.UID, object.ResourceVersion}
		}
	}
	e.cannot, e.unfit = nil, nil
	for i := range subnets {
		refused := e.refusedBy(&subnets[i], peers)
		nodes = append(nodes, egressip.Node{
			Name: subnets[i].Name, IPs: clusternetwork.HostedEgressIPs(&subnets[i]),
			Refused: refused, RefusedAbove: clusternetwork.RefusedAbove(refused),
		})
	}
	plan := egressip.NewPlan(slices.Collect(maps.Values(e.known)), nodes)
	all := egress.IPs{Ways: map[uint32]egress.Way{}, Namespaces: map[string]uint32{}}
	choices := map[uint32]*choice{}
	for vnid, way := range plan.Ways {
		here, others := e.split(way.Holders, peers)
		if here.IsValid() {
			all.Ways[vnid] = e.hold(here, peers)
			continue
		}
		if len(others) > 1 { // with one node there is no choice
			choices[vnid] = &choice{others: others}
		}
		all.Ways[vnid] = egress.Way{Nodes: e.answering(others)}
	}
	e.judge()
	for name, ns := range e.known {
		_, wanted := plan.Ways[ns.VNID]
		// In the modes without isolation by VNID, a namespace that happens to have the same VNID is still independent.
		if wanted && (e.site.mode == clusternetwork.ModeMultitenant || len(ns.IPs) > 0) {
			all.Namespaces[name] = ns.VNID
			if c := choices[ns.VNID]; c != nil {
				c.namespaces = append(c.namespaces, name)
			}
		}
	}
	e.choose(choices)
	return all
}

// choose sets the ways that lead to several other nodes.
func (e *Follower) choose(choices map[uint32]*choice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.choices = choices
}

// hold returns the way out through an address of this node. No traffic leaves through it until a probe has shown that no foreign host uses
// it.
func (e *Follower) hold(address netip.Addr, peers map[string]peer) egress.Way {
	if free, _ := e.probes.free(e.site.uplink, address, hostAddresses(peers)); !free {
		return egress.Way{}
	}
	return egress.Way{Address: address}
}

// refusedBy returns the egress IPs that a node cannot hold. For another node they come from its status, for this node from its current
// state. For this node it also records them, including addresses in the ranges of its HostSubnet.
//
// The controller takes a refused address off a node with ranges, and would give it back if the node no longer refused it. So the refusal of
// an address that the node does not list, also one from before a restart, remains until a probe has found no foreign host.
func (e *Follower) refusedBy(object *networkv1.HostSubnet, peers map[string]peer) map[netip.Addr]string {
	reported := clusternetwork.RefusedEgressIPs(object)
	if object.Name != e.node {
		return reported
	}
	listed, ranges := clusternetwork.HostedEgressIPs(object), clusternetwork.EgressCIDRs(object)
	e.cannot, e.unfit = map[netip.Addr]string{}, map[netip.Addr]string{}
	kept := map[netip.Addr]struct{}{}
	defer func() { e.probes.keep(kept) }()
	for _, ns := range e.known {
		for _, address := range ns.IPs {
			lists := slices.Contains(listed, address)
			if !lists && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(address) }) || e.unfit[address] != "" {
				continue
			}
			err := e.site.check(address, peers)
			if err == nil && (lists || reported[address] != "" || e.probes.refuses(address)) {
				kept[address] = struct{}{}
				err = e.probes.refusal(e.site.uplink, address, hostAddresses(peers), reported[address])
			}
			if err == nil {
				continue
			}
			e.unfit[address] = err.Error()
			if lists {
				e.cannot[address] = err.Error()
				own := peers[e.node]
				e.refused(own.uid, own.version, address, err.Error())
			}
		}
	}
	return e.unfit
}

// choice is a way that leads to several other nodes, and the namespaces whose pods use it.
type choice struct {
	namespaces []string
	others     []peer
}

// toProbe returns the addresses to probe: those of nodes through which pods on this node leave, if there is a choice of nodes. The caller holds
// mu.
func (e *Follower) toProbe(withPods map[string]struct{}) []netip.Addr {
	addresses := map[netip.Addr]struct{}{}
	for _, c := range e.choices {
		here := func(namespace string) bool {
			_, has := withPods[namespace]
			return has
		}
		if !slices.ContainsFunc(c.namespaces, here) {
			continue
		}
		for _, other := range c.others {
			addresses[other.gateway] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare)
}

// UpdateProbed updates the set of probed nodes for the current pods. It waits for no step in progress.
func (e *Follower) UpdateProbed(network *overlay.Network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alive.Watch(e.toProbe(network.WithPods()))
}

// split returns the egress IP that this node holds, and the other nodes that hold one.
func (e *Follower) split(holders []egressip.Holder, peers map[string]peer) (here netip.Addr, others []peer) {
	for _, holder := range holders {
		if holder.Node != e.node {
			if at, known := peers[holder.Node]; known {
				others = append(others, at)
			}
			continue
		}
		here = holder.IP
	}
	return here, others
}

// check returns why the node cannot hold an egress IP; nil if it can.
func (s *site) check(address netip.Addr, peers map[string]peer) error {
	_, taken := s.others[address]
	for name, at := range peers {
		if at.node == address && at.node != s.node {
			return fmt.Errorf("egressIPs: %s is the address of node %s itself: choose an unused address", address, name)
		}
	}
	switch {
	case address == s.node:
		return fmt.Errorf("egressIPs: %s is the node's own address: choose an unused address", address)
	case taken:
		return fmt.Errorf("egressIPs: %s is already an address of the node for another purpose: choose an unused address, or remove it from the node", address)
	case isIn(s.gateways, address):
		return fmt.Errorf("egressIPs: %s is the gateway of the node's routes, and announcing it would redirect the traffic of every node: choose an unused address", address)
	case s.network.Contains(address) && edge(s.network, address):
		return fmt.Errorf("egressIPs: %s is the network or the broadcast address of %s: choose an address between them", address, s.network)
	case !s.network.Contains(address):
		return fmt.Errorf("egressIPs: %s is not in %s, the network of the node's address, so replies would not reach the node: assign it to a node in its network", address, s.network)
	}
	return nil
}

func isIn(set map[netip.Addr]struct{}, address netip.Addr) bool {
	_, in := set[address]
	return in
}

// edge reports whether an address is the first or the last of a network that has host addresses between them.
func edge(network netip.Prefix, address netip.Addr) bool {
	const point = 31 // RFC 3021: both are host addresses
	return network.Bits() < point && (address == network.Masked().Addr() || !network.Contains(address.Next()))
}

// answering returns one share for each node. The share of a node that does not answer is given to one that does, so the connections through
// the other nodes stay in place. If no node answers, all keep their shares: it is then more likely that this node is cut off, and traffic
// to them leaves through an egress IP or not at all.
func (e *Follower) answering(nodes []peer) []netip.Addr {
	var alive, shares []netip.Addr
	gone := make([]bool, len(nodes))
	for i, node := range nodes {
		if gone[i] = e.alive.Gone(node.gateway); !gone[i] {
			alive = append(alive, node.node)
		}
	}
	for i, node := range nodes {
		at := node.node
		if gone[i] && len(alive) > 0 {
			at = alive[i%len(alive)]
		}
		shares = append(shares, at)
	}
	return shares
}

// Problems returns which NetNamespaces are not in effect as written, with the reasons.
func (e *Follower) Problems() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.problems)
}

// Changed triggers a step.
func (e *Follower) Changed() { e.spaces.Signal() }

// Wake receives once there is work for Step.
func (e *Follower) Wake() <-chan struct{} { return e.spaces.Wake() }

// WithPods receives once there is work for UpdateProbed.
func (e *Follower) WithPods() <-chan struct{} { return e.withPods }

// Mark returns the resourceVersion observed of NetNamespaces.
func (e *Follower) Mark() *watermark.Mark { return e.spaces.Mark }

// OnChange sets the function that is called when Refusals has changed. It must not block.
func (e *Follower) OnChange(changed func()) { e.notify = changed }

// Report sets the function that is called for an address that is assigned to this node and that it cannot hold, and makes the node probe
// addresses before it holds them.
func (e *Follower) Report(refused func(uid types.UID, version string, address netip.Addr, note string)) {
	e.refused, e.probes.probe, e.probes.holds = refused, arp.AddressConflict, fib.HoldsAddress
}

// Run probes the nodes through which pods leave until ctx ends.
func (e *Follower) Run(ctx context.Context) error { return e.alive.Run(ctx) }
