package topology

import (
	"fmt"
	"maps"
	"slices"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// Part is a part of the network: what a Shape decides on.
type Part struct {
	VPCs    map[string]*VPC
	Subnets map[string]*Subnet
	// bindings are those of the subnets.
	bindings map[string]*binding.Subnet
}

// Change is what a Shape has changed for others.
type Change struct {
	// Before and Now are what was decided again: VPCs and Subnets in them need not differ.
	Before, Now Part
	// Gone are the owners of rows whose objects were deleted.
	Gone []string
	// Rebound are the Subnets whose pods may be bound differently.
	Rebound []Rebound
}

// Rebound is a Subnet whose pods may be bound differently, as pods are bound to it before and now; nil: there was, or is, none.
type Rebound struct{ Before, Now *binding.Subnet }

// Name returns the Subnet's name.
func (r Rebound) Name() string {
	if r.Now != nil {
		return r.Now.Name
	}
	return r.Before.Name
}

// shaper makes one Shape.
type shaper struct {
	*Network
	chosen    *Chosen
	old, made Part
}

// Shape decides again which VPCs and Subnets exist, as far as changes name them, and chooses those that have changed. A VPC and its Subnets
// depend only on each other, on tunnel keys and on peers.
func (n *Network) Shape(chosen *Chosen) Change {
	if len(n.reshaped.vpcs)+len(n.reshaped.subnets) == 0 {
		return Change{}
	}
	n.complete()
	s := shaper{Network: n, chosen: chosen, old: n.takePart(), made: Part{VPCs: map[string]*VPC{}, Subnets: map[string]*Subnet{}}}
	s.parse()
	s.assignKeys()
	s.chooseChanged()
	change := Change{Before: s.old, Now: s.made, Gone: s.gone(), Rebound: s.rebound()}
	n.reshaped = names{map[string]struct{}{}, map[string]struct{}{}}
	return change
}

// parse reads the objects, and decides on Subnets by age.
func (s *shaper) parse() {
	for name := range s.reshaped.vpcs {
		if object := s.objects.vpcs[name]; object != nil {
			s.made.VPCs[name] = s.parseVPC(object, s.old.VPCs[name])
		}
	}
	var byAge []*Subnet
	for name := range s.reshaped.subnets {
		if object := s.objects.subnets[name]; object != nil {
			s.made.Subnets[name] = s.parseSubnet(object, s.old.Subnets[name])
			byAge = append(byAge, s.made.Subnets[name])
		}
	}
	slices.SortFunc(byAge, func(a, b *Subnet) int { return a.age.Compare(b.age) })
	for _, one := range byAge {
		s.admit(one)
	}
}

// assignKeys assigns tunnel keys to the new VPCs and subnets, and chooses those whose key changes.
func (s *shaper) assignKeys() {
	for _, v := range s.made.VPCs {
		if v.Exists {
			age := objects.Age{Meta: v.Value.Meta, Created: v.Object.CreationTimestamp.Time}
			s.keys.add(keyHolder{age: age, has: v.read.TunnelKey, key: &v.Value.TunnelKey, vpc: v})
		}
	}
	for _, one := range s.made.Subnets {
		if one.Switched() {
			s.keys.add(keyHolder{age: one.age, has: one.read.TunnelKey, key: &one.Value.TunnelKey, subnet: one})
		}
	}
	for _, h := range s.keys.assign() {
		if h.vpc != nil {
			s.chosen.VPC(h.vpc)
		} else {
			s.chosen.Subnet(h.subnet)
		}
	}
}

// complete adds to the VPCs and subnets to be shaped: with a VPC or one of its subnets, all of its subnets; with an external subnet, all of
// these.
func (n *Network) complete() {
	for name := range n.reshaped.subnets {
		if object := n.objects.subnets[name]; n.external[name] != nil || object != nil && objects.External(&object.Spec) {
			for other := range n.external {
				n.reshaped.subnets[other] = struct{}{}
			}
			break
		}
	}
	for name := range n.reshaped.subnets {
		for _, vpc := range []string{specVPC(n.objects.subnets[name]), specVPC(n.subnetObject(name))} {
			if n.objects.vpcs[vpc] != nil || n.vpcs[vpc] != nil {
				n.reshaped.vpcs[vpc] = struct{}{}
			}
		}
	}
	for vpc := range n.reshaped.vpcs {
		for name := range n.objects.subnetsOf[vpc] {
			n.reshaped.subnets[name] = struct{}{}
		}
	}
}

// takePart removes what is to be shaped from the network.
func (n *Network) takePart() Part {
	old := Part{VPCs: map[string]*VPC{}, Subnets: map[string]*Subnet{}, bindings: map[string]*binding.Subnet{}}
	for name := range n.reshaped.subnets {
		if s := n.byName[name]; s != nil {
			old.Subnets[name], old.bindings[name] = s, n.bindings.Get(name)
			n.keys.remove(&s.Value.TunnelKey)
			n.bindings.Remove(name)
			delete(n.byName, name)
			delete(n.byUID, string(s.Object.UID))
			delete(n.external, name)
		}
	}
	for name := range n.reshaped.vpcs {
		if v := n.vpcs[name]; v != nil {
			old.VPCs[name] = v
			n.keys.remove(&v.Value.TunnelKey)
			delete(n.vpcs, name)
			for _, peering := range v.Value.Peerings {
				n.peersOf.Remove(peering.Remote, name)
			}
		}
	}
	return old
}

// subnetObject returns the Subnet that the last Shape used.
func (n *Network) subnetObject(name string) *kubeovn.Subnet {
	if s := n.byName[name]; s != nil {
		return s.Object
	}
	return nil
}

// specVPC returns the name of the Vpc that a Subnet names; nil names none.
func specVPC(o *kubeovn.Subnet) string {
	if o == nil {
		return ""
	}
	return o.Spec.Vpc
}

// hasRows reports whether an object has rows: it is not being deleted, or its finalizer keeps it until nothing uses it any more.
func hasRows(object report.Object) bool {
	return object.GetDeletionTimestamp() == nil || report.Held(object)
}

func (n *Network) parseVPC(object *kubeovn.Vpc, before *VPC) *VPC {
	v := &VPC{Object: object, Named: len(n.objects.subnetsOf[object.Name])}
	if before != nil && before.Object == object {
		v.read, v.parsed = before.read, before.parsed
	} else {
		v.read, v.parsed = objects.ParseVPC(object)
	}
	v.Value, v.Problems = v.read, v.parsed
	v.Exists = object.Name != kubeovn.DefaultVpc && hasRows(object)
	n.vpcs[object.Name] = v
	for _, peering := range v.Value.Peerings {
		n.peersOf.Put(peering.Remote, object.Name, v)
	}
	return v
}

func (n *Network) parseSubnet(object *kubeovn.Subnet, before *Subnet) *Subnet {
	s := &Subnet{Object: object}
	if before != nil && before.Object == object {
		s.read, s.Problems, s.usable, s.unfit = before.read, before.Problems, before.usable, before.unfit
	} else {
		s.parse()
	}
	s.Value = s.read
	if !s.usable {
		s.Reason, s.Message = kubeovn.ReasonInvalid, s.Problems.Error()
		if object.Spec.Vpc == "" || object.Spec.Vpc == kubeovn.DefaultVpc {
			s.Reason = kubeovn.ReasonDefaultVpc
		}
	}
	s.age = objects.Age{Meta: s.Value.Meta, Created: object.CreationTimestamp.Time}
	n.byName[object.Name], n.byUID[string(object.UID)] = s, s
	if s.Value.Definition != "" {
		n.external[object.Name] = s
	}
	return s
}

func (s *Subnet) parse() {
	if s.read, s.Problems, s.usable = objects.ParseSubnet(s.Object); !s.usable {
		return
	}
	if _, err := ipam.NewSubnetPool(s.read.Prefix, s.read.Gateway, s.read.Excludes); err != nil {
		s.unfit = "spec.cidrBlock: " + err.Error()
	}
}

// admit decides whether a subnet exists. The older subnets of its VPC are admitted before.
func (n *Network) admit(s *Subnet) {
	if s.Reason == "" {
		s.Reason, s.Message = n.obstacle(s)
	}
	if s.Reason == "" && s.unfit != "" {
		s.Reason, s.Message = kubeovn.ReasonInvalid, s.unfit
	}
	s.Exists = s.Reason == "" && hasRows(s.Object)
	b := &binding.Subnet{Subnet: s.Value, Age: s.age, Broken: s.Message}
	if v := n.vpcs[s.Value.VPC]; v != nil {
		b.Permitted = v.Value.Namespaces
		if s.Switched() {
			v.Subnets = append(v.Subnets, s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.objects.gatewaysIn[s.Value.Name])) {
		if n.objects.gatewaysIn[s.Value.Name][name] == s.Value.VPC {
			b.Gateways = append(b.Gateways, nat.PodName(name))
		}
	}
	n.bindings.Set(b)
}

// chooseChanged chooses what has changed: subnets and VPCs, and the VPCs of subnets and of peers.
func (s *shaper) chooseChanged() {
	for name, one := range s.made.Subnets {
		before := s.old.Subnets[name]
		if before != nil && before.Object == one.Object && before.Reason == one.Reason && before.Message == one.Message &&
			before.Value.TunnelKey == one.Value.TunnelKey && sameVPC(s.old.VPCs[one.Value.VPC], s.made.VPCs[one.Value.VPC]) {
			one.Addresses = before.Addresses
			continue
		}
		s.chosen.Subnet(one)
	}
	changed := map[string]struct{}{}
	for name, v := range s.made.VPCs {
		before := s.old.VPCs[name]
		same := sameVPC(before, v)
		if !same {
			changed[name] = struct{}{}
		}
		if !same || before.Object != v.Object || before.Named != v.Named || before.Value.TunnelKey != v.Value.TunnelKey ||
			!sameSubnets(before.Subnets, v.Subnets) {
			s.chosen.VPC(v)
		}
	}
	for name := range s.old.VPCs {
		if s.made.VPCs[name] == nil {
			changed[name] = struct{}{}
		}
	}
	for name := range changed {
		for _, peer := range s.peersOf[name] {
			s.chosen.VPC(peer)
		}
	}
}

// gone returns the owners of rows whose objects were deleted.
func (s *shaper) gone() (owners []string) {
	for name, before := range s.old.VPCs {
		if now := s.made.VPCs[name]; now == nil || now.Object.UID != before.Object.UID {
			owners = append(owners, before.Value.Owner())
		}
	}
	for name, before := range s.old.Subnets {
		if now := s.made.Subnets[name]; now == nil || now.Object.UID != before.Object.UID {
			owners = append(owners, before.Value.Owner())
		}
	}
	return owners
}

// rebound returns the Subnets whose pods may be bound differently.
func (s *shaper) rebound() (changed []Rebound) {
	for name := range s.reshaped.subnets {
		before, now := s.old.bindings[name], s.bindings.Get(name)
		if sameBinding(before, now) && (now == nil || s.old.Subnets[name].Object == s.byName[name].Object) {
			continue
		}
		changed = append(changed, Rebound{before, now})
	}
	return changed
}

// sameBinding reports whether two states of a subnet are the same for pods, if its object is the same.
func sameBinding(a, b *binding.Subnet) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Broken == b.Broken && slices.Equal(a.Permitted, b.Permitted) && slices.Equal(a.Gateways, b.Gateways)
}

// sameVPC reports whether two states of a VPC are the same for its subnets and peers.
func sameVPC(a, b *VPC) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Object.UID == b.Object.UID && a.Exists == b.Exists && report.Held(a.Object) == report.Held(b.Object) && slices.Equal(a.Value.Peerings, b.Value.Peerings)
}

