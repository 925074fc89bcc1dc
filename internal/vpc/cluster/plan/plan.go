// Package plan decides, from all objects of VPCs, what their network is: rows of the northbound database, addresses of pods, and what
// to write to the objects. It is pure: the same objects give the same plan, in whatever order they come.
//
// What is given out (addresses, tunnel keys) is kept in the objects themselves: IP objects, and the status of Vpc and Subnet. A plan
// takes over what they say before it gives out anything. Of objects that exclude each other, the older one is used.
//
// A finalizer comes before effect: an object without it has no rows yet. An object that is being deleted keeps its rows while others
// use it, and loses its finalizer in the plan that has no rows of it any more; the writer commits rows before it writes objects.
package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// readyPorts is how many logical ports of each subnet are in the database before a pod needs them. A pod that takes one waits for
// ovn-controller only, and not for a computation of northd.
const readyPorts = 8

// maxTunnelKey is the highest key of a datapath that OVN takes (ovn-nb(5), requested-tnl-key).
const maxTunnelKey = 1<<24 - 1

// Objects are what a plan is made from. They are not changed.
type Objects struct {
	Vpcs       []kubeovn.Vpc
	Subnets    []kubeovn.Subnet
	Gateways   []kubeovn.VpcNatGateway
	IPs        []kubeovn.IP
	EIPs       []kubeovn.IptablesEIP
	SNATs      []kubeovn.IptablesSnatRule
	DNATs      []kubeovn.IptablesDnatRule
	FIPs       []kubeovn.IptablesFIPRule
	Pods       []corev1.Pod
	Namespaces []corev1.Namespace
	// Definitions are the configurations of NetworkAttachmentDefinitions, by "<name>.<namespace>".
	Definitions map[string]string
	// Workloads are the gateways' StatefulSets, and NAT what the ConfigMaps say.
	Workloads []appsv1.StatefulSet
	NAT       objects.NATConfig
	// Now is the time of conditions that change.
	Now metav1.Time
}

// Object is any object of the API server.
type Object interface {
	metav1.Object
	runtime.Object
}

// Plan is what follows from the objects.
type Plan struct {
	// Rows are the complete content of the northbound database.
	Rows northbound.Rows
	// Create and Delete are IP objects. An address is given out by Create.
	Create, Delete []*kubeovn.IP
	// Vpcs and Subnets are objects whose finalizers change; VpcStatus and SubnetStatus are objects whose status changes.
	Vpcs, VpcStatus       []*kubeovn.Vpc
	Subnets, SubnetStatus []*kubeovn.Subnet
	// Updates are objects of NAT gateways whose finalizers change, and Statuses those whose status changes: VpcNatGateways, EIPs and rules.
	Updates, Statuses []Object
	// CreateWorkloads, UpdateWorkloads and DeleteWorkloads are the gateways' StatefulSets.
	CreateWorkloads, UpdateWorkloads, DeleteWorkloads []*appsv1.StatefulSet
	// Waiting says of pods that are bound to a Subnet and have no address, why, by "<namespace>/<name>".
	Waiting map[string]string
	// Bindings are the Subnets as pods are bound to them.
	Bindings binding.Subnets
}

// Assigns reports whether the plan gives out something that no two objects may have.
func (p *Plan) Assigns() bool {
	return len(p.Create)+len(p.VpcStatus)+len(p.SubnetStatus)+len(p.Statuses) > 0
}

// Deletes reports whether the plan takes something from what is there: an address, rows, a finalizer or a workload.
func (p *Plan) Deletes() bool {
	return len(p.Delete)+len(p.Vpcs)+len(p.Subnets)+len(p.Updates)+len(p.DeleteWorkloads) > 0
}

// Needs reports whether the pod has need of the address that the IP object gives it.
func Needs(pod *corev1.Pod, ip *kubeovn.IP) bool {
	return string(pod.UID) == ip.Spec.PodUID && !ended(pod) && objects.IPName(pod.Namespace, pod.Name) == ip.Name
}

// vpc is a Vpc while it is planned.
type vpc struct {
	object   *kubeovn.Vpc
	value    objects.VPC
	problems objects.Problems
	subnets  []*subnet // those with rows
	exists   bool      // the VPC has rows
	named    int       // Subnets that name it
}

// subnet is a Subnet while it is planned.
type subnet struct {
	object   *kubeovn.Subnet
	value    objects.Subnet
	age      objects.Age
	problems objects.Problems
	reason   string // why it has no rows: the condition's reason and message
	message  string
	pool     *ipam.SubnetPool
	exists   bool // the subnet has rows
	macs     map[string]string
	holders  int // IP objects, gateways and EIPs
	lanIPs   []netip.Addr
}

