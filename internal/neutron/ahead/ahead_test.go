package ahead

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant

func ports(count int, change func(i int, p *Port)) []Port {
	all := make([]Port, count)
	for i := range all {
		all[i] = Port{ID: fmt.Sprintf("p%02d", i), Since: start}
		change(i, &all[i])
	}
	return all
}

func TestDecide(t *testing.T) {
	free := func(int, *Port) {}
	attached := func(_ int, p *Port) { p.Attached, p.Active = true, true }
	starting := func(_ int, p *Port) { p.Attached = true }
	attachedStuck := func(_ int, p *Port) { p.Attached, p.Stuck = true, true }
	// Of six ports, one is that of a pod, and is not ACTIVE.
	oneStarting := func(i int, p *Port) { p.Attached, p.Active = i == 0, i > 0 }
	used := func(_ int, p *Port) { p.Used = true }
	stuck := func(_ int, p *Port) { p.Stuck = true }
	active := func(_ int, p *Port) { p.Active = true }
	// Of three ports, one is stuck.
	oneStuck := func(i int, p *Port) { p.Stuck, p.Active = i == 0, i > 0 }
	for _, c := range []struct {
		name   string
		demand Demand
		ports  []Port
		after  time.Duration
		create int
		remove int
		again  time.Duration // after start
	}{
		{"no pods, no ports", Demand{}, nil, 0, 0, 0, 0},
		{"the first pod", Demand{Pods: 1, Waiting: 1}, nil, 0, 1, 0, 0},
		{"and nothing more while its port is not ACTIVE", Demand{Pods: 1, Waiting: 1}, ports(1, free), 0, 0, 0, 0},
		{"then spare ports", Demand{Pods: 1, Waiting: 1}, ports(1, active), 0, 2, 0, 0},
		{"and not while the port of an attached pod is not ACTIVE", Demand{Pods: 1}, ports(1, starting), 0, 0, 0, 0},
		{"unless that lasts", Demand{Pods: 1}, ports(1, attachedStuck), 0, 2, 0, 0},
		{"another pod gets its port meanwhile", Demand{Pods: 2, Waiting: 1}, ports(1, starting), 0, 1, 0, 0},
		{"and spare ports are kept", Demand{Pods: 1}, ports(6, oneStarting), Keep - time.Second, 0, 0, 0},
		{"a tenth is spare", Demand{Pods: 45, Waiting: 0}, ports(45, attached), 0, 5, 0, 0},
		{"at most 16 are", Demand{Pods: 400}, ports(400, attached), 0, 16, 0, 0},
		{"ports under way count", Demand{Pods: 3, Waiting: 3}, ports(5, free), 0, 0, 0, 0},
		{"one that rests does not", Demand{Pods: 1, Waiting: 1}, ports(3, used), 30 * time.Second, 1, 0, Rest},
		{"after its rest it does", Demand{Pods: 1, Waiting: 1}, ports(3, used), Rest, 0, 0, 0},
		{"not needed, kept", Demand{}, ports(3, free), Keep - time.Second, 0, 0, Keep},
		{"not needed for long", Demand{}, ports(3, free), Keep, 0, 3, 0},
		{"one too many", Demand{Pods: 2}, ports(6, free), Keep, 0, 1, 0},
		{"attached ports stay", Demand{}, ports(3, attached), 2 * Keep, 0, 0, 0},
		{"stuck ports are replaced", Demand{Pods: 1, Waiting: 1}, ports(3, stuck), 0, 1, 0, 0},
		{"at most 16 of them", Demand{Pods: 20, Waiting: 20}, ports(22, stuck), 0, 14, 0, 0},
		{"and not again while none is ACTIVE", Demand{Pods: 20, Waiting: 20}, ports(38, stuck), 0, 0, 0, 0},
		{"a stuck port is deleted once it is replaced", Demand{Pods: 2}, ports(3, oneStuck), 0, 0, 1, 0},
		{"many leave at the same time", Demand{Pods: 250, Waiting: 250}, ports(250, used), 0, 250, 0, Rest},
		{"and not ever more", Demand{Pods: 250, Waiting: 250}, ports(300, used), 0, 206, 0, Rest},
		{"nor with pods that are unknown", Demand{Pods: 2}, ports(300, attached), 0, 0, 0, 0},
		{"and not before", Demand{Pods: 2, Waiting: 1}, ports(3, oneStuck), 0, 1, 0, 0},
	} {
		plan := Decide(c.demand, leastOfFew, c.ports, start.Add(c.after))
		again := time.Time{}
		if c.again > 0 {
			again = start.Add(c.again)
		}
		if plan.Create != c.create || len(plan.Delete) != c.remove || !plan.Again.Equal(again) {
			t.Errorf("%s: %+v, want %d created, %d deleted, again after %s", c.name, plan, c.create, c.remove, c.again)
		}
	}
}

