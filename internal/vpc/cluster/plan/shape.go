package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// vpc is a Vpc during planning.
type vpc struct {
	object *kubeovn.Vpc
	// read and parsed are the object's own; value has its tunnel key, and problems also those that other objects cause.
	read             objects.VPC
	parsed, problems objects.Problems
	value            objects.VPC
	subnets          []*subnet // those with rows
	exists           bool      // the VPC has rows
	named            int       // Subnets that name it
}

// subnet is a Subnet during planning.
type subnet struct {
	object *kubeovn.Subnet
	read   objects.Subnet // the object's own; value has its tunnel key
	value  objects.Subnet
	age    objects.Age
	// problems are the object's own, and usable reports whether it can be used.
	problems objects.Problems
	usable   bool
	unfit    string // why its range has no addresses
	reason   string // why it has no rows: the condition's reason and message
	message  string
	// The following fields are computed when the subnet is chosen.
	pool    *ipam.SubnetPool
	exists  bool // the subnet has rows
	macs    map[string]string
	holders int // IP objects, gateways and EIPs
	lanIPs  []netip.Addr
}

// network has all VPCs and subnets.
type network struct {
	vpcs   map[string]*vpc
	byName map[string]*subnet
	byUID  map[string]*subnet
	// external are the subnets that are address pools of NetworkAttachmentDefinitions, by name.
	external map[string]*subnet
	// peersOf are the VPCs that name a VPC in their peerings, by its name and theirs.
	peersOf  map[string]map[string]*vpc
	bindings *binding.Subnets
	keys     keys
}

func newNetwork() network {
	return network{
		vpcs: map[string]*vpc{}, byName: map[string]*subnet{}, byUID: map[string]*subnet{}, external: map[string]*subnet{},
		peersOf: map[string]map[string]*vpc{}, bindings: binding.NewSubnets(), keys: newKeys(),
	}
}

// part is what a shape removes from the network and creates again.
type part struct {
	vpcs    map[string]*vpc
	subnets map[string]*subnet
	// bindings are those of the subnets.
	bindings map[string]*binding.Subnet
}

// shape decides again which VPCs and subnets exist, as far as changes name them, and chooses those that have changed. A VPC and its subnets
// depend only on each other, on tunnel keys and on peers.
func (c *compiler) shape() {
	c.complete()
	old := c.takePart()
	made := part{vpcs: map[string]*vpc{}, subnets: map[string]*subnet{}}
	for name := range c.reshaped.vpcs {
		if object := c.objects.vpcs[name]; object != nil {
			made.vpcs[name] = c.parseVPC(object, old.vpcs[name])
		}
	}
	var byAge []*subnet
	for name := range c.reshaped.subnets {
		if object := c.objects.subnets[name]; object != nil {
			made.subnets[name] = c.parseSubnet(object, old.subnets[name])
			byAge = append(byAge, made.subnets[name])
		}
	}
	slices.SortFunc(byAge, func(a, b *subnet) int { return a.age.Compare(b.age) })
	for _, s := range byAge {
		c.admit(s)
	}
	c.assignKeys(&made)
	c.chooseChanged(&old, &made)
	c.goneWith(&old, &made)
	c.placeChanged(&old)
	c.natChanged = c.natChanged || c.natConcerned(&old) || c.natConcerned(&made)
}

// assignKeys assigns tunnel keys to the new VPCs and subnets, and chooses those whose key changes.
func (c *compiler) assignKeys(made *part) {
	for _, v := range made.vpcs {
		if v.exists {
			age := objects.Age{Meta: v.value.Meta, Created: v.object.CreationTimestamp.Time}
			c.keys.add(keyHolder{age: age, has: v.read.TunnelKey, key: &v.value.TunnelKey, vpc: v})
		}
	}
	for _, s := range made.subnets {
		if s.switched() {
			c.keys.add(keyHolder{age: s.age, has: s.read.TunnelKey, key: &s.value.TunnelKey, subnet: s})
		}
	}
	for _, h := range c.keys.assign() {
		if h.vpc != nil {
			c.chooseVPC(h.vpc)
		} else {
			c.chooseSubnet(h.subnet)
		}
	}
}

// complete adds to the VPCs and subnets to be shaped: with a VPC or one of its subnets, all of its subnets.
func (c *compiler) complete() {
	for name := range c.reshaped.subnets {
		for _, vpc := range []string{specVPC(c.objects.subnets[name]), specVPC(c.subnetObject(name))} {
			if c.objects.vpcs[vpc] != nil || c.vpcs[vpc] != nil {
				c.reshaped.vpcs[vpc] = struct{}{}
			}
		}
	}
	for vpc := range c.reshaped.vpcs {
		for name := range c.objects.subnetsOf[vpc] {
			c.reshaped.subnets[name] = struct{}{}
		}
	}
}