type compiler struct {
	*Objects
	plan     *Plan
	vpcs     map[string]*vpc
	subnets  []*subnet // by age
	byName   map[string]*subnet
	byUID    map[string]*subnet
	ips      map[string]*kubeovn.IP // kept and created, by name
	usedKeys map[int]bool
	nat      *nat.Network
	refused  map[string]nat.Problem // why objects of NAT gateways have no address, by Owner
	given    map[string]string      // the addresses that they get, by Owner
}

// Compile makes the plan.
func Compile(o *Objects) *Plan {
	c := newCompiler(o)
	c.parseVPCs()
	c.parseSubnets()
	c.admitSubnets()
	c.keys()
	c.nat = nat.Parse(c.natObjects())
	c.pools()
	c.gatewayAddresses()
	c.pods()
	c.retire()
	c.rows()
	c.statuses()
	c.gateways()
	return c.plan
}

// Bindings returns the Subnets as pods are bound to them.
func Bindings(vpcs []kubeovn.Vpc, subnets []kubeovn.Subnet, gateways []kubeovn.VpcNatGateway) binding.Subnets {
	c := newCompiler(&Objects{Vpcs: vpcs, Subnets: subnets, Gateways: gateways})
	c.parseVPCs()
	c.parseSubnets()
	c.admitSubnets()
	return c.plan.Bindings
}

func newCompiler(o *Objects) *compiler {
	return &compiler{
		Objects: o, plan: &Plan{Rows: northbound.Rows{}, Waiting: map[string]string{}, Bindings: binding.Subnets{}},
		vpcs: map[string]*vpc{}, byName: map[string]*subnet{}, byUID: map[string]*subnet{}, ips: map[string]*kubeovn.IP{}, usedKeys: map[int]bool{},
		refused: map[string]nat.Problem{}, given: map[string]string{},
	}
}

func (c *compiler) parseVPCs() {
	for i := range c.Vpcs {
		object := &c.Vpcs[i]
		v := &vpc{object: object}
		v.value, v.problems = objects.ParseVPC(object)
		v.exists = object.Name != kubeovn.DefaultVpc && slices.Contains(object.Finalizers, kubeovn.Finalizer)
		c.vpcs[object.Name] = v
		if object.DeletionTimestamp == nil && object.Name != kubeovn.DefaultVpc && !slices.Contains(object.Finalizers, kubeovn.Finalizer) {
			changed := object.DeepCopy()
			changed.Finalizers = append(changed.Finalizers, kubeovn.Finalizer)
			c.plan.Vpcs = append(c.plan.Vpcs, changed)
		}
	}
	slices.SortFunc(c.plan.Vpcs, func(a, b *kubeovn.Vpc) int { return compareNames(a, b) })
}

func (c *compiler) parseSubnets() {
	for i := range c.Subnets {
		object := &c.Subnets[i]
		s := &subnet{object: object, macs: map[string]string{}}
		var ok bool
		if s.value, s.problems, ok = objects.ParseSubnet(object); !ok {
			s.reason, s.message = kubeovn.ReasonInvalid, s.problems.Error()
			if object.Spec.Vpc == "" || object.Spec.Vpc == kubeovn.DefaultVpc {
				s.reason = kubeovn.ReasonDefaultVpc
			}
		}
		s.age = objects.Age{Meta: s.value.Meta, Created: object.CreationTimestamp.Time}
		c.subnets = append(c.subnets, s)
		c.byName[object.Name], c.byUID[string(object.UID)] = s, s
		if v := c.vpcs[object.Spec.Vpc]; v != nil {
			v.named++
		}
		if object.DeletionTimestamp == nil && !slices.Contains(object.Finalizers, kubeovn.Finalizer) {
			changed := object.DeepCopy()
			changed.Finalizers = append(changed.Finalizers, kubeovn.Finalizer)
			c.plan.Subnets = append(c.plan.Subnets, changed)
		}
	}
	slices.SortFunc(c.subnets, func(a, b *subnet) int { return a.age.Compare(b.age) })
	slices.SortFunc(c.plan.Subnets, func(a, b *kubeovn.Subnet) int { return compareNames(a, b) })
}

// admitSubnets decides, from the oldest on, which subnets exist.
func (c *compiler) admitSubnets() {
	for _, s := range c.subnets {
		if s.reason == "" {
			s.reason, s.message = c.obstacle(s)
		}
		if s.reason == "" {
			s.open()
		}
		b := &binding.Subnet{Subnet: s.value, Age: s.age, Broken: s.message}
		if v := c.vpcs[s.value.VPC]; v != nil {
			b.Permitted = v.value.Namespaces
			if s.exists && s.value.Definition == "" {
				v.subnets = append(v.subnets, s)
			}
		}
		c.plan.Bindings[s.value.Name] = b
	}
	for i := range c.Gateways {
		spec := &c.Gateways[i].Spec
		if b := c.plan.Bindings[spec.Subnet]; b != nil && b.VPC == spec.Vpc {
			b.Gateways = append(b.Gateways, nat.PodName(c.Gateways[i].Name))
		}
	}
}