// sameSubnets reports whether a VPC's subnets are the same for its router.
func sameSubnets(a, b []*Subnet) bool {
	return slices.EqualFunc(a, b, func(a, b *Subnet) bool {
		return a.Object.UID == b.Object.UID && a.Value.Prefix == b.Value.Prefix && a.Value.Gateway == b.Value.Gateway && a.Value.RouteTable == b.Value.RouteTable
	})
}

// obstacle returns why a subnet that is valid by itself cannot exist.
func (n *Network) obstacle(s *Subnet) (reason, message string) {
	if s.Value.Definition != "" {
		return n.sharesNetwork(s, n.objects.masters)
	}
	v := n.vpcs[s.Value.VPC]
	if v == nil {
		return kubeovn.ReasonMissing, fmt.Sprintf("spec.vpc: there is no Vpc %.64q; create it, or delete the Subnet and make it anew with another one", s.Value.VPC)
	}
	if !v.Exists {
		return kubeovn.ReasonPending, fmt.Sprintf("Vpc %s is not in effect yet", s.Value.VPC)
	}
	for _, other := range v.Subnets {
		if other.Value.Prefix.Overlaps(s.Value.Prefix) {
			return kubeovn.ReasonConflict, fmt.Sprintf("spec.cidrBlock: %s overlaps %s of the older Subnet %s of the same Vpc; choose another range",
				s.Value.Prefix, other.Value.Prefix, other.Value.Name)
		}
	}
	return "", ""
}

// sharesNetwork returns why an external subnet cannot exist: it would give the addresses of an older one on the same network again.
func (n *shaped) sharesNetwork(s *Subnet, devices masters) (reason, message string) {
	for _, name := range slices.Sorted(maps.Keys(n.external)) {
		other := n.external[name]
		if other.age.Compare(s.age) >= 0 || other.Reason != "" || !other.Value.Prefix.Overlaps(s.Value.Prefix) {
			continue
		}
		if network := devices.shared(s.Value.Definition, other.Value.Definition); network != "" {
			return kubeovn.ReasonConflict, fmt.Sprintf("spec.cidrBlock: %s overlaps %s of the older Subnet %s, %s; choose another range, or use that Subnet",
				s.Value.Prefix, other.Value.Prefix, other.Value.Name, network)
		}
	}
	return "", ""
}
