// Package nat compiles the objects of NAT gateways to the state of each gateway's pod. It is pure, and shared: the agent programs the state
// and reports its hash, and the controller compares that hash with its own to report what is in effect.
//
// Addresses are those that the controller has written (status of VpcNatGateway and IptablesEIP). They are used only if the external Subnet
// contains them and no older object has the same.
package nat

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"go4.org/netipx"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/objects"
)

// PodPrefix is the prefix of the names of gateways' StatefulSets.
const PodPrefix = "vpc-nat-gw-"

// Condition is the type of the condition in which an agent reports what it has programmed in a gateway's pod. Its message is the hash of the
// gateway's state, or, if the gateway cannot be compiled, that of what it requires (Network.Required): the pod has no more than that.
const Condition = "weft.dev/programmed"

// ReasonFailed is the reason of Condition, which is False then, if a gateway could not be programmed: the message says why.
const ReasonFailed = "Failed"

// ReasonNothing is the reason of Condition, which is False then, if the pod has no state, because its gateway cannot be compiled: the message is
// the hash of what the gateway requires (Network.Required).
const ReasonNothing = "Nothing"

// WorkloadName returns the name of the gateway's StatefulSet.
func WorkloadName(gateway string) string { return PodPrefix + gateway }

// PodName returns the name of the gateway's pod.
func PodName(gateway string) string { return WorkloadName(gateway) + "-0" }

// Objects are the objects from which gateways are compiled. They are not changed.
type Objects struct {
	Vpcs     []kubeovn.Vpc
	Subnets  []kubeovn.Subnet
	Gateways []kubeovn.VpcNatGateway
	EIPs     []kubeovn.IptablesEIP
	SNATs    []kubeovn.IptablesSnatRule
	DNATs    []kubeovn.IptablesDnatRule
	FIPs     []kubeovn.IptablesFIPRule
	// Definitions are the configurations of NetworkAttachmentDefinitions, by "<name>.<namespace>".
	Definitions map[string]string
}

// Problem is why something is not in effect: the reason and the message of its condition Ready. The zero value: no problem.
type Problem struct{ Reason, Message string }

// Gateway is a gateway.
type Gateway struct {
	Object *kubeovn.VpcNatGateway
	Value  objects.Gateway
	Age    objects.Age
	// Problem is why it has no state.
	Problem Problem
	// Definition is the configuration of its outside interface, and Result its state, if it has no Problem.
	Definition objects.Definition
	Result     gateway.Result
	// Hash is the hash of the state and the interface.
	Hash string

	in gateway.Input
}

// EIP is an EIP.
type EIP struct {
	Object   *kubeovn.IptablesEIP
	Value    objects.EIP
	Problems objects.Problems
	// Rules are the rules that name it: "<kind> <name>".
	Rules []string
}

// Network is all gateways.
type Network struct {
	Gateways map[string]*Gateway
	EIPs     map[string]*EIP
	// SNATs, DNATs and FIPs are the valid rules, by Owner.
	SNATs map[string]objects.SNAT
	DNATs map[string]objects.DNAT
	FIPs  map[string]objects.FIP
	// Problems are those of invalid rules, by Owner.
	Problems map[string]objects.Problems

	eipsOf map[string][]*EIP   // by the gateway that they name
	rules  map[string]*ruleset // by the EIP that they name
}

// ruleset are the valid rules of an EIP.
type ruleset struct {
	snats []objects.SNAT
	dnats []objects.DNAT
	fips  []objects.FIP
}

type compiler struct {
	*Network
	objects *Objects
	vpcs    map[string]objects.VPC
	subnets map[string]objects.Subnet
}

// Parse reads the objects: the specifications of gateways and EIPs, and which rules name which EIP. It compiles no state.
func Parse(o *Objects) *Network { return parse(o).Network }

// Compile returns all gateways. It compiles the state only of the named ones, or, without names, of all.
func Compile(o *Objects, names ...string) *Network { return new(Compiler).Compile(o, names...) }

// Compiler compiles gateways as Compile does, and compiles again only those on whose objects something has changed (TestCompiler). The zero
// value has compiled nothing. It is not safe for concurrent use.
type Compiler struct{ compiled map[string]*Gateway }