// poolOf is a pool with a number of addresses, in two ranges.
func poolOf(size uint32) []Range {
	const first, other = 1, 1 << 20
	half := size / 2
	pool := []Range{{address(other), address(other + size - half - 1)}}
	if half > 0 {
		pool = append(pool, Range{address(first), address(first + half - 1)})
	}
	return pool
}

func TestLeast(t *testing.T) {
	for _, c := range []struct {
		addresses   uint32
		nodes, want int
	}{
		{65533, 2, 5}, {65533, 20, 5}, {65533, 21, 2}, // a /16
		{253, 6, 5}, {253, 7, 2}, // a /24
		{40, 1, 5}, {39, 1, 2}, {1, 1, 2}, {1, 0, 5},
	} {
		if got := Least(poolOf(c.addresses), c.nodes); got != c.want {
			t.Errorf("%d addresses for %d nodes: %d, want %d", c.addresses, c.nodes, got, c.want)
		}
	}
	if got := Least(nil, 1); got != leastOfFew {
		t.Errorf("no addresses: %d", got)
	}
	pool := poolOf(253)
	for nodes, want := range map[int]int{3: LeastSpare, 100: leastOfFew} {
		one := ports(1, func(_ int, p *Port) { p.Attached, p.Active = true, true })
		if plan := Decide(Demand{Pods: 1}, Least(pool, nodes), one, start); plan.Create != want {
			t.Errorf("one of %d nodes creates %d, want %d", nodes, plan.Create, want)
		}
	}
}

// The least number never takes more than an eighth of the addresses, unless it is the one of networks with few addresses. With more
// addresses or fewer nodes it does not become smaller.
func TestLeastOfPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size, nodes := rapid.Uint32Range(1, 70000).Draw(t, "addresses"), rapid.IntRange(1, 3000).Draw(t, "nodes")
		least := Least(poolOf(size), nodes)
		if least != leastOfFew && least != LeastSpare {
			t.Fatalf("%d", least)
		}
		if least > leastOfFew && nodes*least > min(int(size)/addressesPerSpare, mostLeast) {
			t.Fatalf("%d nodes keep %d each, of %d addresses", nodes, least, size)
		}
		if Least(poolOf(size+1), nodes) < least || Least(poolOf(size), nodes-1) < least {
			t.Fatalf("%d addresses, %d nodes: %d, and fewer with more addresses or fewer nodes", size, nodes, least)
		}
	})
}

// Whatever a node reports of its ports, their number has a limit.
func TestLyingNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		demand := Demand{Pods: rapid.IntRange(1, 30).Draw(t, "pods")}
		demand.Waiting = rapid.IntRange(0, demand.Pods).Draw(t, "waiting")
		least := rapid.SampledFrom([]int{leastOfFew, LeastSpare}).Draw(t, "least")
		lie := rapid.SliceOfN(rapid.IntRange(0, 4), 1, 5).Draw(t, "lies")
		var all []Port
		now := start
		for round := range 400 {
			now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, Rest, Keep}).Draw(t, "later"))
			plan := Decide(demand, least, all, now)
			for i := range all {
				p := &all[i]
				p.Leaving = p.Leaving || slices.Contains(plan.Delete, p.ID) // the node never reports it as unplugged
				switch lie[(round+i)%len(lie)] {
				case 0:
					p.Attached = true
				case 1:
					p.Attached, p.Used, p.Since = false, true, now.Add(time.Hour)
				case 2:
					p.Attached, p.Used, p.Since, p.Active = false, false, start, true
				case 3:
					p.Attached, p.Active, p.Stuck = false, false, true
				}
			}
			for range plan.Create {
				all = append(all, Port{ID: fmt.Sprint("new", len(all)), Since: now})
			}
		}
		if most := demand.Pods + mostSpent + 2*mostSpare; len(all) > most {
			t.Errorf("%d ports, want at most %d", len(all), most)
		}
	})
}

