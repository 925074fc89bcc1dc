package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/egressip"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/liveness"
	"weft.dev/weft/internal/overlay"
)

// egressIPs tells by which egress addresses traffic leaves. It follows NetNamespaces in the modes that have VNIDs.
type egressIPs struct {
	*follower
	cache cache.Cache
	node  string
	// inhabited is told when other namespaces have pods on this node.
	inhabited chan struct{}
	// alive tells which nodes with egress addresses do not answer.
	alive *liveness.Watcher
	// refused is told of an address that this node is to hold and cannot, and why, by its HostSubnet's UID and version.
	refused func(uid types.UID, version string, address netip.Addr, note string)
	// others returns the node's addresses that are no egress addresses, and gateways the next hops of its routes.
	others, gateways func() (map[netip.Addr]struct{}, error)
	// probes keep the node from taking an address that a host outside the cluster has.
	probes *egressProbes

	// stepping serialises step, and guards what follows.
	stepping sync.Mutex
	// known are the NetNamespaces, but for those that cannot be used.
	known map[string]egressip.Namespace
	site  site
	// choices are the ways that lead to several other nodes.
	choices map[uint32]*choice
	// cannot are the addresses that this node is to hold and cannot, and why.
	cannot map[netip.Addr]string
	// unfit are these, and those that the node's ranges would give it and that it could not hold either.
	unfit map[netip.Addr]string

	// judging guards what follows.
	judging  sync.Mutex
	problems map[string]string
	// unheld are the addresses of unfit, for the node's status; nil until they are known.
	unheld map[string]string
	// tell is called when unheld has changed. It must not wait.
	tell func()
}

// site is what egress addresses depend on of the node and the network.
type site struct {
	mode clusternetwork.Mode
	// node is the node's own address, and network the range that it has on its interface.
	node    netip.Addr
	network netip.Prefix
	// uplink is that interface.
	uplink string
	// others are the node's addresses that are no egress addresses: who else made them has a use for them. gateways are its routes' next hops.
	others, gateways map[netip.Addr]struct{}
}

func newEgressIPs(store cache.Cache, vnids *netNamespaces, node string, changed func()) *egressIPs {
	e := &egressIPs{
		follower: newFollower(vnids, changed), cache: store, node: node, inhabited: make(chan struct{}, 1),
		refused: func(types.UID, string, netip.Addr, string) {}, others: link.OtherAddresses, gateways: link.Gateways, known: map[string]egressip.Namespace{},
		tell: func() {},
	}
	e.alive = &liveness.Watcher{Changed: e.signal}
	e.probes = &egressProbes{changed: e.signal, after: time.AfterFunc, verdicts: map[netip.Addr]*egressVerdict{}}
	return e
}

// populate has it look again which namespaces have pods on this node.
func (e *egressIPs) populate() { wakeUp(e.inhabited) }

// prepare tells the network of everything before it is in a mode that has VNIDs, and of what another View makes of it. An
// error says what is waited for.
func (e *egressIPs) prepare(ctx context.Context, network *overlay.Network, view *overlay.View) error {
	if !view.Cluster.Mode.HasVNIDs() {
		return nil
	}
	e.stepping.Lock()
	e.site = site{mode: view.Cluster.Mode, node: view.Local.HostIP, network: view.Node.Network, uplink: view.Node.Uplink}
	e.stepping.Unlock()
	e.await(true)
	if err := e.begin(ctx); err != nil {
		return err
	}
	e.await(false)
	if err := e.step(ctx, network); errors.Is(err, errUnprogrammed) {
		e.signal() // which is tried again, and keeps nothing else
	} else if err != nil {
		return err
	}
	return nil
}

// errUnprogrammed says that the network knows what leaves it and how, and could not program all of it.
var errUnprogrammed = errors.New("not programmed")

