package egressips

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/egressip"
	"weft.dev/weft/internal/overlay/cluster/plan"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/testwait"
)

// settling is a number of rounds after which two nodes and the controller no longer change anything.
const settling = 8

// rounds are nodes with ranges and the controller, which take their steps in turn.
type rounds struct {
	t      *testing.T
	agents []*roundAgent
	state  plan.EgressIPState
	// foreign are the addresses that hosts outside the cluster have.
	foreign map[netip.Addr]bool
	// given counts how often the controller gave each address to a node.
	given map[string]int
}

// roundAgent is a node's egress IPs, with the ways of its last step.
type roundAgent struct {
	*Follower
	// again are the probes of the next minute.
	again []func()
	ways  egress.IPs
}

// newRounds returns nodes with a common range, and a namespace for each address.
func newRounds(t *testing.T, nodes int, addresses ...string) *rounds {
	r := &rounds{t: t, foreign: map[netip.Addr]bool{}, given: map[string]int{}}
	for i, address := range addresses {
		name := "to" + address
		r.state.NetNamespaces = append(r.state.NetNamespaces, networkv1.NetNamespace{
			ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: uint32(10 + i), EgressIPs: []string{address}, //nolint:gosec // few
		})
	}
	for i := range nodes {
		hs := egressHost(fmt.Sprintf("n%d", i+1), fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("10.128.%d.0/23", 2*i))
		hs.EgressCIDRs = []string{"192.0.2.0/24"}
		r.state.HostSubnets = append(r.state.HostSubnets, hs)
		r.agents = append(r.agents, nil)
		r.start(i)
	}
	return r
}

// start starts a node's agent, again if it runs.
func (r *rounds) start(i int) {
	a := &roundAgent{Follower: egressNode(clusternetwork.ModeMultitenant)}
	a.node, a.site.node = r.state.HostSubnets[i].Name, netip.MustParseAddr(r.state.HostSubnets[i].HostIP)
	a.probes.probe = func(_ string, address netip.Addr, _ []netip.Addr) (net.HardwareAddr, error) {
		if r.foreign[address] {
			return net.HardwareAddr{2, 0, 0, 0, 0, 9}, nil
		}
		return nil, nil //nolint:nilnil // none has it
	}
	a.probes.holds, a.probes.changed = func(netip.Addr) bool { return false }, func() {}
	a.probes.after = func(_ time.Duration, again func()) *time.Timer {
		a.again = append(a.again, again)
		return nil
	}
	r.agents[i] = a
}

// step lets a node take its steps until no probe is in progress.
func (r *rounds) step(a *roundAgent) {
	r.t.Helper()
	clear(a.known)
	for i := range r.state.NetNamespaces {
		nn := &r.state.NetNamespaces[i]
		a.known[nn.Name] = egressip.Namespace{Name: nn.Name, VNID: nn.NetID, IPs: clusternetwork.WantedEgressIPs(nn)}
	}
	a.Follower.ways(r.state.HostSubnets)
	testwait.Until(r.t, "answers to all probes", func() bool {
		a.probes.mu.Lock()
		defer a.probes.mu.Unlock()
		return !slices.ContainsFunc(slices.Collect(maps.Values(a.probes.verdicts)), func(v *egressVerdict) bool { return !v.known })
	})
	a.ways = a.Follower.ways(r.state.HostSubnets)
}

// play plays rounds: in each, all nodes report, and then the controller assigns addresses. It returns the controller's last plan.
func (r *rounds) play(most int) (last plan.EgressIPPlan) {
	r.t.Helper()
	for range most {
		for i, a := range r.agents {
			r.step(a)
			r.state.HostSubnets[i].Status.RefusedEgressIPs = refusedStatus(a.Refusals())
		}
		last = plan.EgressIPs(r.state)
		for _, hs := range last.Update {
			at := slices.IndexFunc(r.state.HostSubnets, func(have networkv1.HostSubnet) bool { return have.Name == hs.Name })
			for _, ip := range hs.EgressIPs {
				if !slices.Contains(r.state.HostSubnets[at].EgressIPs, ip) {
					r.given[ip]++
				}
			}
			r.state.HostSubnets[at].EgressIPs = hs.EgressIPs
		}
	}
	return last
}

// refusedStatus returns what a node's status says of refused addresses.
func refusedStatus(refused map[string]string) []networkv1.HostSubnetRefusedEgressIP {
	var status []networkv1.HostSubnetRefusedEgressIP
	for ip, why := range refused {
		status = append(status, networkv1.HostSubnetRefusedEgressIP{IP: ip, Reason: why})
	}
	slices.SortFunc(status, func(a, b networkv1.HostSubnetRefusedEgressIP) int {
		return netip.MustParseAddr(a.IP).Compare(netip.MustParseAddr(b.IP))
	})
	return status[:min(len(status), networkv1.MaxRefusedEgressIPs)]
}

// minute lets the nodes probe again the addresses that they refuse.
func (r *rounds) minute() {
	for _, a := range r.agents {
		a.probes.mu.Lock()
		again := a.again
		a.again = nil
		a.probes.mu.Unlock()
		for _, probe := range again {
			probe()
		}
	}
}

