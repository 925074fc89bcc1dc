package gateways

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// addresses are the addresses that plans assign to gateways and EIPs, all by Owner.
type addresses struct {
	// lanRefused and refused are why a gateway has no address in its VPC, and why a gateway or an EIP has none in its external Subnet.
	lanRefused, refused map[string]nat.Problem
	// given are the addresses in external Subnets that they get.
	given map[string]string
}

// refusal returns why an object has no address.
func (a *addresses) refusal(owner string) nat.Problem {
	if outside, refused := a.refused[owner]; refused {
		return outside
	}
	return a.lanRefused[owner]
}

// of returns the address that an EIP has, or gets in this plan; empty: none.
func (a *addresses) of(e *nat.EIP) string {
	_, refused := a.refused[e.Value.Owner()]
	switch address := a.given[e.Value.Owner()]; {
	case address != "":
		return address
	case e.Value.Addr.IsValid() && !e.Value.Reported && !refused:
		return e.Value.Addr.String()
	default:
		return e.Object.Status.IP
	}
}

// forgetDeleted removes gateways that do not exist any more.
func (a *addresses) forgetDeleted(gateways []*nat.Gateway) {
	if len(a.lanRefused) == 0 {
		return
	}
	there := map[string]bool{}
	for _, g := range gateways {
		there[g.Value.Owner()] = true
	}
	maps.DeleteFunc(a.lanRefused, func(owner string, _ nat.Problem) bool { return !there[owner] })
}

// assigner assigns the addresses of one plan.
type assigner struct {
	network   *topology.Network
	specs     *specs
	addresses *addresses
}

// lanIPs reserves the addresses that gateways have in chosen Subnets, and reports whether one is refused, or not refused any more.
func (a *assigner) lanIPs(chosen *topology.Chosen) (changed bool) {
	refused := a.addresses.lanRefused
	for _, g := range a.specs.gatesByAge {
		if s := a.network.Subnet(g.Value.Subnet); s != nil {
			if _, is := chosen.Subnets[s]; !is {
				continue
			}
		}
		before := refused[g.Value.Owner()]
		delete(refused, g.Value.Owner())
		a.lanIP(g)
		changed = changed || refused[g.Value.Owner()] != before
	}
	return changed
}

// lanIP reserves a gateway's address in its VPC, before any pod can get it.
func (a *assigner) lanIP(g *nat.Gateway) {
	s := a.network.Subnet(g.Value.Subnet)
	if s == nil || s.Pool == nil || s.Value.Definition != "" || !g.Value.LanIP.IsValid() || s.Value.VPC != g.Value.VPC {
		return
	}
	if err := s.Pool.Use(g.Value.LanIP, holder(g.Value.Name)); err != nil {
		a.addresses.lanRefused[g.Value.Owner()] = nat.Problem{
			Reason: reasonOf(err), Message: "spec.lanIp: " + err.Error() + "; write another address of " + s.Value.Prefix.String(),
		}
		return
	}
	if s.Pool.Owner(g.Value.LanIP) == holder(g.Value.Name) {
		s.Holders++
		s.LanIPs = append(s.LanIPs, g.Value.LanIP)
	}
}

// holder is the owner of a lanIp in a pool: the gateway's pod.
func holder(gateway string) string {
	return objects.PodKey(kubeovn.ConfigNamespace, nat.PodName(gateway))
}

// external keeps the addresses that gateways and EIPs have in external Subnets, and then assigns those that they want, fixed ones first.
func (a *assigner) external() {
	clear(a.addresses.refused)
	clear(a.addresses.given)
	for _, g := range a.specs.gatesByAge {
		a.hold(g.Value.External, parsed(g.Object.Status.IP), g.Value.Owner())
	}
	for _, e := range a.specs.eipsByAge {
		a.hold(e.Value.External, e.Value.Addr, e.Value.Owner())
	}
	for _, fixed := range []bool{true, false} {
		for _, e := range a.specs.eipsByAge {
			if e.Value.Wanted.IsValid() == fixed && len(e.Problems) == 0 {
				a.give(e.Value.External, e.Value.Wanted, e.Value.Owner(), e.Value.Addr, e.Object.DeletionTimestamp == nil)
			}
		}
	}
	for _, g := range a.specs.gatesByAge {
		if !g.Value.NoOwn && g.Problem == (nat.Problem{}) {
			a.give(g.Value.External, netip.Addr{}, g.Value.Owner(), parsed(g.Object.Status.IP), g.Object.DeletionTimestamp == nil)
		}
	}
}