// end stops watching, and tells the network that there is nothing.
func (e *egressIPs) end(ctx context.Context, network *overlay.Network) error {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	watched, err := e.follower.end(ctx)
	if watched {
		e.cannot, e.unfit = nil, nil
		clear(e.known)
		e.choices = nil
		e.alive.Watch(nil)
		e.judge()
	}
	return errors.Join(err, network.UpdateEgressIPs(ctx, overlay.EgressIPs{}))
}

// step brings the network in step with what the objects, and the nodes that answer, say now.
func (e *egressIPs) step(ctx context.Context, network *overlay.Network) error {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	dirty, ok := e.take()
	if !ok {
		return nil
	}
	err := e.advance(ctx, network, dirty)
	e.mark.Done(err)
	return err
}

// advance is step once something is watched. The caller holds stepping.
func (e *egressIPs) advance(ctx context.Context, network *overlay.Network, dirty map[string]struct{}) error {
	if err := e.learn(ctx, dirty); err != nil {
		e.untake(dirty)
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
	e.site.others, e.site.gateways = others, gateways
	all := e.ways(subnets.Items)
	e.alive.Watch(e.asked(network.Inhabited()))
	if err := network.UpdateEgressIPs(ctx, all); err != nil {
		return fmt.Errorf("%w: %w", errUnprogrammed, err)
	}
	return nil
}

// learn reads the NetNamespaces that changed.
func (e *egressIPs) learn(ctx context.Context, dirty map[string]struct{}) error {
	for name := range dirty {
		var nn networkv1.NetNamespace
		err := e.cache.Get(ctx, client.ObjectKey{Name: name}, &nn, client.UnsafeDisableDeepCopy)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("NetNamespace %s: %w", name, err)
		}
		if vnid, ok := vnidOf(&nn); err == nil && ok {
			e.known[name] = egressip.Namespace{Name: name, VNID: vnid, IPs: clusternetwork.WantedEgressIPs(&nn)}
		} else {
			delete(e.known, name)
		}
	}
	return nil
}

// judge notes which NetNamespaces want an address that this node is to hold and cannot.
func (e *egressIPs) judge() {
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
	e.judging.Lock()
	changed := e.unheld == nil || !maps.Equal(e.unheld, unheld)
	e.problems, e.unheld = problems, unheld
	e.judging.Unlock()
	if changed {
		e.tell()
	}
}

// refusals returns the egress addresses that this node cannot hold, and why; nil while that is not known.
func (e *egressIPs) refusals() map[string]string {
	e.judging.Lock()
	defer e.judging.Unlock()
	return maps.Clone(e.unheld)
}

// peer is where a node with egress addresses is reached.
type peer struct {
	// node is where its tunnels end; gateway is the address by which it is asked whether it is alive: on the way of the traffic.
	node, gateway netip.Addr
	// uid and version are its HostSubnet's.
	uid     types.UID
	version string
}

// ways says how traffic leaves, by all objects.
func (e *egressIPs) ways(subnets []networkv1.HostSubnet) overlay.EgressIPs {
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
		nodes = append(nodes, egressip.Node{
			Name: subnets[i].Name, IPs: clusternetwork.HostedEgressIPs(&subnets[i]), Refused: e.refusedBy(&subnets[i], peers),
		})
	}
	plan := egressip.NewPlan(slices.Collect(maps.Values(e.known)), nodes)
	all := overlay.EgressIPs{Ways: map[uint32]overlay.EgressWay{}, Namespaces: map[string]uint32{}}
	e.choices = map[uint32]*choice{}
	for vnid, way := range plan.Ways {
		here, others := e.split(way.Holders, peers)
		if here.IsValid() {
			all.Ways[vnid] = e.hold(here, peers)
			continue
		}
		if len(others) > 1 { // of one there is no choice
			e.choices[vnid] = &choice{others: others}
		}
		all.Ways[vnid] = overlay.EgressWay{Nodes: e.answering(others)}
	}
	e.judge()
	for name, ns := range e.known {
		_, wanted := plan.Ways[ns.VNID]
		// Where VNIDs isolate nobody, a namespace that happens to have another's is another all the same.
		if wanted && (e.site.mode == clusternetwork.ModeMultitenant || len(ns.IPs) > 0) {
			all.Namespaces[name] = ns.VNID
			if c := e.choices[ns.VNID]; c != nil {
				c.namespaces = append(c.namespaces, name)
			}
		}
	}
	return all
}