// refused checks that an address is in use nowhere, and that its namespace's problem has the reason.
func (r *rounds) refused(when, address, reason string, last plan.EgressIPPlan) {
	r.t.Helper()
	if got := last.InUse["to"+address]; got != "" {
		r.t.Errorf("%s: %s is reported as in use: %s", when, address, got)
	}
	for _, hs := range r.state.HostSubnets {
		if slices.Contains(hs.EgressIPs, address) {
			r.t.Errorf("%s: %s is given to %s", when, address, hs.Name)
		}
	}
	reports := func(p plan.Problem) bool { return p.Name == "to"+address && strings.Contains(p.Message, reason) }
	if !slices.ContainsFunc(last.Problems, reports) {
		r.t.Errorf("%s: the problems are %+v", when, last.Problems)
	}
}

// used checks that an address is in use without problems, at a node through which its namespace's pods leave.
func (r *rounds) used(when, address string, last plan.EgressIPPlan) {
	r.t.Helper()
	at := slices.IndexFunc(r.state.NetNamespaces, func(nn networkv1.NetNamespace) bool { return nn.Name == "to"+address })
	vnid, holders := r.state.NetNamespaces[at].NetID, 0
	for i, a := range r.agents {
		if a.ways.Ways[vnid].Address == netip.MustParseAddr(address) {
			holders++
			if want := address + " at " + r.state.HostSubnets[i].Name; last.InUse["to"+address] != want {
				r.t.Errorf("%s: %s holds it, reported is %q", when, r.state.HostSubnets[i].Name, cmp.Or(last.InUse["to"+address], "nothing"))
			}
		}
	}
	if holders != 1 {
		r.t.Errorf("%s: %d nodes hold %s", when, holders, address)
	}
	if slices.ContainsFunc(last.Problems, func(p plan.Problem) bool { return p.Name == "to"+address }) {
		r.t.Errorf("%s: the problems are %+v", when, last.Problems)
	}
}

// An address that a foreign host has is given to each node with ranges once, and then to none until that host no longer has it.
func TestForeignAddressStaysRefused(t *testing.T) {
	const address, foreign = "192.0.2.101", "in use by a host that is not a node"
	for _, nodes := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			r := newRounds(t, nodes, address)
			r.foreign[netip.MustParseAddr(address)] = true
			r.refused("after the first rounds", address, foreign, r.play(settling))
			for range settling {
				r.refused("later", address, foreign, r.play(1))
				r.minute()
			}
			for i := range nodes {
				r.start(i)
			}
			for range settling {
				r.refused("after a restart of the agents", address, foreign, r.play(1))
			}
			if r.given[address] != nodes {
				t.Errorf("the address was given to nodes %d times", r.given[address])
			}
			delete(r.foreign, netip.MustParseAddr(address))
			r.refused("before the next probe", address, foreign, r.play(1))
			r.minute()
			r.play(settling)
			for range settling {
				r.used("when the foreign host has left", address, r.play(1))
			}
			if want := nodes + 1; r.given[address] != want {
				t.Errorf("the address was given to nodes %d times, want %d", r.given[address], want)
			}
		})
	}
}

// The probes of a refused address end when no namespace requests it, or when it is no longer in the node's ranges.
func TestProbesOfRefusedAddressesEnd(t *testing.T) {
	const address = "192.0.2.101"
	for name, end := range map[string]func(*rounds){
		"not requested":     func(r *rounds) { r.state.NetNamespaces[0].EgressIPs = nil },
		"not in the ranges": func(r *rounds) { r.state.HostSubnets[0].EgressCIDRs = []string{"192.0.2.192/26"} },
	} {
		r := newRounds(t, 1, address)
		r.foreign[netip.MustParseAddr(address)] = true
		r.play(settling)
		if probed := len(r.agents[0].probes.verdicts); probed != 1 {
			t.Errorf("%s: %d addresses are probed before", name, probed)
		}
		end(r)
		r.play(1)
		r.minute()
		if left := len(r.agents[0].probes.verdicts) + len(r.agents[0].again); left != 0 || len(r.agents[0].Refusals()) != 0 {
			t.Errorf("%s: %d addresses are still probed, refused are %v", name, left, r.agents[0].Refusals())
		}
	}
}

// While a node refuses more addresses than its status has room for, those that the status lacks are not used either.
func TestMoreRefusedThanTheStatusHas(t *testing.T) {
	const foreign, beyond, free = "in use by a host that is not a node", "every address above 192.0.2.164 counts as refused", "192.0.2.200"
	var addresses []string
	for i := range networkv1.MaxRefusedEgressIPs + 1 {
		addresses = append(addresses, fmt.Sprintf("192.0.2.%d", 101+i))
	}
	r := newRounds(t, 1, append(addresses, free)...)
	for _, address := range addresses {
		r.foreign[netip.MustParseAddr(address)] = true
	}
	r.play(settling)
	for range settling {
		last := r.play(1)
		for i, address := range append(addresses, free) {
			reason := foreign
			if i >= networkv1.MaxRefusedEgressIPs {
				reason = beyond
			}
			r.refused("with every host", address, reason, last)
		}
		r.minute()
	}
	for _, address := range append(addresses, free) {
		if r.given[address] != 1 {
			t.Errorf("%s was given to nodes %d times", address, r.given[address])
		}
	}
	for _, address := range addresses[:2] {
		delete(r.foreign, netip.MustParseAddr(address))
	}
	r.minute()
	last := r.play(settling)
	for i, address := range append(addresses, free) {
		if i < 2 || address == free {
			r.used("two hosts have left", address, last)
		} else {
			r.refused("two hosts have left", address, foreign, last)
		}
	}
}