// Executing the plans terminates: with the same pods, the result leaves nothing to plan, and no waiting pod lacks a port.
func TestDecideSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		demand := Demand{Pods: rapid.IntRange(0, 300).Draw(t, "pods")}
		demand.Waiting = rapid.IntRange(0, demand.Pods).Draw(t, "waiting")
		least := rapid.SampledFrom([]int{leastOfFew, LeastSpare}).Draw(t, "least")
		all := ports(rapid.IntRange(0, 60).Draw(t, "ports"), func(_ int, p *Port) {
			p.Attached = rapid.Bool().Draw(t, "attached")
			p.Used = p.Attached || rapid.Bool().Draw(t, "used")
			p.Active = rapid.Bool().Draw(t, "active")
			p.Stuck = !p.Active && rapid.Bool().Draw(t, "stuck")
			p.Since = start.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "since")) * time.Second)
		})
		now := start.Add(time.Duration(rapid.IntRange(3600, 7200).Draw(t, "now")) * time.Second)
		plan := Decide(demand, least, all, now)
		if plan.Create > 0 && len(plan.Delete) > 0 {
			t.Fatalf("%+v creates and deletes", plan)
		}
		for _, id := range plan.Delete {
			at := slices.IndexFunc(all, func(p Port) bool { return p.ID == id })
			if p := all[at]; p.Attached || now.Sub(p.Since) < Keep && !p.Stuck {
				t.Fatalf("deletes %+v", p)
			}
			all = slices.Delete(all, at, at+1)
		}
		for i := range plan.Create {
			all = append(all, Port{ID: fmt.Sprintf("new%d", i), Since: now})
		}
		if next := Decide(demand, least, all, now); next.Create != 0 || len(next.Delete) != 0 {
			t.Fatalf("after the plan %+v there is another, %+v", plan, next)
		}
		usable, stuck := 0, 0
		if plan.Spare && plan.Create == 0 {
			t.Fatalf("%+v has spare ports and creates none", plan)
		}
		for _, p := range all {
			switch {
			case p.Attached || p.Used && now.Sub(p.Since) < Rest:
			case p.Stuck:
				stuck++
			default:
				usable++
			}
		}
		if usable+max(0, stuck-mostSpare) < demand.Waiting {
			t.Fatalf("%d pods wait for %d ports", demand.Waiting, usable)
		}
	})
}

// Addresses are from the pool, free, different, and as many as possible; the same input results in the same addresses.
func TestAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := uint32(rapid.IntRange(1, 1000).Draw(t, "begin"))
		pool := []Range{{address(begin), address(begin + uint32(rapid.IntRange(0, 20).Draw(t, "size")))}}
		if rapid.Bool().Draw(t, "two") {
			pool = append(pool, Range{address(5000), address(5000 + uint32(rapid.IntRange(0, 5).Draw(t, "more")))})
		}
		used := map[netip.Addr]bool{}
		var open []netip.Addr
		for _, r := range pool {
			for a := r.First; !r.Last.Less(a); a = a.Next() {
				if rapid.Bool().Draw(t, "used") {
					used[a] = true
				} else {
					open = append(open, a)
				}
			}
		}
		at := Place{"n", rapid.StringMatching(`[a-c]`).Draw(t, "node")}
		count := rapid.IntRange(0, 30).Draw(t, "count")
		taken := func(a netip.Addr) bool { return used[a] }
		chosen := Addresses(pool, at, count, taken)
		if len(chosen) != min(count, len(open)) {
			t.Fatalf("%d addresses of %d free ones, want %d", len(chosen), len(open), count)
		}
		for i, a := range chosen {
			if !slices.Contains(open, a) || slices.Contains(chosen[:i], a) {
				t.Fatalf("%s is taken, or not of the pool, or twice: %v", a, chosen)
			}
		}
		if !slices.Equal(chosen, Addresses(pool, at, count, taken)) {
			t.Fatal("the same question has two answers")
		}
	})
	wrong := []Range{{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.1")}, {netip.MustParseAddr("::1"), netip.MustParseAddr("::9")}}
	if chosen := Addresses(wrong, Place{}, 1, func(netip.Addr) bool { return false }); len(chosen) != 0 {
		t.Errorf("a pool of nothing has %v", chosen)
	}
}

// A node that has pods for a short time now and then, and makes the least number smaller, has no port of another node deleted or created.
func TestLeastComesAndGoes(t *testing.T) {
	free := ports(1+LeastSpare, func(i int, p *Port) { p.Attached, p.Active = i == 0, true })
	for _, least := range []int{leastOfFew, LeastSpare} {
		if plan := Decide(Demand{Pods: 1}, least, free, start.Add(2*Keep)); plan.Create != 0 || len(plan.Delete) != 0 {
			t.Errorf("least %d: %+v", least, plan)
		}
	}
}
