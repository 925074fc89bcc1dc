package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// table is the state of Services. It is not for concurrent use.
type table struct {
	known map[reconcile.Owner]*knownService
	// claims are the Services that name an address; the first one has it.
	claims map[place][]claim
	nodes  pipeline.NodeAddresses
	isNode map[netip.Addr]bool
	groups *groupid.IDs
	// targets count the Services with an endpoint there.
	targets map[pipeline.Target]int
	// untracked are targets of TCP that no Service has any more, whose connections are still to be flushed, each with the number of the change.
	// With policies there are none: all connections of pods are tracked.
	untracked map[pipeline.Target]uint64
	// pending are the owners whose fragments may not be in effect yet, each with the number of the change that affected it last.
	pending map[reconcile.Owner]uint64
	changes uint64
	// stale are connections to flush once the owner's flows are in effect.
	stale  map[reconcile.Owner][]service.Stale
	warned map[reconcile.Owner]string
}

// knownService is a Service and what was compiled from it.
type knownService struct {
	Service
	// effective are the addresses that it has, of those that it names.
	effective []service.VirtualAddress
	// groups are the names of groups that have a number for it.
	groups map[string]struct{}
	// targets are its endpoints as the switch reaches them.
	targets map[pipeline.Target]struct{}
}

// place is the destination of packets to an address; ip is the zero Addr for node ports.
type place struct {
	ip       netip.Addr
	protocol transport.Protocol
	port     uint16
}

func placeOf(v *service.VirtualAddress) place { return place{v.IP, v.Protocol, v.Port} }

// claim says that a Service names an address.
type claim struct {
	owner   reconcile.Owner
	rank    int
	created time.Time
}

// compare orders claims. What the API server assigned to one Service alone comes first, then what the controller of a load balancer wrote,
// then what any author of a Service may write. Among equals the older comes first: a new Service cannot take an address that another one
// has.
func (c claim) compare(other claim) int {
	return cmp.Or(cmp.Compare(c.rank, other.rank), c.created.Compare(other.created), cmp.Compare(c.owner, other.owner))
}

func rank(kind service.Kind) int {
	switch kind {
	case service.KindClusterIP, service.KindNodePort:
		return 0
	case service.KindLoadBalancer:
		return 1
	default:
		return 2
	}
}

func newTable(groups *groupid.IDs) table {
	return table{
		groups: groups,
		known:  map[reconcile.Owner]*knownService{}, claims: map[place][]claim{}, isNode: map[netip.Addr]bool{},
		targets: map[pipeline.Target]int{}, untracked: map[pipeline.Target]uint64{}, warned: map[reconcile.Owner]string{},
		pending: map[reconcile.Owner]uint64{}, stale: map[reconcile.Owner][]service.Stale{},
	}
}

// all returns the owners of all fragments.
func (x *table) all() map[reconcile.Owner]struct{} {
	owners := map[reconcile.Owner]struct{}{pipeline.OwnerNodes: {}}
	for owner := range x.known {
		owners[owner] = struct{}{}
	}
	return owners
}

// update stores a change, and returns the owners whose fragments may differ.
func (x *table) update(change Change) map[reconcile.Owner]struct{} {
	affected := map[reconcile.Owner]struct{}{}
	if change.Nodes != nil && !reflect.DeepEqual(x.nodes, *change.Nodes) {
		x.setNodes(*change.Nodes, affected)
	}
	for owner, next := range change.Services {
		was := x.known[owner]
		if was == nil && next.none() || was != nil && reflect.DeepEqual(was.Service, next) {
			continue
		}
		if was == nil {
			was = &knownService{}
			x.known[owner] = was
		}
		affected[owner] = struct{}{}
		for i := range was.Addresses {
			x.release(placeOf(&was.Addresses[i]), owner, affected)
		}
		was.Service = next
		for i := range next.Addresses {
			v := &next.Addresses[i]
			x.claim(placeOf(v), claim{owner, rank(v.Kind), next.Created}, affected)
		}
	}
	return affected
}

// setNodes stores the nodes' addresses. Services that name addresses of their own choice may lose some to nodes.
func (x *table) setNodes(nodes pipeline.NodeAddresses, affected map[reconcile.Owner]struct{}) {
	x.nodes = nodes
	x.isNode = make(map[netip.Addr]bool, len(nodes.Local)+len(nodes.Others))
	for _, addr := range slices.Concat(nodes.Local, nodes.Others) {
		x.isNode[addr] = true
	}
	affected[pipeline.OwnerNodes] = struct{}{}
	for owner, known := range x.known {
		if slices.ContainsFunc(known.Addresses, func(v service.VirtualAddress) bool { return rank(v.Kind) > 0 }) {
			affected[owner] = struct{}{}
		}
	}
}

