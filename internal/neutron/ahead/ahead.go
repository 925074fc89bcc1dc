// Package ahead decides which ports exist in OpenStack before the pods that will use them: how many for each network and node, and with
// which addresses. It is pure: it makes no calls and reads no clock.
package ahead

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"
)

// Limits for the free ports of a place that has pods.
const (
	// LeastSpare and mostSpare limit the number of free ports in addition to those that waiting pods need; between them it is one for ten
	// pods. The least number is that of Kuryr-Kubernetes (ports_pool_min).
	LeastSpare, mostSpare = 5, 16
	podsPerSpare          = 10
	// leastOfFew is the least number where LeastSpare for each node would be more than one of addressesPerSpare addresses, or more than
	// mostLeast, a fifth of Neutron's default quota for a project.
	leastOfFew        = 2
	addressesPerSpare = 8
	mostLeast         = 100
	// Rest is how long a port that a pod has left stays without a pod: until then peers may send to the former pod.
	Rest = time.Minute
	// Keep is how long an unneeded port is kept.
	Keep = 10 * time.Minute
	// mostSpent limits the ports of a place that are neither free nor of one of its pods: that rest, are being deleted, or have another pod by
	// the node's report. A node that reports what is not true would otherwise use up the project's quota, and the addresses of all nodes. More
	// than 256 pods of one network seldom leave a node at the same time.
	mostSpent = 256
)

// Place is a network on a node.
type Place struct{ Network, Node string }

// Demand has the numbers of pods of a place.
type Demand struct {
	Pods    int // assigned to the node, attached or not
	Waiting int // of these, without a port
}

// Port is a port of a place.
type Port struct {
	ID       string
	Leaving  bool      // it is being deleted
	Attached bool      // to a pod
	Since    time.Time // when the last pod left it; if there was none, when it was created
	Used     bool      // a pod was attached to it
	Active   bool      // OpenStack reports the port as ACTIVE
	Stuck    bool      // the port has been plugged for long, and is not ACTIVE; also if it is attached
}

// Plan has the changes of a place.
type Plan struct {
	Create int
	// Spare reports that no waiting pod needs the ports to be created.
	Spare  bool
	Delete []string
	// Again is when to plan again even if nothing changes; zero for never.
	Again time.Time
}

// Decide plans a place. Stuck ports are replaced, at most mostSpare at a time, and deleted once enough other ports are ACTIVE: while none
// becomes ACTIVE, for instance because ovn-controller does not run on the node, the number of ports is limited, and none is deleted. What a node
// reports of its ports cannot make their number grow without limit either. least is what Least returns. Where it becomes smaller, no ports are
// deleted: otherwise a node that has pods for a short time now and then would have the ports of all others deleted and created.
func Decide(demand Demand, least int, ports []Port, now time.Time) Plan {
	want, kept := demand.Waiting+spare(demand.Pods, least), demand.Waiting+spare(demand.Pods, LeastSpare)
	var plan Plan
	var free []Port
	var stuck []string
	active, attached, starting, resting := 0, 0, 0, 0
	for _, p := range ports {
		switch {
		case p.Leaving:
			resting++
		case p.Attached:
			attached++
			if !p.Active && !p.Stuck {
				starting++
			}
		case p.Used && now.Sub(p.Since) < Rest:
			plan.again(p.Since.Add(Rest))
			resting++
		case p.Stuck:
			stuck = append(stuck, p.ID)
		default:
			free = append(free, p)
			if p.Active {
				active++
			}
		}
	}
	needed := want
	// OpenStack does one thing after the other: the creation of spare ports would delay the ports of pods that wait, and those of pods that were
	// just attached: with OVN, that is before they are ACTIVE.
	if active < demand.Waiting || starting > 0 {
		needed = demand.Waiting
	}
	spent := resting + max(0, attached-(demand.Pods-demand.Waiting))
	plan.Create = max(0, needed-len(free)-max(0, len(stuck)-mostSpare)-max(0, spent-mostSpent))
	plan.Spare = plan.Create > 0 && len(free) >= demand.Waiting
	if active >= want {
		slices.Sort(stuck)
		plan.Delete = stuck
	}
	// The ports unused for longest are deleted first.
	slices.SortFunc(free, func(a, b Port) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID)) })
	for _, p := range free[:max(0, len(free)-kept)] {
		if end := p.Since.Add(Keep); now.Before(end) {
			plan.again(end)
		} else {
			plan.Delete = append(plan.Delete, p.ID)
		}
	}
	return plan
}

// spare is how many ports are kept for future pods.
func spare(pods, least int) int {
	if pods == 0 {
		return 0
	}
	return min(max(least, (pods+podsPerSpare-1)/podsPerSpare), mostSpare)
}

// Least is the least number of ports that each of a network's nodes with pods has created for future pods: fewer if they would be many, or take
// much of the pool from which the network's pods have their addresses.
func Least(pool []Range, nodes int) int {
	if spare := uint64(max(0, nodes)) * LeastSpare; spare > mostLeast || spare*addressesPerSpare > sizeOf(pool) {
		return leastOfFew
	}
	return LeastSpare
}

func (p *Plan) again(at time.Time) {
	if p.Again.IsZero() || at.Before(p.Again) {
		p.Again = at
	}
}

// Range is a range of addresses of one family, both ends included.
type Range struct{ First, Last netip.Addr }

// Addresses chooses free addresses for a place, fewer than count if the pool has fewer. The choice begins at a point of the pool that
// depends on the place, so that places that share a pool, and tenants that share a range, seldom choose the same.
func Addresses(pool []Range, at Place, count int, taken func(netip.Addr) bool) []netip.Addr {
	size := sizeOf(pool)
	if size == 0 {
		return nil
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(at.Network + "\x00" + at.Node))
	begin := hash.Sum64() % size
	var chosen []netip.Addr
	for i := uint64(0); i < size && len(chosen) < count; i++ {
		addr := nth(pool, (begin+i)%size)
		if !taken(addr) {
			chosen = append(chosen, addr)
		}
	}
	return chosen
}

// sizeOf counts the addresses of a pool.
func sizeOf(pool []Range) (size uint64) {
	for _, r := range pool {
		size += r.size()
	}
	return size
}

// size counts the addresses of an IPv4 range; for other families it returns 0.
func (r Range) size() uint64 {
	if !r.First.Is4() || !r.Last.Is4() || r.Last.Less(r.First) {
		return 0
	}
	return uint64(number(r.Last)-number(r.First)) + 1
}

func nth(pool []Range, n uint64) netip.Addr {
	for _, r := range pool {
		size := r.size()
		if n < size {
			return address(number(r.First) + uint32(n)) //nolint:gosec // below the size of an IPv4 range
		}
		n -= size
	}
	return netip.Addr{}
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) //nolint:gosec // one byte each
}
