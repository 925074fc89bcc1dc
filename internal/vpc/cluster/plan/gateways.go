package plan

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// natObjects lists the objects from which gateways are compiled. Without gateways, EIPs and rules it lists no others.
func (c *compiler) natObjects() *nat.Objects {
	o := &c.objects
	listed := &nat.Objects{Gateways: list(o.gateways), EIPs: list(o.eips), SNATs: list(o.snats), DNATs: list(o.dnats), FIPs: list(o.fips)}
	if len(o.gateways)+len(o.eips)+len(o.snats)+len(o.dnats)+len(o.fips) > 0 {
		listed.Vpcs, listed.Subnets = c.network.Objects()
		listed.Definitions = o.definitions
	}
	return listed
}

func list[T any](objects map[string]*T) []T {
	all := make([]T, 0, len(objects))
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, *objects[name])
	}
	return all
}

// gatewayOf returns the VpcNatGateway of a gateway's pod in the subnet; empty for any other pod.
func gatewayOf(pod *corev1.Pod, subnet string, network *nat.Network) string {
	name := pod.Annotations[kubeovn.AnnotationNATGateway]
	if g := network.Gateways[name]; g != nil && pod.Namespace == kubeovn.ConfigNamespace && pod.Name == nat.PodName(name) && g.Value.Subnet == subnet {
		return name
	}
	return ""
}

// holder is the owner of a lanIp in a pool: the gateway's pod.
func holder(gateway string) string {
	return objects.PodKey(kubeovn.ConfigNamespace, nat.PodName(gateway))
}

// gatewayAddresses keeps the addresses that gateways and EIPs have, and then assigns those that they want, fixed ones first.
func (c *compiler) gatewayAddresses() {
	c.lanIPs()
	if !c.natChanged {
		return
	}
	clear(c.refused)
	clear(c.given)
	for _, g := range c.gatesByAge {
		c.hold(g.Value.External, parsed(g.Object.Status.IP), g.Value.Owner())
	}
	for _, e := range c.eipsByAge {
		c.hold(e.Value.External, e.Value.Addr, e.Value.Owner())
	}
	for _, fixed := range []bool{true, false} {
		for _, e := range c.eipsByAge {
			if e.Value.Wanted.IsValid() == fixed && len(e.Problems) == 0 {
				c.give(e.Value.External, e.Value.Wanted, e.Value.Owner(), e.Value.Addr, e.Object.DeletionTimestamp == nil)
			}
		}
	}
	for _, g := range c.gatesByAge {
		if !g.Value.NoOwn && g.Problem == (nat.Problem{}) {
			c.give(g.Value.External, netip.Addr{}, g.Value.Owner(), parsed(g.Object.Status.IP), g.Object.DeletionTimestamp == nil)
		}
	}
}

// parsed returns the address in a status; the zero value: there is none.
func parsed(text string) netip.Addr {
	addr, _ := netip.ParseAddr(text)
	return addr
}

// addressOf returns the address that an EIP has, or gets in this plan; empty: none.
func (c *compiler) addressOf(e *nat.EIP) string {
	_, refused := c.refused[e.Value.Owner()]
	switch address := c.given[e.Value.Owner()]; {
	case address != "":
		return address
	case e.Value.Addr.IsValid() && !e.Value.Reported && !refused:
		return e.Value.Addr.String()
	default:
		return e.Object.Status.IP
	}
}

// lanIPs reserves the addresses that gateways have in chosen subnets.
func (c *compiler) lanIPs() {
	if c.natChanged && len(c.lanRefused) > 0 {
		there := map[string]bool{}
		for _, g := range c.gatesByAge {
			there[g.Value.Owner()] = true
		}
		maps.DeleteFunc(c.lanRefused, func(owner string, _ nat.Problem) bool { return !there[owner] })
	}
	for _, g := range c.gatesByAge {
		if s := c.network.Subnet(g.Value.Subnet); s != nil {
			if _, chosen := c.chosen.Subnets[s]; !chosen {
				continue
			}
		}
		before := c.lanRefused[g.Value.Owner()]
		delete(c.lanRefused, g.Value.Owner())
		c.lanIP(g)
		c.gatewaysChanged = c.gatewaysChanged || c.lanRefused[g.Value.Owner()] != before
	}
}

