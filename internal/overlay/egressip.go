package overlay

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// EgressIPs says how the traffic of all namespaces with egress IPs leaves the cluster, from the view of this node.
type EgressIPs struct {
	// Ways are the ways of projects, by VNID.
	Ways map[uint32]EgressWay
	// Namespaces are the VNIDs of the ways of namespaces' pods. Traffic of all other namespaces leaves by its node's address.
	Namespaces map[string]uint32
}

// EgressWay says how the traffic of one project leaves.
type EgressWay struct {
	// Address is the project's egress IP that this node holds; invalid: none.
	Address netip.Addr
	// Nodes are, if this node holds none, the addresses of nodes that do; each gets a share of the connections. Empty: the traffic is dropped.
	Nodes []netip.Addr
}

// Uplink is the node's own interface and the host's conntrack, as egress IPs need them.
type Uplink interface {
	// Announce announces to the network that addresses are here now.
	Announce(device string, addresses ...netip.Addr) error
	// Forget flushes the host's connections that are translated to addresses that are no longer here.
	Forget(addresses ...netip.Addr) error
}

// secondAnnouncement is the delay before an address is announced again: the first announcement may be lost, or come before a switch of the
// network forwards for the port.
const secondAnnouncement = 2 * time.Second

// egressIPs is the state of egress IPs. updating guards it.
type egressIPs struct {
	wanted EgressIPs
	// programmed is what was handed over.
	programmed EgressIPs
	// forget flushes connections.
	forget *forgetter
	// incomplete says that the last change may not be in effect: the next one compiles everything.
	incomplete bool
	// broken are projects whose address could not be put on the interface. Nothing is translated to it, and the next update tries them again.
	broken map[uint32]struct{}
	// come receives addresses to announce.
	come chan []netip.Addr
}

func newEgressIPs() egressIPs {
	return egressIPs{broken: map[uint32]struct{}{}, forget: newForgetter(), come: make(chan []netip.Addr, 1)}
}

// users returns the namespaces that use each address that this node holds.
func (e *EgressIPs) users() map[netip.Addr]map[string]struct{} {
	users := map[netip.Addr]map[string]struct{}{}
	for _, way := range e.Ways {
		if way.Address.IsValid() {
			users[way.Address] = map[string]struct{}{}
		}
	}
	for namespace, vnid := range e.Namespaces {
		if way := e.Ways[vnid]; way.Address.IsValid() {
			users[way.Address][namespace] = struct{}{}
		}
	}
	return users
}

// moved returns the addresses that this node holds and did not hold before, and those that it no longer holds, or not for all namespaces
// that used them. The VNIDs of projects do not matter.
func moved(before, after *EgressIPs) (come, gone []netip.Addr) {
	had, has := before.users(), after.users()
	for address := range has {
		if had[address] == nil {
			come = append(come, address)
		}
	}
	for address, users := range had {
		left := has[address] == nil
		for namespace := range users {
			_, still := has[address][namespace]
			left = left || !still
		}
		if left {
			gone = append(gone, address)
		}
	}
	return come, gone
}

// UpdateEgressIPs programs a change of egress IPs. Before the first Update it only stores the change: all egress IPs must be stored before,
// because traffic without one leaves by the node's own address. After an error, the same change may be passed again.
func (n *Network) UpdateEgressIPs(ctx context.Context, e EgressIPs) error {
	n.updating.Lock()
	defer n.updating.Unlock()
	if len(e.Ways) == 0 {
		e = EgressIPs{}
	}
	if !n.egress.incomplete && len(n.egress.broken) == 0 && reflect.DeepEqual(n.egress.wanted, e) {
		return nil
	}
	n.egress.wanted = e
	if !n.started {
		return nil
	}
	all := n.egress.incomplete
	n.egress.incomplete = true
	again := *n.settings.Load() // a copy, so that ADDs under way compile again
	return named("egress addresses", n.moveEgressIPs(ctx, &again, all))
}

// egressOwned are the fragments of one project.
type egressOwned struct {
	flows map[openflow.Key]openflow.Entry
	rules map[nft.Key]nft.Item
	links map[link.Key]link.Item
}

// compileEgress returns the fragments of a project's way; all are empty for one that does not exist.
func (s *settings) compileEgress(vnid uint32, way EgressWay, group uint32) egressOwned {
	w := pipeline.EgressWay{VNID: vnid, Here: way.Address.IsValid(), Nodes: way.Nodes}
	owned := egressOwned{flows: s.pipeline.EgressIP(w, group)}
	if len(owned.flows) > 0 && w.Here {
		held := host.EgressIP{VNID: vnid, Address: way.Address, MAC: pipeline.EgressMAC(vnid), Uplink: s.view.Node.Uplink}
		owned.rules, owned.links = held.Rules(), held.Links()
	}
	return owned
}