// Compile returns all gateways, with the state of the named ones, or, without names, of all. States are shared with former results, and must
// not be changed.
func (m *Compiler) Compile(o *Objects, names ...string) *Network {
	c, before := parse(o), m.compiled
	m.compiled = map[string]*Gateway{}
	for name, g := range c.Gateways {
		last := before[name]
		if len(names) > 0 && !slices.Contains(names, name) {
			if last != nil {
				m.compiled[name] = last
			}
			continue
		}
		if g.Problem = c.assemble(g); g.Problem != (Problem{}) {
			continue
		}
		if last != nil && last.Definition == g.Definition && reflect.DeepEqual(last.in, g.in) {
			g.Result, g.Hash = last.Result, last.Hash
		} else {
			g.Result = gateway.Compile(&g.in)
			g.Hash = g.hash()
		}
		m.compiled[name] = g
	}
	return c.Network
}

func parse(o *Objects) *compiler {
	c := &compiler{
		objects: o, vpcs: map[string]objects.VPC{}, subnets: map[string]objects.Subnet{},
		Network: &Network{
			Gateways: map[string]*Gateway{}, EIPs: map[string]*EIP{}, SNATs: map[string]objects.SNAT{}, DNATs: map[string]objects.DNAT{},
			FIPs: map[string]objects.FIP{}, Problems: map[string]objects.Problems{}, eipsOf: map[string][]*EIP{}, rules: map[string]*ruleset{},
		},
	}
	for i := range o.Vpcs {
		if o.Vpcs[i].Name != kubeovn.DefaultVpc {
			c.vpcs[o.Vpcs[i].Name], _ = objects.ParseVPC(&o.Vpcs[i])
		}
	}
	c.parseSubnets()
	for i := range o.Gateways {
		object := &o.Gateways[i]
		g := &Gateway{Object: object}
		var problems objects.Problems
		var ok bool
		if g.Value, problems, ok = objects.ParseGateway(object); !ok {
			g.Problem = Problem{kubeovn.ReasonInvalid, problems.Error()}
		}
		g.Age = objects.Age{Meta: g.Value.Meta, Created: object.CreationTimestamp.Time}
		c.Gateways[object.Name] = g
	}
	for i := range o.EIPs {
		e := &EIP{Object: &o.EIPs[i]}
		e.Value, e.Problems = objects.ParseEIP(e.Object)
		c.EIPs[e.Object.Name] = e
		c.eipsOf[e.Value.Gateway] = append(c.eipsOf[e.Value.Gateway], e)
	}
	c.revoke()
	c.parseRules()
	return c
}

// revoke removes the addresses that EIPs have by their finalizers if a status has assigned them to another object, or an older EIP has them.
// Former releases added the finalizer also to EIPs whose requested address was not available.
func (c *compiler) revoke() {
	type place struct {
		external string
		addr     netip.Addr
	}
	taken := map[place]bool{}
	for _, g := range c.Gateways {
		if own, err := netip.ParseAddr(g.Object.Status.IP); err == nil {
			taken[place{g.Value.External, own}] = true
		}
	}
	var requested []*EIP
	for _, e := range c.EIPs {
		switch {
		case e.Value.Reported:
			taken[place{e.Value.External, e.Value.Addr}] = true
		case e.Value.Addr.IsValid():
			requested = append(requested, e)
		}
	}
	slices.SortFunc(requested, func(a, b *EIP) int { return a.Value.Compare(b.Value.Age) })
	for _, e := range requested {
		at := place{e.Value.External, e.Value.Addr}
		if taken[at] {
			e.Value.Addr = netip.Addr{}
		}
		taken[at] = true
	}
}

// parseSubnets keeps the usable Subnets. Of a VPC's Subnets that overlap, the oldest is kept: a gateway has no routes to the others.
func (c *compiler) parseSubnets() {
	type aged struct {
		objects.Subnet
		objects.Age
	}
	var all []aged
	for i := range c.objects.Subnets {
		object := &c.objects.Subnets[i]
		if s, _, ok := objects.ParseSubnet(object); ok {
			all = append(all, aged{s, objects.Age{Meta: s.Meta, Created: object.CreationTimestamp.Time}})
		}
	}
	slices.SortFunc(all, func(a, b aged) int { return a.Compare(b.Age) })
	ranges := map[string][]netip.Prefix{} // by VPC
	for i := range all {
		s := &all[i].Subnet
		if s.Definition == "" {
			if slices.ContainsFunc(ranges[s.VPC], s.Prefix.Overlaps) {
				continue
			}
			ranges[s.VPC] = append(ranges[s.VPC], s.Prefix)
		}
		c.subnets[s.Name] = *s
	}
}

