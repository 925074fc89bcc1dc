package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/cluster/pace"
	"weft.dev/weft/internal/neutron/cluster/view"
	"weft.dev/weft/internal/neutron/objects"
	"weft.dev/weft/internal/neutron/openstack"
)

// placed is a number of ports of a place.
type placed struct {
	at    ahead.Place
	count int
}

// plan creates and deletes the ports that the number of pods requires, and returns when to plan again. Spare ports are created after those
// for which pods of any node wait.
func (r *round) plan(ctx context.Context) (time.Duration, error) {
	now, next := r.now(), reread
	var errs []error
	var missing, spare []placed
	problem := ""
	_, pool, _ := objects.PodSubnet(r.v.Network, r.k.network) // without a subnet, bulks returns the error
	places := 0
	for node := range r.v.Demand { // a pod may name a node that does not exist
		if _, there := r.v.Hosts[node]; there {
			places++
		}
	}
	least := ahead.Least(pool, places)
	for _, node := range r.v.Nodes() {
		host, there := r.v.Hosts[node]
		if !there {
			errs = append(errs, r.deleteOf(ctx, node, nil))
			continue
		}
		held := r.v.PortsOf(node, func(id string) bool {
			since, waits := r.k.inactive[id]
			return waits && r.pace.Stuck(since, now)
		})
		if at := slices.IndexFunc(held, func(p ahead.Port) bool { return p.Stuck }); at >= 0 {
			problem = fmt.Sprintf("node %s: %s is plugged and has not become ACTIVE for %s; such ports without a pod are replaced: openstack port show %[2]s, and see the log of ovn-controller or of Neutron's agent on the node",
				node, held[at].ID, pace.StuckAfter)
		}
		decided := ahead.Decide(r.v.Demand[node], least, append(held, r.unseen(node)...), now)
		if !decided.Again.IsZero() {
			next = min(next, max(decided.Again.Sub(now), soonest))
		}
		errs = append(errs, r.deleteOf(ctx, node, decided.Delete))
		wanted := placed{ahead.Place{Network: string(r.v.Network.UID), Node: node}, decided.Create}
		switch {
		case decided.Create == 0:
		case host == "":
			problem = fmt.Sprintf("node %s reports no hostname of its Open vSwitch: its agent serves no pods of OpenStack's networks yet", node)
		case decided.Spare:
			spare = append(spare, wanted)
		default:
			missing = append(missing, wanted)
		}
	}
	p := cloud.NewBurst()
	err := errors.Join(r.create(ctx, missing, p), r.create(ctx, spare, p))
	if err != nil {
		problem = err.Error()
	}
	r.problem(problem)
	return next, errors.Join(append(errs, err)...)
}

// unseen are a node's ports in OpenStack whose NeutronPorts are not in the cache yet.
func (r *round) unseen(node string) []ahead.Port {
	seen := map[string]bool{}
	for i := range r.v.Ports {
		seen[r.v.Ports[i].Name] = true
	}
	var all []ahead.Port
	for i := range r.k.ports {
		at, marked := placeOf(r.os, &r.k.ports[i])
		_, ours := r.created(&r.k.ports[i])
		if marked && ours && at.Network == string(r.v.Network.UID) && at.Node == node && !seen[r.k.ports[i].ID] {
			all = append(all, ahead.Port{ID: r.k.ports[i].ID, Since: r.now()})
		}
	}
	return all
}

// deleteOf deletes NeutronPorts of a node: the given ones, or all if the node does not exist.
func (r *round) deleteOf(ctx context.Context, node string, ids []string) error {
	wanted := map[string]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	_, there := r.v.Hosts[node]
	var errs []error
	for i := range r.v.Ports {
		p := &r.v.Ports[i]
		if p.Spec.Node == node && (!there || wanted[p.Name]) {
			errs = append(errs, r.deleteObject(ctx, p))
		}
	}
	return errors.Join(errs...)
}

// callsAtOnce is the number of bulk requests that a Network has under way. Neutron waits for its database and for OVN during a request: with
// a second request, its processor is busy meanwhile. Each further request makes all of them take longer, and their time is limited.
const callsAtOnce = 2

// secondCalls is the number of Networks that may have more than one bulk request under way: the client's calls are limited, and calls for
// other things than ports must not wait for those for ports.
const secondCalls = 2

// fewestPorts is the number of ports for which a second request at the same time is not worth it: a port costs less in a larger request.
const fewestPorts = 4

// bulk is the ports of one request. They are of one node: a node that Neutron refuses does not affect another one's ports.
type bulk struct {
	node string
	want cloud.NewPorts
}

// mostBulks is the number of requests after whose answers the NeutronPorts are created, and nodes plug the ports. With OVN, the process of
// Neutron that answers requests also handles the plugging of each port, which takes two thirds of the time of a port's creation (measured
// with Neutron 21). With fewer requests, pods that still wait for their ports' creation would wait longer, and the last pod of a burst half
// as long again. With more, ports that exist would be withheld from nodes.
const mostBulks = 4

// create creates ports in bulk, and then their NeutronPorts.
func (r *round) create(ctx context.Context, wanted []placed, p *cloud.Burst) error {
	bulks, err := r.bulks(ctx, wanted)
	errs := []error{err}
	for some := range slices.Chunk(bulks, mostBulks) {
		errs = append(errs, r.createSome(ctx, some, p))
	}
	return errors.Join(errs...)
}