// egressOf is what settings need from egress IPs: the group of each namespace, and the addresses that this node holds.
type egressOf struct {
	groups map[string]uint32
	held   map[netip.Addr]bool
	// namespaces are the namespaces of each project, sorted.
	namespaces map[uint32][]string
}

// prepareEgress sets the egress IPs of settings. The caller holds updating.
func (n *Network) prepareEgress(s *settings) {
	s.egress = egressOf{make(map[string]uint32, len(n.egress.wanted.Namespaces)), map[netip.Addr]bool{}, map[uint32][]string{}}
	for _, way := range n.egress.wanted.Ways {
		s.egress.held[way.Address] = true
	}
	for _, vnid := range slices.Sorted(maps.Keys(n.egress.wanted.Ways)) { // sorted, so that groups have the same numbers after a restart
		n.services.groups.ID(string(pipeline.EgressOwner(vnid)))
	}
	for _, namespace := range slices.Sorted(maps.Keys(n.egress.wanted.Namespaces)) {
		vnid := n.egress.wanted.Namespaces[namespace]
		s.egress.groups[namespace] = n.services.groups.ID(string(pipeline.EgressOwner(vnid)))
		s.egress.namespaces[vnid] = append(s.egress.namespaces[vnid], namespace)
	}
}

// setEgress hands over all egress IPs of a first or new View, without waiting.
func (n *Network) setEgress(s *settings) {
	change := n.egressChange(s, true)
	for vnid := range n.egress.broken {
		change.unhold(vnid, n.egress.wanted.Ways[vnid].Address)
	}
	n.engines.Links.Set(change.links)
	n.engines.Rules.Set(change.rules)
	n.engines.Flows.Set(change.flows)
	n.announce(change.come)
	n.settleEgress(&change)
}

// egressChange is the difference between wanted egress IPs and those that were handed over.
type egressChange struct {
	flows map[reconcile.Owner]map[openflow.Key]openflow.Entry
	rules map[reconcile.Owner]map[nft.Key]nft.Item
	links map[reconcile.Owner]map[link.Key]link.Item
	// come are addresses that are new on this node. gone are those that are no longer here, or not for all namespaces that used them.
	come, gone []netip.Addr
	// ended are projects that no longer have an egress IP.
	ended []uint32
	// leads says that some traffic leaves by another way than before.
	leads bool
}

// egressChange compiles the ways that differ from those that were handed over, or all.
func (n *Network) egressChange(s *settings, all bool) egressChange {
	c := egressChange{
		flows: map[reconcile.Owner]map[openflow.Key]openflow.Entry{},
		rules: map[reconcile.Owner]map[nft.Key]nft.Item{},
		links: map[reconcile.Owner]map[link.Key]link.Item{},
	}
	for vnid := range n.egress.programmed.Ways {
		if _, still := n.egress.wanted.Ways[vnid]; !still {
			o := pipeline.EgressOwner(vnid)
			c.flows[o], c.rules[o], c.links[o] = nil, nil, nil
			c.ended, c.leads = append(c.ended, vnid), true
		}
	}
	for vnid, way := range n.egress.wanted.Ways {
		was, known := n.egress.programmed.Ways[vnid]
		same := known && !all && reflect.DeepEqual(was, way)
		if _, broken := n.egress.broken[vnid]; same && !broken {
			continue
		}
		c.leads = c.leads || !same
		o := pipeline.EgressOwner(vnid)
		owned := s.compileEgress(vnid, way, n.services.groups.ID(string(o)))
		c.flows[o], c.rules[o], c.links[o] = owned.flows, owned.rules, owned.links
	}
	c.come, c.gone = moved(&n.egress.programmed, &n.egress.wanted)
	for vnid := range n.egress.broken { // it may succeed this time
		if way := n.egress.wanted.Ways[vnid]; way.Address.IsValid() && !slices.Contains(c.come, way.Address) {
			c.come = append(c.come, way.Address)
		}
	}
	return c
}

// settleEgress notes what was handed over.
func (n *Network) settleEgress(c *egressChange) {
	n.egress.programmed = n.egress.wanted
	for _, vnid := range c.ended {
		n.services.groups.Release(string(pipeline.EgressOwner(vnid)))
	}
	n.egress.forget.note(c.gone...)
}

