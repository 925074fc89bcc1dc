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
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

func (c *compiler) natObjects() *nat.Objects {
	return &nat.Objects{
		Vpcs: c.Vpcs, Subnets: c.Subnets, Gateways: c.Gateways, EIPs: c.EIPs, SNATs: c.SNATs, DNATs: c.DNATs, FIPs: c.FIPs, Definitions: c.Definitions,
	}
}

// gatewayOf returns the VpcNatGateway that a pod is of in the subnet; empty: it is any other pod.
func gatewayOf(pod *corev1.Pod, subnet string, network *nat.Network) string {
	name := pod.Annotations[kubeovn.AnnotationNATGateway]
	if g := network.Gateways[name]; g != nil && pod.Namespace == kubeovn.ConfigNamespace && pod.Name == nat.PodName(name) && g.Value.Subnet == subnet {
		return name
	}
	return ""
}

// holder is the owner of a lanIp in a pool: that of the gateway's pod.
func holder(gateway string) string {
	return objects.IPName(kubeovn.ConfigNamespace, nat.PodName(gateway))
}

// gatewayAddresses takes over the addresses that gateways and EIPs have, and then gives out those that they want: fixed ones first.
func (c *compiler) gatewayAddresses() {
	gateways := slices.SortedFunc(maps.Values(c.nat.Gateways), func(a, b *nat.Gateway) int { return a.Age.Compare(b.Age) })
	eips := slices.SortedFunc(maps.Values(c.nat.EIPs), func(a, b *nat.EIP) int { return a.Value.Compare(b.Value.Age) })
	for _, g := range gateways {
		c.lanIP(g)
		c.hold(g.Value.External, g.Object.Status.IP, g.Value.Owner())
	}
	for _, e := range eips {
		c.hold(e.Value.External, e.Object.Status.IP, e.Value.Owner())
	}
	for _, fixed := range []bool{true, false} {
		for _, e := range eips {
			if e.Value.Wanted.IsValid() == fixed && len(e.Problems) == 0 {
				c.give(e.Value.External, e.Value.Wanted, e.Value.Owner(), e.Object.Status.IP, inEffect(e.Object))
			}
		}
	}
	for _, g := range gateways {
		if !g.Value.NoOwn && g.Problem == (nat.Problem{}) {
			c.give(g.Value.External, netip.Addr{}, g.Value.Owner(), g.Object.Status.IP, inEffect(g.Object))
		}
	}
}

// inEffect reports whether an object has its finalizer and is not being deleted: only such a one is given an address.
func inEffect(object Object) bool {
	return object.GetDeletionTimestamp() == nil && slices.Contains(object.GetFinalizers(), kubeovn.Finalizer)
}

// lanIP reserves the address that a gateway has in its VPC, before any pod can get it.
func (c *compiler) lanIP(g *nat.Gateway) {
	s := c.byName[g.Value.Subnet]
	if s == nil || s.pool == nil || s.value.Definition != "" || !g.Value.LanIP.IsValid() || s.value.VPC != g.Value.VPC {
		return
	}
	if err := s.pool.Use(g.Value.LanIP, holder(g.Value.Name)); err != nil {
		c.refused[g.Value.Owner()] = nat.Problem{Reason: reasonOf(err), Message: "spec.lanIp: " + err.Error() + "; write another address of " + s.value.Prefix.String()}
		return
	}
	if s.pool.Owner(g.Value.LanIP) == holder(g.Value.Name) {
		s.holders++
		s.lanIPs = append(s.lanIPs, g.Value.LanIP)
	}
}

// hold takes over the address that an object has.
func (c *compiler) hold(external, text, owner string) {
	s := c.byName[external]
	addr, err := netip.ParseAddr(text)
	if s != nil && s.pool != nil && s.value.Definition != "" && err == nil && s.pool.Use(addr, owner) == nil {
		s.holders++
	}
}

// give makes an object's status have an address, where it has none that is its own.
func (c *compiler) give(external string, wanted netip.Addr, owner, have string, inEffect bool) {
	s := c.byName[external]
	switch {
	case s == nil || s.pool == nil:
		c.refused[owner] = nat.Problem{Reason: kubeovn.ReasonMissing, Message: fmt.Sprintf("there is no external Subnet %.64q that can be used; create it", external)}
		return
	case s.value.Definition == "":
		c.refused[owner] = nat.Problem{Reason: kubeovn.ReasonInvalid, Message: fmt.Sprintf(
			"spec.externalSubnet: Subnet %s is a switch of Vpc %s; name a Subnet whose provider is a NetworkAttachmentDefinition", external, s.value.VPC)}
		return
	}
	held, err := netip.ParseAddr(have)
	if err == nil && s.pool.Owner(held) == owner {
		if wanted.IsValid() && wanted != held {
			c.refused[owner] = nat.Problem{Reason: kubeovn.ReasonConflict, Message: fmt.Sprintf(
				"spec.v4ip: the EIP has %s, which stays; to have %s, delete the EIP and create it anew", held, wanted)}
		}
		return
	}
	if inEffect && s.object.DeletionTimestamp == nil {
		c.giveNew(s, wanted, owner)
	}
}

// giveNew takes the wanted address of an external subnet, or the next one.
func (c *compiler) giveNew(s *subnet, wanted netip.Addr, owner string) {
	last := s.pool.Last()
	if wanted.IsValid() {
		if err := s.pool.Use(wanted, owner); err != nil {
			c.refused[owner] = nat.Problem{Reason: reasonOf(err), Message: "spec.v4ip: " + err.Error() + "; write another address of " + s.value.Prefix.String()}
			return
		}
		s.pool.Resume(last)
	} else {
		next, err := s.pool.Next(owner)
		if err != nil {
			c.refused[owner] = nat.Problem{
				Reason: kubeovn.ReasonExhausted, Message: fmt.Sprintf("Subnet %s: %v; delete EIPs, or extend its range", s.value.Name, err),
			}
			return
		}
		wanted = next
	}
	s.holders++
	c.given[owner] = wanted.String()
}

// reasonOf returns the reason of an address that cannot be had.
func reasonOf(err error) string {
	if errors.Is(err, ipam.ErrOutside) {
		return kubeovn.ReasonInvalid
	}
	return kubeovn.ReasonConflict
}