// open makes the subnet's pool of addresses, which goes on after the address given last.
func (s *subnet) open() {
	pool, err := ipam.NewSubnetPool(s.value.Prefix, s.value.Gateway, s.value.Excludes)
	if err != nil {
		s.reason, s.message = kubeovn.ReasonInvalid, "spec.cidrBlock: "+err.Error()
		return
	}
	s.pool, s.exists = pool, slices.Contains(s.object.Finalizers, kubeovn.Finalizer)
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

// keys gives each router and switch its datapath's tunnel key, and keeps those given.
func (c *compiler) keys() {
	type holder struct {
		age objects.Age
		key *int
	}
	var holders []holder
	for _, v := range c.vpcs {
		if v.exists {
			age := objects.Age{Meta: v.value.Meta, Created: v.object.CreationTimestamp.Time}
			holders = append(holders, holder{age, &v.value.TunnelKey})
		}
	}
	for _, s := range c.subnets {
		if s.exists && s.value.Definition == "" {
			holders = append(holders, holder{s.age, &s.value.TunnelKey})
		}
	}
	slices.SortFunc(holders, func(a, b holder) int { return a.age.Compare(b.age) })
	for _, h := range holders {
		if *h.key < 1 || *h.key > maxTunnelKey || c.usedKeys[*h.key] {
			*h.key = 0
		} else {
			c.usedKeys[*h.key] = true
		}
	}
	next := 1
	for _, h := range holders {
		for *h.key == 0 {
			if !c.usedKeys[next] {
				*h.key, c.usedKeys[next] = next, true
			}
			next++
		}
	}
}

// retire takes the rows of objects that are being deleted and that nothing uses any more, and their finalizers.
func (c *compiler) retire() {
	for _, s := range c.subnets {
		if s.object.DeletionTimestamp == nil || s.holders > 0 {
			continue
		}
		s.exists = false
		if v := c.vpcs[s.value.VPC]; v != nil {
			v.subnets = slices.DeleteFunc(v.subnets, func(other *subnet) bool { return other == s })
		}
		if slices.Contains(s.object.Finalizers, kubeovn.Finalizer) {
			changed := s.object.DeepCopy()
			changed.Finalizers = without(changed.Finalizers)
			c.plan.Subnets = append(c.plan.Subnets, changed)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.vpcs)) {
		v := c.vpcs[name]
		if v.object.DeletionTimestamp == nil || v.named > 0 {
			continue
		}
		v.exists = false
		if slices.Contains(v.object.Finalizers, kubeovn.Finalizer) {
			changed := v.object.DeepCopy()
			changed.Finalizers = without(changed.Finalizers)
			c.plan.Vpcs = append(c.plan.Vpcs, changed)
		}
	}
}

func without(finalizers []string) []string {
	return slices.DeleteFunc(finalizers, func(f string) bool { return f == kubeovn.Finalizer })
}

// rows compiles what exists.
func (c *compiler) rows() {
	remotes := map[string]objects.VPC{}
	for name, v := range c.vpcs {
		if v.exists {
			remotes[name] = v.value
		}
	}
	for _, v := range c.vpcs {
		if !v.exists {
			continue
		}
		n := &northbound.Network{VPC: v.value, Remotes: remotes}
		for _, s := range v.subnets {
			n.Subnets = append(n.Subnets, s.value)
			maps.Copy(c.plan.Rows, northbound.Switch(&s.value, v.value.Meta))
			for _, addr := range s.pool.Ahead(readyPorts) {
				c.port(s, northbound.Port{Addr: addr})
			}
			for _, addr := range s.lanIPs { // ready before the gateways' pods
				c.port(s, northbound.Port{Addr: addr, Gateway: true})
			}
		}
		result := northbound.Router(n)
		maps.Copy(c.plan.Rows, result.Rows)
		v.problems = append(v.problems, result.Problems...)
		c.vpcStatus(v, &result)
	}
	for _, ip := range c.ips {
		s := c.byUID[ip.Spec.SubnetUID]
		addr, err := netip.ParseAddr(ip.Spec.V4IPAddress)
		if err != nil || s == nil || !s.exists || s.value.Definition != "" {
			continue
		}
		port := northbound.Port{Addr: addr, Gateway: ip.Spec.NATGateway != ""}
		if ip.Spec.MacAddress != northbound.MAC(addr) { // another port than those that are ready
			port.MAC = ip.Spec.MacAddress
		}
		c.port(s, port)
	}
}

func (c *compiler) port(s *subnet, port northbound.Port) {
	key, row := northbound.SwitchPort(&s.value, port)
	c.plan.Rows[key] = row
}