// parsed returns the address in a status; the zero value: there is none.
func parsed(text string) netip.Addr {
	addr, _ := netip.ParseAddr(text)
	return addr
}

// hold keeps the address that an object has.
func (a *assigner) hold(external string, addr netip.Addr, owner string) {
	s := a.network.Subnet(external)
	if s != nil && s.Pool != nil && s.Value.Definition != "" && addr.IsValid() && s.Pool.Use(addr, owner) == nil {
		s.Holders++
	}
}

// give assigns an address to an object, unless it has one that it owns, or the object is being deleted (lives). The plan also has the
// object's finalizer, which is written first (Plan.Withhold).
func (a *assigner) give(external string, wanted netip.Addr, owner string, have netip.Addr, lives bool) {
	s := a.network.Subnet(external)
	switch {
	case s != nil && s.Pool == nil && s.Message != "":
		a.addresses.refused[owner] = nat.Problem{Reason: kubeovn.ReasonPending, Message: fmt.Sprintf(
			"%s: Subnet %s cannot be used: %s", externalField(owner), external, s.Message)}
		return
	case s == nil || s.Pool == nil:
		a.addresses.refused[owner] = nat.Problem{Reason: kubeovn.ReasonMissing, Message: fmt.Sprintf(
			"%s: there is no external Subnet %.64q that can be used; create it", externalField(owner), external)}
		return
	case s.Value.Definition == "":
		a.addresses.refused[owner] = nat.Problem{Reason: kubeovn.ReasonInvalid, Message: fmt.Sprintf(
			"%s: Subnet %s is a switch of Vpc %s; name a Subnet whose provider is a NetworkAttachmentDefinition", externalField(owner), external, s.Value.VPC)}
		return
	}
	if have.IsValid() && s.Pool.Owner(have) == owner {
		if wanted.IsValid() && wanted != have {
			a.addresses.refused[owner] = nat.Problem{Reason: kubeovn.ReasonConflict, Message: fmt.Sprintf(
				"spec.v4ip: the EIP has %s, which stays; to have %s, delete the EIP and create it anew", have, wanted)}
		}
		return
	}
	if lives && s.Object.DeletionTimestamp == nil {
		a.giveNew(s, wanted, owner)
	}
}

// externalField is the field that names the external Subnet of a gateway or an EIP.
func externalField(owner string) string {
	if strings.HasPrefix(owner, "VpcNatGateway/") {
		return "spec.externalSubnets[0]"
	}
	return "spec.externalSubnet"
}

// giveNew assigns the wanted address of an external subnet, or the next one.
func (a *assigner) giveNew(s *topology.Subnet, wanted netip.Addr, owner string) {
	last := s.Pool.Last()
	if wanted.IsValid() {
		if err := s.Pool.Use(wanted, owner); err != nil {
			a.addresses.refused[owner] = nat.Problem{Reason: reasonOf(err), Message: "spec.v4ip: " + err.Error() + "; write another address of " + s.Value.Prefix.String()}
			return
		}
		s.Pool.Resume(last)
	} else {
		next, err := s.Pool.Next(owner)
		if err != nil {
			a.addresses.refused[owner] = nat.Problem{
				Reason: kubeovn.ReasonExhausted, Message: fmt.Sprintf("Subnet %s: %v; delete EIPs, or extend its range", s.Value.Name, err),
			}
			return
		}
		wanted = next
	}
	s.Holders++
	a.addresses.given[owner] = wanted.String()
}

// reasonOf returns the condition's reason for an unavailable address.
func reasonOf(err error) string {
	if errors.Is(err, ipam.ErrOutside) {
		return kubeovn.ReasonInvalid
	}
	return kubeovn.ReasonConflict
}
