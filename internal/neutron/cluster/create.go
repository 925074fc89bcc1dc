package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/objects"
)

// plan creates and deletes the ports that the number of pods requires, and returns when to plan again.
func (r *round) plan(ctx context.Context) (time.Duration, error) {
	now, next := r.now(), reread
	var errs []error
	problem := ""
	for _, node := range r.v.nodes() {
		host, there := r.v.hosts[node]
		if !there {
			errs = append(errs, r.deleteOf(ctx, node, nil))
			continue
		}
		held := r.v.portsOf(node, func(id string) bool {
			since, waits := r.k.inactive[id]
			return waits && now.Sub(since) >= stuckAfter
		})
		if at := slices.IndexFunc(held, func(p ahead.Port) bool { return p.Stuck }); at >= 0 {
			problem = fmt.Sprintf("node %s: %s is plugged and has not become ACTIVE for %s; other ports are created in its place: openstack port show %[2]s, and see the log of ovn-controller or of Neutron's agent on the node",
				node, held[at].ID, stuckAfter)
		}
		decided := ahead.Decide(r.v.demand[node], append(held, r.unseen(node)...), now)
		if !decided.Again.IsZero() {
			next = min(next, max(decided.Again.Sub(now), soonest))
		}
		errs = append(errs, r.deleteOf(ctx, node, decided.Delete))
		switch {
		case decided.Create == 0:
		case host == "":
			problem = fmt.Sprintf("node %s reports no hostname of its Open vSwitch: its agent serves no pods of OpenStack's networks yet", node)
		default:
			err := r.create(ctx, ahead.Place{Network: string(r.v.network.UID), Node: node}, decided.Create)
			if err != nil {
				problem = err.Error()
			}
			errs = append(errs, err)
		}
	}
	r.problem(problem)
	return next, errors.Join(errs...)
}

// unseen are a node's ports in OpenStack whose NeutronPorts are not in the cache yet.
func (r *round) unseen(node string) []ahead.Port {
	seen := map[string]bool{}
	for i := range r.v.ports {
		seen[r.v.ports[i].Name] = true
	}
	var all []ahead.Port
	for i := range r.k.ports {
		at, marked := placeOf(r.os, &r.k.ports[i])
		_, ours := r.created(&r.k.ports[i])
		if marked && ours && at.Network == string(r.v.network.UID) && at.Node == node && !seen[r.k.ports[i].ID] {
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
	_, there := r.v.hosts[node]
	var errs []error
	for i := range r.v.ports {
		p := &r.v.ports[i]
		if p.Spec.Node == node && (!there || wanted[p.Name]) {
			errs = append(errs, r.deleteObject(ctx, p))
		}
	}
	return errors.Join(errs...)
}

// create creates ports in bulk, and their NeutronPorts.
func (r *round) create(ctx context.Context, at ahead.Place, count int) error {
	subnet, pool, err := objects.PodSubnet(r.v.network, r.k.network)
	if err != nil {
		return err
	}
	rules, err := r.rulesOf(ctx, at.Node)
	if err != nil {
		return err
	}
	for count > 0 {
		chosen := r.choose(at, pool, min(count, cloud.MostPorts), rules)
		if len(chosen) == 0 {
			return fmt.Errorf("node %s: subnet %s: %w: %d ports are missing", at.Node, subnet, errFull, count)
		}
		made, err := r.os.CreatePorts(ctx, cloud.NewPorts{
			Owner: objects.PortOwner(at), Project: r.k.project, Network: r.k.network.ID, Subnet: subnet,
			Subnet6: objects.PodSubnet6(r.v.network, r.k.network), Host: r.v.hosts[at.Node], Groups: []string{r.k.group}, Addresses: chosen,
		})
		if err != nil {
			return err
		}
		r.k.ports = append(r.k.ports, made...)
		count -= len(chosen)
		for i := range made {
			if err := r.adoptPort(ctx, &made[i], at.Node); err != nil {
				return err
			}
		}
	}
	return nil
}

var errFull = errors.New("every address of its pools is another port's, another network's on this node, one that the node routes elsewhere, or outside of neutron.ranges: give the Network a larger range, or add its range to the chart's neutron.ranges")

// linkLocal are the addresses between a node and its pods.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16") //nolint:gochecknoglobals // a constant

// choose reserves free addresses of the pool for a node: free in the network, and on the node in all networks.
func (r *round) choose(at ahead.Place, pool []ahead.Range, count int, rules *objects.Rules) []netip.Addr {
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
	chosen := ahead.Addresses(pool, at, count, func(addr netip.Addr) bool {
		_, onNode := r.v.taken[nodeAddress{at.Node, addr}]
		return inNetwork[addr] || onNode || linkLocal.Contains(addr) || r.claimedByAny(nodeAddress{at.Node, addr}) || rules.Refuses(addr)
	})
	if r.claimed[r.v.key] == nil {
		r.claimed[r.v.key] = map[nodeAddress]bool{}
	}
	for _, addr := range chosen {
		r.claimed[r.v.key][nodeAddress{at.Node, addr}] = true
	}
	return chosen
}

func (r *portReconciler) claimedByAny(at nodeAddress) bool {
	for _, claims := range r.claimed {
		if claims[at] {
			return true
		}
	}
	return false
}
