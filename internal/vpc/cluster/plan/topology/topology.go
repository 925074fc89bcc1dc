// Package topology decides which VPCs and Subnets have a router or a switch, and their tunnel keys. It is pure.
//
// Network has all Vpcs and Subnets. Shape decides again on those that a change concerns, and returns what has changed for others: the rows
// that have no object any more, and the bindings of pods. Of objects that exclude each other, the older one is used.
//
// A Subnet's Addresses are opened and assigned by the plan, after Shape.
package topology

import (
	"maps"
	"reflect"
	"slices"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/index"
	"weft.dev/weft/internal/vpc/objects"
)

// VPC is a Vpc during planning.
type VPC struct {
	Object *kubeovn.Vpc
	// Value has the tunnel key that the VPC gets.
	Value   objects.VPC
	Subnets []*Subnet // those with rows
	Exists  bool      // the VPC has rows
	Named   int       // Subnets that name it
	// Problems are those of the object, and those that other objects cause (Report).
	Problems objects.Problems
	// read and parsed are the object's own.
	read   objects.VPC
	parsed objects.Problems
}

// Report sets the problems that other objects cause.
func (v *VPC) Report(problems objects.Problems) {
	v.Problems = append(slices.Clone(v.parsed), problems...)
}

// Subnet is a Subnet during planning.
type Subnet struct {
	Object *kubeovn.Subnet
	Value  objects.Subnet // with the tunnel key that the Subnet gets
	Exists bool           // the subnet has rows
	// Problems are the object's own.
	Problems objects.Problems
	// Reason and Message are those of the condition of a Subnet that cannot be used. Such a Subnet has no rows.
	Reason, Message string
	// Addresses are empty until the plan opens them.
	Addresses

	read   objects.Subnet // the object's own
	age    objects.Age
	usable bool
	unfit  string // why its range has no addresses
}

// Switched reports whether the subnet has a switch.
func (s *Subnet) Switched() bool { return s.Exists && s.Value.Definition == "" }

// Chosen are the VPCs and Subnets that a plan computes.
type Chosen struct {
	VPCs    map[*VPC]struct{}
	Subnets map[*Subnet]struct{}
}

// NewChosen returns no VPCs and Subnets.
func NewChosen() *Chosen {
	return &Chosen{VPCs: map[*VPC]struct{}{}, Subnets: map[*Subnet]struct{}{}}
}

// Subnet adds a Subnet; nil adds none.
func (c *Chosen) Subnet(s *Subnet) {
	if s != nil {
		c.Subnets[s] = struct{}{}
	}
}

// VPC adds a VPC; nil adds none.
func (c *Chosen) VPC(v *VPC) {
	if v != nil {
		c.VPCs[v] = struct{}{}
	}
}

// store has the objects, by name.
type store struct {
	vpcs       map[string]*kubeovn.Vpc
	subnets    map[string]*kubeovn.Subnet
	subnetsOf  index.Index[string, string, struct{}] // their names, by the Vpc that they name
	gatewaysIn index.Index[string, string, string]   // the Vpcs that gateways name, by their Subnet and name
	masters    masters
}

// SetDefinition sets the configuration of a NetworkAttachmentDefinition, "<name>.<namespace>"; empty: it was deleted.
func (n *Network) SetDefinition(name, config string) {
	if n.objects.masters.set(name, config) {
		for external := range n.external { // it may make two of them parts of one network
			n.reshaped.subnets[external] = struct{}{}
		}
	}
}

// unname records that a Subnet names no Vpc any more; nil names none.
func (s *store) unname(o *kubeovn.Subnet) {
	if o != nil {
		s.subnetsOf.Remove(o.Spec.Vpc, o.Name)
	}
}

// names are names of VPCs and Subnets.
type names struct{ vpcs, subnets map[string]struct{} }

// Network has all Vpcs and Subnets. It is not safe for concurrent use.
type Network struct {
	objects store
	shaped
	// reshaped are the VPCs and Subnets on which the next Shape decides again: they have changed, or others that they depend on.
	reshaped names
}

// shaped is the result of the last Shape.
type shaped struct {
	vpcs   map[string]*VPC
	byName map[string]*Subnet
	byUID  map[string]*Subnet
	// external are the subnets that are address pools of NetworkAttachmentDefinitions, by name.
	external map[string]*Subnet
	// peersOf are the VPCs that name a VPC in their peerings, by its name and theirs.
	peersOf  index.Index[string, string, *VPC]
	bindings *binding.Subnets
	keys     keys
}

func newShaped() shaped {
	return shaped{
		vpcs: map[string]*VPC{}, byName: map[string]*Subnet{}, byUID: map[string]*Subnet{}, external: map[string]*Subnet{},
		peersOf: index.Index[string, string, *VPC]{}, bindings: binding.NewSubnets(), keys: newKeys(),
	}
}

// New returns a network without objects.
func New() *Network {
	return &Network{
		shaped: newShaped(), reshaped: names{map[string]struct{}{}, map[string]struct{}{}},
		objects: store{
			vpcs: map[string]*kubeovn.Vpc{}, subnets: map[string]*kubeovn.Subnet{}, subnetsOf: index.Index[string, string, struct{}]{},
			gatewaysIn: index.Index[string, string, string]{}, masters: masters{},
		},
	}
}

// Again makes the next Shape decide on everything, and returns the owners of the rows that there were.
func (n *Network) Again() (owners []string) {
	for _, s := range n.byName {
		owners = append(owners, s.Value.Owner())
	}
	for _, v := range n.vpcs {
		owners = append(owners, v.Value.Owner())
	}
	n.shaped = newShaped()
	for name := range n.objects.vpcs {
		n.reshaped.vpcs[name] = struct{}{}
	}
	for name := range n.objects.subnets {
		n.reshaped.subnets[name] = struct{}{}
	}
	return owners
}