func (c *compiler) parseRules() {
	for i := range c.objects.SNATs {
		if rule, problems := objects.ParseSNAT(&c.objects.SNATs[i]); c.keep(rule.Meta, rule.EIP, problems) {
			c.SNATs[rule.Owner()] = rule
			of := c.of(rule.EIP)
			of.snats = append(of.snats, rule)
		}
	}
	for i := range c.objects.DNATs {
		if rule, problems := objects.ParseDNAT(&c.objects.DNATs[i]); c.keep(rule.Meta, rule.EIP, problems) {
			c.DNATs[rule.Owner()] = rule
			of := c.of(rule.EIP)
			of.dnats = append(of.dnats, rule)
		}
	}
	for i := range c.objects.FIPs {
		if rule, problems := objects.ParseFIP(&c.objects.FIPs[i]); c.keep(rule.Meta, rule.EIP, problems) {
			c.FIPs[rule.Owner()] = rule
			of := c.of(rule.EIP)
			of.fips = append(of.fips, rule)
		}
	}
	for _, e := range c.EIPs {
		slices.Sort(e.Rules)
	}
}

// of returns the rules of an EIP.
func (c *compiler) of(eip string) *ruleset {
	if c.rules[eip] == nil {
		c.rules[eip] = &ruleset{}
	}
	return c.rules[eip]
}

// keep records which EIP a rule names, or its problems.
func (c *compiler) keep(rule objects.Meta, eip string, problems objects.Problems) bool {
	if e := c.EIPs[eip]; e != nil {
		e.Rules = append(e.Rules, rule.Kind+" "+rule.Name)
	}
	if len(problems) > 0 {
		c.Problems[rule.Owner()] = problems
		return false
	}
	return true
}

// assemble collects what a gateway's state depends on, or returns why it has none.
func (c *compiler) assemble(g *Gateway) Problem {
	if g.Problem != (Problem{}) {
		return g.Problem
	}
	v := &g.Value
	vpc, hasVPC := c.vpcs[v.VPC]
	inside, hasInside := c.subnets[v.Subnet]
	outside, hasOutside := c.subnets[v.External]
	config, defined := c.objects.Definitions[outside.Definition]
	missing := func(format string, args ...any) Problem {
		return Problem{kubeovn.ReasonMissing, fmt.Sprintf(format, args...)}
	}
	invalid := func(format string, args ...any) Problem {
		return Problem{kubeovn.ReasonInvalid, fmt.Sprintf(format, args...)}
	}
	switch {
	case !hasVPC:
		return missing("spec.vpc: there is no Vpc %.64q; create it, or name another one", v.VPC)
	case !hasInside:
		return missing("spec.subnet: there is no Subnet %.64q that can be used; create it, or name another one", v.Subnet)
	case inside.Definition != "" || inside.VPC != v.VPC:
		return invalid("spec.subnet: Subnet %s is not of Vpc %s; name a Subnet of the Vpc", v.Subnet, v.VPC)
	case v.LanIP == inside.Gateway:
		return invalid("spec.lanIp: %s is the gateway of Subnet %s, which is the Vpc's router; write another address of %s", v.LanIP, v.Subnet, inside.Prefix)
	case !inside.Prefix.Contains(v.LanIP):
		return invalid("spec.lanIp: %s is not in Subnet %s; write an address of %s", v.LanIP, v.Subnet, inside.Prefix)
	case !hasOutside:
		return missing("spec.externalSubnets[0]: there is no Subnet %.64q that can be used; create it, or name another one", v.External)
	case outside.Definition == "":
		return invalid("spec.externalSubnets[0]: Subnet %s is a switch of Vpc %s; name a Subnet whose provider is a NetworkAttachmentDefinition", v.External, outside.VPC)
	case !defined:
		return missing("Subnet %s: spec.provider: there is no NetworkAttachmentDefinition %.128q; create it", v.External, outside.Definition)
	}
	definition, problems := objects.ParseDefinition(config)
	if len(problems) > 0 {
		return invalid("NetworkAttachmentDefinition %s: %s", outside.Definition, problems.Error())
	}
	g.Definition = definition
	g.in = gateway.Input{Gateway: *v, VPC: vpc, Subnet: inside, External: outside}
	for _, s := range c.subnets {
		if s.VPC == v.VPC && s.Definition == "" {
			g.in.Subnets = append(g.in.Subnets, s)
		}
	}
	slices.SortFunc(g.in.Subnets, func(a, b objects.Subnet) int { return strings.Compare(a.Name, b.Name) })
	for _, other := range c.Gateways { // also one that cannot be compiled: it keeps its state, and its traffic
		if other.Value.VPC == v.VPC && other.Value.LanIP.IsValid() {
			g.in.LanIPs = append(g.in.LanIPs, other.Value.LanIP)
		}
	}
	slices.SortFunc(g.in.LanIPs, netip.Addr.Compare)
	c.addresses(g)
	return Problem{}
}