// createSome creates the ports of some bulks, and then their NeutronPorts.
func (r *round) createSome(ctx context.Context, bulks []bulk, p *cloud.Burst) error {
	made, errs := make([][]cloud.HeldPort, len(bulks)), make([]error, len(bulks))
	limit, done := r.calls(len(bulks))
	defer done()
	answered := r.cloud.late.Begin(r.v.Network.UID)
	var calls errgroup.Group
	calls.SetLimit(limit)
	for i, b := range bulks {
		calls.Go(func() error {
			made[i], errs[i] = r.os.CreateBurst(ctx, p, b.want)
			return nil
		})
	}
	_ = calls.Wait() // errs has what failed
	answered(errs...)

	nodes := map[string]string{} // by a port's id
	for i, b := range bulks {
		for _, port := range made[i] {
			nodes[port.ID] = b.node
		}
		if errs[i] == nil || !openstack.Unknown(errs[i]) {
			r.release(b, made[i], errs[i])
		}
	}
	all := slices.Concat(made...)
	r.k.ports = append(r.k.ports, all...)
	return errors.Join(append(errs, r.adoptPorts(ctx, all, func(port *cloud.HeldPort) string { return nodes[port.ID] }))...)
}

// calls returns how many of a Network's requests may be under way now. The caller has to call done after them.
func (r *portReconciler) calls(count int) (limit int, done func()) {
	if r.rounds.Add(1) > secondCalls || count == 1 {
		return 1, func() { r.rounds.Add(-1) }
	}
	return callsAtOnce, func() { r.rounds.Add(-1) }
}

// release releases the addresses of a bulk that none of the ports made has. err is why some were not made.
func (r *round) release(b bulk, made []cloud.HeldPort, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, addr := range b.want.Addresses {
		if slices.ContainsFunc(made, func(p cloud.HeldPort) bool { return p.Has(addr) }) {
			continue
		}
		delete(r.claimed[r.v.Key], view.NodeAddress{Node: b.node, Addr: addr})
		if errors.Is(err, cloud.ErrAddressTaken) {
			r.k.refused[addr] = true
		}
	}
}

// bulks divides the ports that are to be created into requests, and chooses their addresses. With an error, the bulks have fewer ports.
func (r *round) bulks(ctx context.Context, wanted []placed) ([]bulk, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	subnet, pool, err := objects.PodSubnet(r.v.Network, r.k.network)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, w := range wanted {
		total += w.count
	}
	size := min(max(divided(total, callsAtOnce), fewestPorts), cloud.MostPorts)
	var all []bulk
	var errs []error
	for _, w := range wanted {
		rules, err := r.rulesOf(ctx, w.at.Node)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		chosen := r.choose(w.at, rules.Within(pool), w.count)
		if len(chosen) < w.count {
			errs = append(errs, fmt.Errorf("node %s: subnet %s: %w: %d ports are missing", w.at.Node, subnet, errFull, w.count-len(chosen)))
		}
		if len(chosen) == 0 {
			continue
		}
		for addresses := range slices.Chunk(chosen, divided(len(chosen), divided(len(chosen), size))) {
			all = append(all, bulk{w.at.Node, cloud.NewPorts{
				Owner: objects.PortOwner(w.at), Project: r.k.project, Network: r.k.network.ID, Subnet: subnet,
				Subnet6: objects.PodSubnet6(r.v.Network, r.k.network), Host: r.v.Hosts[w.at.Node], Groups: []string{r.k.group}, Addresses: addresses,
			}})
		}
	}
	return all, errors.Join(errs...)
}

// divided is n divided by parts, rounded up.
func divided(n, parts int) int { return (n + parts - 1) / parts }

var errFull = errors.New("every address of its pools is another port's, another network's on this node, one that the node routes elsewhere, or outside of neutron.ranges: give the Network a larger range, or add its range to the chart's neutron.ranges")

// linkLocal are the addresses between a node and its pods.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16") //nolint:gochecknoglobals // a constant

// choose reserves free addresses of the pool, which has only those that pods may have, for a node: free in the network, also for its other
// nodes' ports that are being created, and on the node in all networks.
func (r *round) choose(at ahead.Place, pool []ahead.Range, count int) []netip.Addr {
	inNetwork := map[netip.Addr]bool{}
	for i := range r.k.ports {
		for _, ip := range r.k.ports[i].FixedIPs {
			if addr, err := netip.ParseAddr(ip.IPAddress); err == nil {
				inNetwork[addr] = true
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for claim := range r.claimed[r.v.Key] {
		inNetwork[claim.Addr] = true
	}
	taken := func(addr netip.Addr) bool {
		_, onNode := r.v.Taken[view.NodeAddress{Node: at.Node, Addr: addr}]
		return inNetwork[addr] || onNode || linkLocal.Contains(addr) || r.claimedByAny(view.NodeAddress{Node: at.Node, Addr: addr})
	}
	chosen := ahead.Addresses(pool, at, count, func(addr netip.Addr) bool { return r.k.refused[addr] || taken(addr) })
	if len(chosen) < count { // OpenStack may have them again
		clear(r.k.refused)
		chosen = ahead.Addresses(pool, at, count, taken)
	}
	if r.claimed[r.v.Key] == nil {
		r.claimed[r.v.Key] = map[view.NodeAddress]bool{}
	}
	for _, addr := range chosen {
		r.claimed[r.v.Key][view.NodeAddress{Node: at.Node, Addr: addr}] = true
	}
	return chosen
}

func (r *portReconciler) claimedByAny(at view.NodeAddress) bool {
	for _, claims := range r.claimed {
		if claims[at] {
			return true
		}
	}
	return false
}