// hold returns the way out by an address of this node's. Nothing leaves by it until a probe has shown that no stranger has the address.
func (e *egressIPs) hold(address netip.Addr, peers map[string]peer) overlay.EgressWay {
	if free, _ := e.probes.free(e.site.uplink, address, hostAddresses(peers)); !free {
		return overlay.EgressWay{}
	}
	return overlay.EgressWay{Address: address}
}

// refusedBy returns the egress addresses that a node cannot hold: as its status says, and of this node as it is now. Of this node it
// notes them, those too that the ranges of its HostSubnet would give it.
func (e *egressIPs) refusedBy(object *networkv1.HostSubnet, peers map[string]peer) map[netip.Addr]string {
	if object.Name != e.node {
		return clusternetwork.RefusedEgressIPs(object)
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
			if err == nil && lists {
				kept[address] = struct{}{}
				_, err = e.probes.free(e.site.uplink, address, hostAddresses(peers))
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

// choice is a way that leads to several other nodes, and the namespaces whose pods it is for.
type choice struct {
	namespaces []string
	others     []peer
}

// asked returns where nodes are to be asked whether they are alive: those that pods on this node leave by, if there is a choice.
func (e *egressIPs) asked(inhabited map[string]struct{}) []netip.Addr {
	asked := map[netip.Addr]struct{}{}
	for _, c := range e.choices {
		here := func(namespace string) bool {
			_, has := inhabited[namespace]
			return has
		}
		if !slices.ContainsFunc(c.namespaces, here) {
			continue
		}
		for _, other := range c.others {
			asked[other.gateway] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(asked), netip.Addr.Compare)
}

// askAnew asks those that it takes for the pods that there are now.
func (e *egressIPs) askAnew(network *overlay.Network) {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	e.alive.Watch(e.asked(network.Inhabited()))
}

// split returns the address that this node holds, and the other nodes that hold one.
func (e *egressIPs) split(holders []egressip.Holder, peers map[string]peer) (here netip.Addr, others []peer) {
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

// check says why the node cannot hold an egress address.
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

// edge reports whether an address is the first or the last of a network that has room for hosts between them.
func edge(network netip.Prefix, address netip.Addr) bool {
	const point = 31 // RFC 3021: both are hosts'
	return network.Bits() < point && (address == network.Masked().Addr() || !network.Contains(address.Next()))
}

// answering gives each node a share, and the share of one that does not answer to one that does: so the connections of the
// others stay where they are. Where none answers, all keep theirs: then it is more likely this node that is cut off, and what is
// sent to them leaves by an egress address or not at all.
func (e *egressIPs) answering(nodes []peer) []netip.Addr {
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

// followEgressIPs keeps them in step until ctx ends.
func (a *agent) followEgressIPs(ctx context.Context, network *overlay.Network) error {
	return a.keepInStep(ctx, a.objects.egressIPs.wake, "egress addresses", func() error { return a.objects.egressIPs.step(ctx, network) })
}

// followInhabited keeps who is asked in step with the pods on this node until ctx ends.
func (a *agent) followInhabited(ctx context.Context, network *overlay.Network) error {
	e := a.objects.egressIPs
	return a.keepInStep(ctx, e.inhabited, "nodes with egress addresses", func() error {
		e.askAnew(network)
		return nil
	})
}

// uplinkHost is the node's own interface and its kernel.
type uplinkHost struct{}

// Announce implements overlay.Uplink.
func (uplinkHost) Announce(device string, addresses ...netip.Addr) error {
	return link.Announce(device, addresses...)
}

// Forget implements overlay.Uplink.
func (uplinkHost) Forget(addresses ...netip.Addr) error { return link.ForgetTranslated(addresses...) }