// moveEgressIPs programs the difference. A new address is on the interface, and translated to, before any flow leads there. A removed one
// stays on the interface until no flow leads there. The caller holds updating.
func (n *Network) moveEgressIPs(ctx context.Context, s *settings, all bool) error {
	n.prepareEgress(s)
	change := n.egressChange(s, all)
	unheld, err := n.holdEgress(ctx, &change)
	err = errors.Join(err, named("node rules", n.engines.Rules.Apply(ctx, withSome(change.rules))))
	n.announce(change.come)
	n.opening.Lock()
	was := n.settings.Load()
	n.settings.Store(s)
	for key, rec := range n.live {
		if was.egress.groups[rec.PodNamespace] != s.egress.groups[rec.PodNamespace] {
			change.flows[owner(key)], change.leads = n.podFlows(s, &rec), true
		}
	}
	n.engines.Flows.Set(change.flows)
	n.opening.Unlock()
	err = errors.Join(err, named("flows", n.engines.Flows.Apply(ctx, nil)))
	n.purges.Due(change.leads) // the datapath must not use a closed way any more
	err = errors.Join(err, n.purges.Flush(ctx),
		named("node rules", n.engines.Rules.Apply(ctx, change.rules)), named("node links", n.engines.Links.Apply(ctx, change.links)))
	for o := range change.flows {
		err = errors.Join(err, named("flows of "+string(o), n.engines.Flows.Failure(o)))
	}
	n.settleEgress(&change)
	n.egress.incomplete = err != nil
	if err == nil {
		n.egress.forget.begin()
	}
	return errors.Join(unheld, err)
}

// holdEgress puts addresses on the interface. Nothing is translated to an address for which that fails, which unheld reports: another
// machine may have it, and would be cut off.
func (n *Network) holdEgress(ctx context.Context, change *egressChange) (unheld, err error) {
	clear(n.egress.broken)
	coming := withSome(change.links)
	if err = named("node links", n.engines.Links.Apply(ctx, coming)); err == nil {
		return nil, nil
	}
	var failures []error
	for vnid, way := range n.egress.wanted.Ways {
		o := pipeline.EgressOwner(vnid)
		if _, comes := coming[o]; !comes {
			continue
		}
		if failure := n.engines.Links.Failure(o); failure != nil {
			n.egress.broken[vnid] = struct{}{}
			change.unhold(vnid, way.Address)
			delete(change.links, o) // the link stays desired
			failures = append(failures, named("node links of "+string(o), failure))
		}
	}
	if len(failures) == 0 { // it is unknown which project failed
		return nil, err
	}
	return errors.Join(failures...), nil
}

// unhold has nothing translated to a project's address that is not on the interface, and stops its announcement.
func (c *egressChange) unhold(vnid uint32, address netip.Addr) {
	c.rules[pipeline.EgressOwner(vnid)] = nil
	c.come = slices.DeleteFunc(c.come, func(come netip.Addr) bool { return come == address })
}

// withSome returns the fragments that are not empty.
func withSome[K comparable, V any](fragments map[reconcile.Owner]map[K]V) map[reconcile.Owner]map[K]V {
	some := maps.Clone(fragments)
	maps.DeleteFunc(some, func(_ reconcile.Owner, fragment map[K]V) bool { return len(fragment) == 0 })
	return some
}

// announce queues addresses to be announced, without waiting.
func (n *Network) announce(come []netip.Addr) {
	if len(come) == 0 {
		return
	}
	for {
		select {
		case n.egress.come <- come:
			return
		case waiting := <-n.egress.come:
			come = slices.Concat(waiting, come)
		}
	}
}

// announceEgress announces new egress IPs, and each a second time, until ctx ends.
func (n *Network) announceEgress(ctx context.Context) error {
	if n.engines.Uplink == nil {
		return nil
	}
	var again []netip.Addr
	var due <-chan time.Time
	for {
		var now []netip.Addr
		select {
		case <-ctx.Done():
			return nil
		case now = <-n.egress.come:
			again, due = slices.Concat(again, now), time.After(secondAnnouncement)
		case <-due:
			now, again, due = again, nil, nil
		}
		s := n.settings.Load()
		if s == nil {
			continue
		}
		now = slices.DeleteFunc(now, func(address netip.Addr) bool { return !s.egress.held[address] }) // no longer here
		if err := n.engines.Uplink.Announce(s.view.Node.Uplink, now...); err != nil {
			n.opts.Log.Warn("announcing egress addresses failed; neighbours resolve them when their entries expire", "error", err)
		}
	}
}