// release removes a claim, and adds the owner that has the place now.
func (x *table) release(at place, owner reconcile.Owner, affected map[reconcile.Owner]struct{}) {
	claims := x.claims[at]
	first := len(claims) > 0 && claims[0].owner == owner
	claims = slices.DeleteFunc(claims, func(c claim) bool { return c.owner == owner })
	if len(claims) == 0 {
		delete(x.claims, at)
		return
	}
	x.claims[at] = claims
	if first {
		affected[claims[0].owner] = struct{}{}
	}
}

// claim adds a claim, and adds the owner that lost the place.
func (x *table) claim(at place, c claim, affected map[reconcile.Owner]struct{}) {
	claims := x.claims[at]
	i, _ := slices.BinarySearchFunc(claims, c, claim.compare)
	if i == 0 && len(claims) > 0 {
		affected[claims[0].owner] = struct{}{}
	}
	x.claims[at] = slices.Insert(claims, i, c)
}

// refused returns why a Service does not get an address that it names, nil if it gets it.
func (x *table) refused(c *pipeline.Config, v *service.VirtualAddress) error {
	if err := (pipeline.Services{Config: c}).Check(v); err != nil {
		return err
	}
	if x.isNode[v.IP] {
		return fmt.Errorf("%s: %s port %d of %s: the address is a node's: the switch leaves it to the host", v.Owner, v.Protocol, v.Port, v.IP)
	}
	if holder := x.claims[placeOf(v)][0].owner; holder != v.Owner {
		return fmt.Errorf("%s: %s port %d of %s: %s has it", v.Owner, v.Protocol, v.Port, v.IP, holder)
	}
	return nil
}

// compile returns the fragment of a Service, empty for one that is gone, and why parts of it are left out.
func (x *table) compile(c *pipeline.Config, owner reconcile.Owner) (map[openflow.Key]openflow.Entry, []error) {
	known := x.known[owner]
	var effective []service.VirtualAddress
	var warnings []error
	left := slices.Clone(known.Host)
	for i := range known.Addresses {
		v := &known.Addresses[i]
		err := x.refused(c, v)
		if err == nil {
			effective = append(effective, *v)
			continue
		}
		warnings = append(warnings, err)
		if v.Kind == service.KindClusterIP {
			left = append(left, v.IP)
		}
	}
	x.outdate(owner, service.Outdated(known.effective, effective))
	known.effective = effective
	x.aim(c, known)
	rules := pipeline.Services{Config: c}.Rules(effective, x.groups)
	if known.groups == nil {
		known.groups = map[string]struct{}{}
	}
	for i := range effective {
		known.groups[pipeline.GroupName(&effective[i])] = struct{}{}
	}
	rules.Rules = append(rules.Rules, pipeline.Services{Config: c}.HostRules(owner, left, effective)...)
	return rules.Fragment(), append(warnings, rules.Warnings...)
}

// outdate notes connections to flush once the owner's flows are in effect.
func (x *table) outdate(owner reconcile.Owner, connections []service.Stale) {
	for _, stale := range connections {
		if !slices.Contains(x.stale[owner], stale) {
			x.stale[owner] = append(x.stale[owner], stale)
		}
	}
}

// aim updates targets to a Service's endpoints.
func (x *table) aim(c *pipeline.Config, known *knownService) {
	targets := map[pipeline.Target]struct{}{}
	for i := range known.effective {
		v := &known.effective[i]
		for _, endpoint := range v.Known {
			targets[pipeline.Services{Config: c}.Target(v.Protocol, endpoint)] = struct{}{}
		}
	}
	for t := range targets {
		if _, had := known.targets[t]; !had {
			x.targets[t]++
			delete(x.untracked, t)
		}
	}
	for t := range known.targets {
		if _, has := targets[t]; has {
			continue
		}
		if x.targets[t]--; x.targets[t] == 0 {
			delete(x.targets, t)
			if t.Protocol == transport.TCP && c.Mode != pipeline.ModeNetworkPolicy {
				x.untracked[t] = x.changes
			}
		}
	}
	known.targets = targets
}

// still returns those of the targets whose connections no Service has. A flush for a network is for its port at all addresses.
func (x *table) still(targets []pipeline.Target) []pipeline.Target {
	return slices.DeleteFunc(slices.Clone(targets), func(t pipeline.Target) bool {
		for used := range x.targets {
			if used == t || !t.At.IsSingleIP() && used.Protocol == t.Protocol && used.Port == t.Port {
				return true
			}
		}
		return false
	})
}

// settle releases the numbers of groups that are no longer in the switch.
func (x *table) settle(owner reconcile.Owner) {
	known := x.known[owner]
	if known == nil {
		return
	}
	used := make(map[string]struct{}, len(known.groups))
	for i := range known.effective {
		used[pipeline.GroupName(&known.effective[i])] = struct{}{}
	}
	for name := range known.groups {
		if _, still := used[name]; !still {
			x.groups.Release(name)
		}
	}
	known.groups = used
	if known.none() {
		delete(x.known, owner)
	}
}

func compareTargets(a, b pipeline.Target) int {
	return cmp.Or(netip.Prefix.Compare(a.At, b.At), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}