// addresses collects the gateway's own address, its EIPs and their rules.
func (c *compiler) addresses(g *Gateway) {
	in := &g.in
	if !g.Value.NoOwn {
		if own, err := netip.ParseAddr(g.Object.Status.IP); err == nil && usable(own, &in.External) {
			in.Own = own
		}
	}
	for _, e := range c.eipsOf[g.Value.Name] {
		v := &e.Value
		if v.External == g.Value.External && usable(v.Addr, &in.External) && !e.leaves() {
			in.EIPs = append(in.EIPs, *v)
		}
	}
	c.rulesOf(in, nil)
}

// leaves reports whether the EIP is being deleted and no rule names it.
func (e *EIP) leaves() bool { return e.Object.DeletionTimestamp != nil && len(e.Rules) == 0 }

// Required returns what a gateway's EIPs and rules require, even if the gateway itself cannot be compiled: it is what stays of an earlier
// state. Of EIPs with the same address, one that the gateway's state would have is used first. The others are used as well, because the
// gateway's external Subnet may be what is wrong.
func (n *Network) Required(name string) *gateway.Requirements {
	in, g, rank := &gateway.Input{}, n.Gateways[name], map[string]int{}
	if g != nil {
		in.Own, _ = netip.ParseAddr(g.Object.Status.IP)
	}
	for _, e := range n.eipsOf[name] {
		if e.Value.Addr.IsValid() && !e.leaves() {
			in.EIPs = append(in.EIPs, e.Value)
			if g != nil && e.Value.External != g.Value.External {
				rank[e.Value.Name] = 1
			}
		}
	}
	n.rulesOf(in, rank)
	return gateway.Require(in)
}

// rulesOf sorts the EIPs by rank (none: 0) and age, removes those whose address is taken, and collects the rules of the others.
func (n *Network) rulesOf(in *gateway.Input, rank map[string]int) {
	slices.SortFunc(in.EIPs, func(a, b objects.EIP) int { return cmp.Or(cmp.Compare(rank[a.Name], rank[b.Name]), a.Compare(b.Age)) })
	taken := map[netip.Addr]bool{}
	in.EIPs = slices.DeleteFunc(in.EIPs, func(e objects.EIP) bool {
		double := taken[e.Addr] || e.Addr == in.Own
		taken[e.Addr] = true
		return double
	})
	for i := range in.EIPs {
		if of := n.rules[in.EIPs[i].Name]; of != nil {
			in.SNATs, in.DNATs, in.FIPs = append(in.SNATs, of.snats...), append(in.DNATs, of.dnats...), append(in.FIPs, of.fips...)
		}
	}
	slices.SortFunc(in.SNATs, func(a, b objects.SNAT) int { return a.Compare(b.Age) })
	slices.SortFunc(in.DNATs, func(a, b objects.DNAT) int { return a.Compare(b.Age) })
	slices.SortFunc(in.FIPs, func(a, b objects.FIP) int { return a.Compare(b.Age) })
}

// usable reports whether a host of the external network can have the address.
func usable(addr netip.Addr, external *objects.Subnet) bool {
	return addr.IsValid() && external.Prefix.Contains(addr) && addr != external.Gateway && addr != external.Prefix.Addr() &&
		addr != netipx.PrefixLastIP(external.Prefix)
}

func (g *Gateway) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s macvlan %s mode %s mtu %d", g.Result.State.Hash(), g.Definition.Master, g.Definition.Mode, g.Definition.MTU))
	return hex.EncodeToString(sum[:16])
}

// Has reports whether the gateway's state has the EIP.
func (g *Gateway) Has(eip string) bool {
	return slices.ContainsFunc(g.in.EIPs, func(e objects.EIP) bool { return e.Name == eip })
}

// Inside returns the ranges of the VPC's Subnets.
func (g *Gateway) Inside() []string {
	all := make([]string, 0, len(g.in.Subnets))
	for i := range g.in.Subnets {
		all = append(all, fmt.Sprintf("%s (%s)", g.in.Subnets[i].Name, g.in.Subnets[i].Prefix))
	}
	return all
}

// Label is on the pods of gateways, with LabelValue of the gateway's name.
const Label = "ovn.kubernetes.io/vpc-nat-gw"

// maxLabel is the longest value of a label.
const maxLabel = 63

// LabelValue returns the value of Label for a gateway.
func LabelValue(gateway string) string {
	if len(gateway) <= maxLabel {
		return gateway
	}
	sum := sha256.Sum256([]byte(gateway))
	return hex.EncodeToString(sum[:16])
}