// SetVPC sets a Vpc that is new or has changed.
func (n *Network) SetVPC(o *kubeovn.Vpc) {
	n.objects.vpcs[o.Name] = o
	n.reshaped.vpcs[o.Name] = struct{}{}
}

// RemoveVPC removes a Vpc that was deleted.
func (n *Network) RemoveVPC(name string) {
	delete(n.objects.vpcs, name)
	n.reshaped.vpcs[name] = struct{}{}
}

// SetSubnet sets a Subnet. If only its status changed, as with each address, the network's shape does not change, and SetSubnet
// returns true.
func (n *Network) SetSubnet(o *kubeovn.Subnet) (onlyStatus bool) {
	before, s := n.objects.subnets[o.Name], n.byName[o.Name]
	n.objects.unname(before)
	n.objects.subnetsOf.Put(o.Spec.Vpc, o.Name, struct{}{})
	n.objects.subnets[o.Name] = o
	if before == nil || s == nil || s.Object != before || before.UID != o.UID || before.Generation != o.Generation ||
		!before.DeletionTimestamp.Equal(o.DeletionTimestamp) || !slices.Equal(before.Finalizers, o.Finalizers) ||
		s.Value.TunnelKey != o.Status.TunnelKey || !reflect.DeepEqual(before.Spec, o.Spec) {
		n.reshaped.subnets[o.Name] = struct{}{}
		return false
	}
	s.Object, s.read.TunnelKey = o, o.Status.TunnelKey
	n.keys.stored(&s.Value.TunnelKey)
	return true
}

// RemoveSubnet removes a Subnet that was deleted.
func (n *Network) RemoveSubnet(name string) {
	n.objects.unname(n.objects.subnets[name])
	delete(n.objects.subnets, name)
	n.reshaped.subnets[name] = struct{}{}
}

// SetGateway sets which Subnet and Vpc a NAT gateway names: its pod may be bound to that Subnet. Before is its former state; nil: there was
// none, or, for o, it was deleted.
func (n *Network) SetGateway(before, o *kubeovn.VpcNatGateway) {
	if before != nil && o != nil && before.Spec.Subnet == o.Spec.Subnet && before.Spec.Vpc == o.Spec.Vpc {
		return
	}
	if before != nil {
		n.objects.gatewaysIn.Remove(before.Spec.Subnet, before.Name)
		n.reshaped.subnets[before.Spec.Subnet] = struct{}{}
	}
	if o != nil {
		n.objects.gatewaysIn.Put(o.Spec.Subnet, o.Name, o.Spec.Vpc)
		n.reshaped.subnets[o.Spec.Subnet] = struct{}{}
	}
}

// VPC returns a VPC by its name; nil: there is none.
func (n *Network) VPC(name string) *VPC { return n.vpcs[name] }

// Subnet returns a Subnet by its name; nil: there is none.
func (n *Network) Subnet(name string) *Subnet { return n.byName[name] }

// SubnetOf returns a Subnet by its UID; nil: there is none.
func (n *Network) SubnetOf(uid string) *Subnet { return n.byUID[uid] }

// VPCs are all VPCs by name, which the caller must not change.
func (n *Network) VPCs() map[string]*VPC { return n.vpcs }

// Subnets are all Subnets by name, which the caller must not change.
func (n *Network) Subnets() map[string]*Subnet { return n.byName }

// External are the Subnets that are address pools of NetworkAttachmentDefinitions, by name. The caller must not change them.
func (n *Network) External() map[string]*Subnet { return n.external }

// Bindings are the Subnets to which pods may be bound.
func (n *Network) Bindings() *binding.Subnets { return n.bindings }

// Objects returns copies of all Vpcs and Subnets, in the order of their names.
func (n *Network) Objects() ([]kubeovn.Vpc, []kubeovn.Subnet) {
	return list(n.objects.vpcs), list(n.objects.subnets)
}

func list[T any](objects map[string]*T) []T {
	all := make([]T, 0, len(objects))
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, *objects[name])
	}
	return all
}

// VPCNamedBy returns the name of the Vpc that a Subnet names, and whether there is such a Subnet.
func (n *Network) VPCNamedBy(subnet string) (vpc string, there bool) {
	o := n.objects.subnets[subnet]
	return specVPC(o), o != nil
}

// Retire removes the rows of chosen objects that are being deleted and that nothing uses any more, and returns these objects. It chooses
// what depended on them.
func (n *Network) Retire(chosen *Chosen) (vpcs []*VPC, subnets []*Subnet) {
	for s := range chosen.Subnets {
		if s.Object.DeletionTimestamp == nil || s.Holders > 0 {
			continue
		}
		s.Exists = false
		n.reshaped.subnets[s.Object.Name] = struct{}{}
		if v := n.vpcs[s.Value.VPC]; v != nil {
			v.Subnets = slices.DeleteFunc(v.Subnets, func(other *Subnet) bool { return other == s })
			chosen.VPC(v)
		}
		subnets = append(subnets, s)
	}
	for v := range chosen.VPCs {
		if v.Object.DeletionTimestamp == nil || v.Named > 0 {
			continue
		}
		v.Exists = false
		n.reshaped.vpcs[v.Object.Name] = struct{}{}
		for _, peer := range n.peersOf[v.Object.Name] {
			chosen.VPC(peer)
		}
		vpcs = append(vpcs, v)
	}
	return vpcs, subnets
}
