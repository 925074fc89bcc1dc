package plan

import (
	"fmt"
	"net/netip"
	"slices"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// vpc is a Vpc while it is planned.
type vpc struct {
	object *kubeovn.Vpc
	// read and parsed are the object's own; value has its tunnel key, and problems also those that other objects make.
	read             objects.VPC
	parsed, problems objects.Problems
	value            objects.VPC
	subnets          []*subnet // those with rows
	exists           bool      // the VPC has rows
	named            int       // Subnets that name it
}

// subnet is a Subnet while it is planned.
type subnet struct {
	object *kubeovn.Subnet
	read   objects.Subnet // the object's own; value has its tunnel key
	value  objects.Subnet
	age    objects.Age
	// parsed says what is wrong with the object itself: its problems, and whether it can be used.
	problems objects.Problems
	usable   bool
	unfit    string // why its range has no addresses
	reason   string // why it has no rows: the condition's reason and message
	message  string
	// The following is computed while the subnet is chosen.
	pool    *ipam.SubnetPool
	exists  bool // the subnet has rows
	macs    map[string]string
	holders int // IP objects, gateways and EIPs
	lanIPs  []netip.Addr
}

// network is which VPCs and subnets there are.
type network struct {
	vpcs     map[string]*vpc
	subnets  []*subnet // by age
	byName   map[string]*subnet
	byUID    map[string]*subnet
	bindings binding.Subnets
}

func newNetwork() network {
	return network{vpcs: map[string]*vpc{}, byName: map[string]*subnet{}, byUID: map[string]*subnet{}, bindings: binding.Subnets{}}
}

// shape decides anew which VPCs and subnets there are, and chooses those that are others than before.
func (c *compiler) shape() {
	old := c.network
	c.network = newNetwork()
	c.parseVPCs(&old)
	c.parseSubnets(&old)
	c.admitSubnets()
	c.keys()
	c.chooseChanged(&old)
	c.everyPod = true
}

func (c *compiler) parseVPCs(old *network) {
	for name, object := range c.objects.vpcs {
		v := &vpc{object: object}
		if before := old.vpcs[name]; before != nil && before.object == object {
			v.read, v.parsed = before.read, before.parsed
		} else {
			v.read, v.parsed = objects.ParseVPC(object)
		}
		v.value, v.problems = v.read, v.parsed
		v.exists = name != kubeovn.DefaultVpc && slices.Contains(object.Finalizers, kubeovn.Finalizer)
		c.vpcs[name] = v
	}
}

func (c *compiler) parseSubnets(old *network) {
	for name, object := range c.objects.subnets {
		s := &subnet{object: object}
		if before := old.byName[name]; before != nil && before.object == object {
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
		c.subnets = append(c.subnets, s)
		c.byName[name], c.byUID[string(object.UID)] = s, s
		if v := c.vpcs[object.Spec.Vpc]; v != nil {
			v.named++
		}
	}
	slices.SortFunc(c.subnets, func(a, b *subnet) int { return a.age.Compare(b.age) })
}

func (s *subnet) parse() {
	if s.read, s.problems, s.usable = objects.ParseSubnet(s.object); !s.usable {
		return
	}
	if _, err := ipam.NewSubnetPool(s.read.Prefix, s.read.Gateway, s.read.Excludes); err != nil {
		s.unfit = "spec.cidrBlock: " + err.Error()
	}
}

// admitSubnets decides, from the oldest on, which subnets exist.
func (c *compiler) admitSubnets() {
	for _, s := range c.subnets {
		if s.reason == "" {
			s.reason, s.message = c.obstacle(s)
		}
		if s.reason == "" && s.unfit != "" {
			s.reason, s.message = kubeovn.ReasonInvalid, s.unfit
		}
		s.exists = s.reason == "" && slices.Contains(s.object.Finalizers, kubeovn.Finalizer)
		b := &binding.Subnet{Subnet: s.value, Age: s.age, Broken: s.message}
		if v := c.vpcs[s.value.VPC]; v != nil {
			b.Permitted = v.value.Namespaces
			if s.switched() {
				v.subnets = append(v.subnets, s)
			}
		}
		c.bindings[s.value.Name] = b
	}
	for name, g := range c.objects.gateways {
		if b := c.bindings[g.Spec.Subnet]; b != nil && b.VPC == g.Spec.Vpc {
			b.Gateways = append(b.Gateways, nat.PodName(name))
		}
	}
}

// chooseChanged chooses what is not as it was: subnets and VPCs, and the VPCs of subnets and of peers.
func (c *compiler) chooseChanged(old *network) {
	for name, s := range c.byName {
		before := old.byName[name]
		if before != nil && before.object == s.object && before.reason == s.reason && before.message == s.message &&
			before.value.TunnelKey == s.value.TunnelKey && sameVPC(old.vpcs[s.value.VPC], c.vpcs[s.value.VPC]) {
			s.keep(before)
			continue
		}
		c.chooseSubnet(s)
	}
	changed := map[string]bool{}
	for name, v := range c.vpcs {
		before := old.vpcs[name]
		changed[name] = !sameVPC(before, v)
		if changed[name] || before.object != v.object || before.named != v.named || before.value.TunnelKey != v.value.TunnelKey ||
			!sameSubnets(before.subnets, v.subnets) {
			c.chooseVPC(v)
		}
	}
	for name := range old.vpcs {
		changed[name] = changed[name] || c.vpcs[name] == nil
	}
	for _, v := range c.vpcs {
		if slices.ContainsFunc(v.value.Peerings, func(p objects.Peering) bool { return changed[p.Remote] }) {
			c.chooseVPC(v)
		}
	}
	c.goneWith(old)
}

// goneWith notes the owners of rows whose objects are gone.
func (c *compiler) goneWith(old *network) {
	for name, before := range old.byName {
		if now := c.byName[name]; now == nil || now.object.UID != before.object.UID {
			c.gone = append(c.gone, before.value.Owner())
		}
	}
	for name, before := range old.vpcs {
		if now := c.vpcs[name]; now == nil || now.object.UID != before.object.UID {
			c.gone = append(c.gone, before.value.Owner())
		}
	}
}

// sameVPC reports whether two states of a VPC are the same to its subnets and peers.
func sameVPC(a, b *vpc) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.object.UID == b.object.UID && a.exists == b.exists && slices.Equal(a.value.Peerings, b.value.Peerings)
}

// sameSubnets reports whether a VPC's subnets are the same to its router.
func sameSubnets(a, b []*subnet) bool {
	return slices.EqualFunc(a, b, func(a, b *subnet) bool {
		return a.object.UID == b.object.UID && a.value.Prefix == b.value.Prefix && a.value.Gateway == b.value.Gateway && a.value.RouteTable == b.value.RouteTable
	})
}

// keep takes over what was computed of the same subnet.
func (s *subnet) keep(before *subnet) {
	s.pool, s.macs, s.holders, s.lanIPs = before.pool, before.macs, before.holders, before.lanIPs
}

// open makes the subnet's pool of addresses, which goes on after the address given last.
func (s *subnet) open() {
	s.pool, s.macs, s.holders, s.lanIPs = nil, map[string]string{}, 0, nil
	if s.reason != "" {
		return
	}
	pool, err := ipam.NewSubnetPool(s.value.Prefix, s.value.Gateway, s.value.Excludes)
	if err != nil {
		return // parse has found it
	}
	s.pool = pool
	if last, err := netip.ParseAddr(s.object.Status.LastIP); err == nil {
		pool.Resume(last)
	}
}

// obstacle returns why a subnet that can be read cannot exist.
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

// keyHolder is what has the tunnel key of a datapath.
type keyHolder struct {
	age objects.Age
	key *int
}

// keys gives each router and switch its datapath's tunnel key, and keeps those given.
func (c *compiler) keys() {
	var lack []keyHolder
	used := make(map[int]bool, len(c.vpcs)+len(c.subnets))
	c.eachKey(func(h keyHolder) bool {
		if *h.key < 1 || *h.key > maxTunnelKey {
			*h.key = 0
			lack = append(lack, h)
			return true
		}
		if used[*h.key] { // two have it: the older one keeps it
			lack, used = c.keysByAge()
			return false
		}
		used[*h.key] = true
		return true
	})
	slices.SortFunc(lack, func(a, b keyHolder) int { return a.age.Compare(b.age) })
	next := 1
	for _, h := range lack {
		for *h.key == 0 {
			if !used[next] {
				*h.key, used[next] = next, true
			}
			next++
		}
	}
}

// eachKey visits what has a tunnel key, until visit returns false.
func (c *compiler) eachKey(visit func(keyHolder) bool) {
	for _, v := range c.vpcs {
		if v.exists && !visit(keyHolder{objects.Age{Meta: v.value.Meta, Created: v.object.CreationTimestamp.Time}, &v.value.TunnelKey}) {
			return
		}
	}
	for _, s := range c.subnets {
		if s.switched() && !visit(keyHolder{s.age, &s.value.TunnelKey}) {
			return
		}
	}
}

// keysByAge returns which keys are used, each by the oldest that has it, and which holders have none then.
func (c *compiler) keysByAge() (lack []keyHolder, used map[int]bool) {
	var all []keyHolder
	c.eachKey(func(h keyHolder) bool {
		all = append(all, h)
		return true
	})
	slices.SortFunc(all, func(a, b keyHolder) int { return a.age.Compare(b.age) })
	used = map[int]bool{}
	for _, h := range all {
		if *h.key < 1 || *h.key > maxTunnelKey || used[*h.key] {
			*h.key = 0
			lack = append(lack, h)
		} else {
			used[*h.key] = true
		}
	}
	return lack, used
}