// refusal returns why an object of NAT gateways has no address.
func (c *compiler) refusal(owner string) nat.Problem {
	if outside, refused := c.refused[owner]; refused {
		return outside
	}
	return c.lanRefused[owner]
}

// lanIP reserves a gateway's address in its VPC, before any pod can get it.
func (c *compiler) lanIP(g *nat.Gateway) {
	s := c.network.Subnet(g.Value.Subnet)
	if s == nil || s.Pool == nil || s.Value.Definition != "" || !g.Value.LanIP.IsValid() || s.Value.VPC != g.Value.VPC {
		return
	}
	if err := s.Pool.Use(g.Value.LanIP, holder(g.Value.Name)); err != nil {
		c.lanRefused[g.Value.Owner()] = nat.Problem{Reason: reasonOf(err), Message: "spec.lanIp: " + err.Error() + "; write another address of " + s.Value.Prefix.String()}
		return
	}
	if s.Pool.Owner(g.Value.LanIP) == holder(g.Value.Name) {
		s.Holders++
		s.LanIPs = append(s.LanIPs, g.Value.LanIP)
	}
}

// hold keeps the address that an object has.
func (c *compiler) hold(external string, addr netip.Addr, owner string) {
	s := c.network.Subnet(external)
	if s != nil && s.Pool != nil && s.Value.Definition != "" && addr.IsValid() && s.Pool.Use(addr, owner) == nil {
		s.Holders++
	}
}

// give assigns an address to an object, unless it has one that it owns, or the object is being deleted (lives). The plan also has the
// object's finalizer, which is written first (Plan.Withhold).
func (c *compiler) give(external string, wanted netip.Addr, owner string, have netip.Addr, lives bool) {
	s := c.network.Subnet(external)
	switch {
	case s == nil || s.Pool == nil:
		c.refused[owner] = nat.Problem{Reason: kubeovn.ReasonMissing, Message: fmt.Sprintf("there is no external Subnet %.64q that can be used; create it", external)}
		return
	case s.Value.Definition == "":
		c.refused[owner] = nat.Problem{Reason: kubeovn.ReasonInvalid, Message: fmt.Sprintf(
			"spec.externalSubnet: Subnet %s is a switch of Vpc %s; name a Subnet whose provider is a NetworkAttachmentDefinition", external, s.Value.VPC)}
		return
	}
	if have.IsValid() && s.Pool.Owner(have) == owner {
		if wanted.IsValid() && wanted != have {
			c.refused[owner] = nat.Problem{Reason: kubeovn.ReasonConflict, Message: fmt.Sprintf(
				"spec.v4ip: the EIP has %s, which stays; to have %s, delete the EIP and create it anew", have, wanted)}
		}
		return
	}
	if lives && s.Object.DeletionTimestamp == nil {
		c.giveNew(s, wanted, owner)
	}
}

// giveNew assigns the wanted address of an external subnet, or the next one.
func (c *compiler) giveNew(s *topology.Subnet, wanted netip.Addr, owner string) {
	last := s.Pool.Last()
	if wanted.IsValid() {
		if err := s.Pool.Use(wanted, owner); err != nil {
			c.refused[owner] = nat.Problem{Reason: reasonOf(err), Message: "spec.v4ip: " + err.Error() + "; write another address of " + s.Value.Prefix.String()}
			return
		}
		s.Pool.Resume(last)
	} else {
		next, err := s.Pool.Next(owner)
		if err != nil {
			c.refused[owner] = nat.Problem{
				Reason: kubeovn.ReasonExhausted, Message: fmt.Sprintf("Subnet %s: %v; delete EIPs, or extend its range", s.Value.Name, err),
			}
			return
		}
		wanted = next
	}
	s.Holders++
	c.given[owner] = wanted.String()
}

// reasonOf returns the condition's reason for an unavailable address.
func reasonOf(err error) string {
	if errors.Is(err, ipam.ErrOutside) {
		return kubeovn.ReasonInvalid
	}
	return kubeovn.ReasonConflict
}