// takePart removes what is to be shaped from the network.
func (c *compiler) takePart() part {
	old := part{vpcs: map[string]*vpc{}, subnets: map[string]*subnet{}, bindings: map[string]*binding.Subnet{}}
	for name := range c.reshaped.subnets {
		if s := c.byName[name]; s != nil {
			old.subnets[name], old.bindings[name] = s, c.bindings.Get(name)
			c.keys.remove(&s.value.TunnelKey)
			c.bindings.Remove(name)
			delete(c.byName, name)
			delete(c.byUID, string(s.object.UID))
			delete(c.external, name)
		}
	}
	for name := range c.reshaped.vpcs {
		if v := c.vpcs[name]; v != nil {
			old.vpcs[name] = v
			c.keys.remove(&v.value.TunnelKey)
			delete(c.vpcs, name)
			for _, peering := range v.value.Peerings {
				index(c.peersOf, peering.Remote, name, nil, false)
			}
		}
	}
	return old
}

// subnetObject returns the Subnet that the last shape used.
func (c *compiler) subnetObject(name string) *kubeovn.Subnet {
	if s := c.byName[name]; s != nil {
		return s.object
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
func hasRows(object Object) bool { return object.GetDeletionTimestamp() == nil || report.Held(object) }

func (c *compiler) parseVPC(object *kubeovn.Vpc, before *vpc) *vpc {
	v := &vpc{object: object, named: len(c.objects.subnetsOf[object.Name])}
	if before != nil && before.object == object {
		v.read, v.parsed = before.read, before.parsed
	} else {
		v.read, v.parsed = objects.ParseVPC(object)
	}
	v.value, v.problems = v.read, v.parsed
	v.exists = object.Name != kubeovn.DefaultVpc && hasRows(object)
	c.vpcs[object.Name] = v
	for _, peering := range v.value.Peerings {
		index(c.peersOf, peering.Remote, object.Name, v, true)
	}
	return v
}

func (c *compiler) parseSubnet(object *kubeovn.Subnet, before *subnet) *subnet {
	s := &subnet{object: object}
	if before != nil && before.object == object {
		s.read, s.problems, s.usable, s.unfit = before.read, before.problems, before.usable, before.unfit
	} else {
		s.parse()
	}
	s.value = s.read
	if !s.usable {
		s.reason, s.message = kubeovn.ReasonInvalid, s.problems.Error()
		if object.Spec.Vpc == "" || object.Spec.Vpc == kubeovn.DefaultVpc {
			s.reason = kubeovn.ReasonDefaultVpc
		}
	}
	s.age = objects.Age{Meta: s.value.Meta, Created: object.CreationTimestamp.Time}
	c.byName[object.Name], c.byUID[string(object.UID)] = s, s
	if s.value.Definition != "" {
		c.external[object.Name] = s
	}
	return s
}

func (s *subnet) parse() {
	if s.read, s.problems, s.usable = objects.ParseSubnet(s.object); !s.usable {
		return
	}
	if _, err := ipam.NewSubnetPool(s.read.Prefix, s.read.Gateway, s.read.Excludes); err != nil {
		s.unfit = "spec.cidrBlock: " + err.Error()
	}
}

// admit decides whether a subnet exists. The older subnets of its VPC are admitted before.
func (c *compiler) admit(s *subnet) {
	if s.reason == "" {
		s.reason, s.message = c.obstacle(s)
	}
	if s.reason == "" && s.unfit != "" {
		s.reason, s.message = kubeovn.ReasonInvalid, s.unfit
	}
	s.exists = s.reason == "" && hasRows(s.object)
	b := &binding.Subnet{Subnet: s.value, Age: s.age, Broken: s.message}
	if v := c.vpcs[s.value.VPC]; v != nil {
		b.Permitted = v.value.Namespaces
		if s.switched() {
			v.subnets = append(v.subnets, s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.objects.gatewaysIn[s.value.Name])) {
		if c.objects.gatewaysIn[s.value.Name][name].Spec.Vpc == s.value.VPC {
			b.Gateways = append(b.Gateways, nat.PodName(name))
		}
	}
	c.bindings.Set(b)
}

// chooseChanged chooses what has changed: subnets and VPCs, and the VPCs of subnets and of peers.
func (c *compiler) chooseChanged(old, made *part) {
	for name, s := range made.subnets {
		before := old.subnets[name]
		if before != nil && before.object == s.object && before.reason == s.reason && before.message == s.message &&
			before.value.TunnelKey == s.value.TunnelKey && sameVPC(old.vpcs[s.value.VPC], made.vpcs[s.value.VPC]) {
			s.keep(before)
			continue
		}
		c.chooseSubnet(s)
	}
	changed := map[string]struct{}{}
	for name, v := range made.vpcs {
		before := old.vpcs[name]
		same := sameVPC(before, v)
		if !same {
			changed[name] = struct{}{}
		}
		if !same || before.object != v.object || before.named != v.named || before.value.TunnelKey != v.value.TunnelKey ||
			!sameSubnets(before.subnets, v.subnets) {
			c.chooseVPC(v)
		}
	}
	for name := range old.vpcs {
		if made.vpcs[name] == nil {
			changed[name] = struct{}{}
		}
	}
	for name := range changed {
		for _, peer := range c.peersOf[name] {
			c.chooseVPC(peer)
		}
	}
}

// goneWith records the owners of rows whose objects were deleted.
func (c *compiler) goneWith(old, made *part) {
	for name, before := range old.vpcs {
		if now := made.vpcs[name]; now == nil || now.object.UID != before.object.UID {
			c.gone = append(c.gone, before.value.Owner())
		}
	}
	for name, before := range old.subnets {
		if now := made.subnets[name]; now == nil || now.object.UID != before.object.UID {
			c.gone = append(c.gone, before.value.Owner())
		}
	}
}

// placeChanged makes the plan place the pods whose binding may have changed: those that name a subnet that has changed for pods, and those
// of namespaces that it names, or that name it.
func (c *compiler) placeChanged(old *part) {
	for name := range c.reshaped.subnets {
		before, now := old.bindings[name], c.bindings.Get(name)
		if sameBinding(before, now) && (now == nil || old.subnets[name].object == c.byName[name].object) {
			continue
		}
		maps.Copy(c.podsChanged, c.objects.asking[name])
		for namespace := range c.objects.choosing[name] {
			maps.Copy(c.podsChanged, c.objects.open[namespace])
		}
		for _, b := range []*binding.Subnet{before, now} {
			if b == nil {
				continue
			}
			for _, namespace := range b.Namespaces {
				maps.Copy(c.podsChanged, c.objects.open[namespace])
			}
			c.placeSelected(b.Selectors)
		}
	}
}

// placeSelected makes the plan place the pods of the namespaces that one of the selectors selects.
func (c *compiler) placeSelected(selectors []labels.Selector) {
	for _, selector := range selectors {
		for namespace, pods := range c.objects.open {
			if n := c.objects.namespaces[namespace]; n != nil && selector.Matches(labels.Set(n.Labels)) {
				maps.Copy(c.podsChanged, pods)
			}
		}
	}
}

// sameBinding reports whether two states of a subnet are the same for pods, if its object is the same.
func sameBinding(a, b *binding.Subnet) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Broken == b.Broken && slices.Equal(a.Permitted, b.Permitted) && slices.Equal(a.Gateways, b.Gateways)
}

// natConcerned reports whether gateways or EIPs depend on something in the part.
func (c *compiler) natConcerned(p *part) bool {
	for name := range p.vpcs {
		if _, named := c.natNames.vpcs[name]; named {
			return true
		}
	}
	for name, s := range p.subnets {
		_, named := c.natNames.subnets[name]
		_, beside := c.natNames.vpcs[s.object.Spec.Vpc]
		if named || beside || s.value.Definition != "" {
			return true
		}
	}
	return false
}

// sameVPC reports whether two states of a VPC are the same for its subnets and peers.
func sameVPC(a, b *vpc) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.object.UID == b.object.UID && a.exists == b.exists && report.Held(a.object) == report.Held(b.object) && slices.Equal(a.value.Peerings, b.value.Peerings)
}

// sameSubnets reports whether a VPC's subnets are the same for its router.
func sameSubnets(a, b []*subnet) bool {
	return slices.EqualFunc(a, b, func(a, b *subnet) bool {
		return a.object.UID == b.object.UID && a.value.Prefix == b.value.Prefix && a.value.Gateway == b.value.Gateway && a.value.RouteTable == b.value.RouteTable
	})
}

// keep copies what was computed for the same subnet.
func (s *subnet) keep(before *subnet) {
	s.pool, s.macs, s.holders, s.lanIPs = before.pool, before.macs, before.holders, before.lanIPs
}

// open creates the subnet's pool of addresses, which continues after the last assigned address.
func (s *subnet) open() {
	s.pool, s.macs, s.holders, s.lanIPs = nil, map[string]string{}, 0, nil
	if s.reason != "" {
		return
	}
	pool, err := ipam.NewSubnetPool(s.value.Prefix, s.value.Gateway, s.value.Excludes)
	if err != nil {
		return // parse has reported it
	}
	s.pool = pool
	if last, err := netip.ParseAddr(s.object.Status.LastIP); err == nil {
		pool.Resume(last)
	}
}

// obstacle returns why a subnet that is valid by itself cannot exist.
func (c *compiler) obstacle(s *subnet) (reason, message string) {
	if s.value.Definition != "" {
		return "", ""
	}
	v := c.vpcs[s.value.VPC]
	if v == nil {
		return kubeovn.ReasonMissing, fmt.Sprintf("spec.vpc: there is no Vpc %.64q; create it, or name another one", s.value.VPC)
	}
	if !v.exists {
		return kubeovn.ReasonPending, fmt.Sprintf("Vpc %s is not in effect yet", s.value.VPC)
	}
	for _, other := range v.subnets {
		if other.value.Prefix.Overlaps(s.value.Prefix) {
			return kubeovn.ReasonConflict, fmt.Sprintf("spec.cidrBlock: %s overlaps %s of the older Subnet %s of the same Vpc; choose another range",
				s.value.Prefix, other.value.Prefix, other.value.Name)
		}
	}
	return "", ""
}
