package topology

import (
	"fmt"
	"net/netip"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/vpc/objects"
)

// Addresses are the addresses of a Subnet that a plan computes, and what has them. The zero value has none.
type Addresses struct {
	Pool *ipam.SubnetPool // nil: the Subnet cannot be used
	// MACs are the holders of MAC addresses.
	MACs map[string]string
	// Holders is how many IP objects, gateways and EIPs have an address. Without a pool, the IP objects of existing pods count.
	Holders int
	// LanIPs are the addresses of NAT gateways in the VPC.
	LanIPs []netip.Addr
	// Outdated are the problems of pods that started with another range or gateway of the Subnet, or whose IP object has no IPv4 address.
	Outdated objects.Problems
}

// Keep records the address of an IP object. If its pod exists, the Subnet stays, even if the address is not one of its range any more: pods
// keep the address and the gateway with which they started.
func (s *Subnet) Keep(ip *kubeovn.IP, exists bool) {
	addr, err := objects.AddressOf(ip)
	if err != nil {
		if exists {
			s.Outdated = append(s.Outdated, objects.Problem{Field: "IP " + ip.Name, Text: fmt.Sprintf(
				"%s; it is ignored, and the pod %s/%s has no address; delete the IP object", err, ip.Spec.Namespace, ip.Spec.PodName,
			)})
		}
		return
	}
	holder := objects.HolderOf(ip)
	refused := s.Pool.Use(addr, holder)
	if refused == nil || exists {
		s.Holders++
		s.MACs[ip.Spec.MacAddress] = holder
	}
	if !exists || ip.Spec.NATGateway != "" { // the gateway itself reports its lanIp
		return
	}
	field := "spec.gateway"
	var why string
	switch {
	case refused != nil && addr != s.Value.Gateway:
		field, why = "spec.cidrBlock", refused.Error()
	case refused != nil:
		why = refused.Error()
	case ip.Spec.Gateway != s.Value.Gateway.String():
		why = "it uses the former gateway " + ip.Spec.Gateway
	default:
		return
	}
	s.Outdated = append(s.Outdated, objects.Problem{
		Field: field, Text: fmt.Sprintf("pod %s/%s started before the change, and keeps %s: %s; recreate the pod, or undo the change",
			ip.Spec.Namespace, ip.Spec.PodName, addr, why),
	})
}

// Open creates the Subnet's pool of addresses, which continues after the last assigned address.
func (s *Subnet) Open() {
	s.Addresses = Addresses{MACs: map[string]string{}}
	if s.Reason != "" {
		return
	}
	pool, err := ipam.NewSubnetPool(s.Value.Prefix, s.Value.Gateway, s.Value.Excludes)
	if err != nil {
		return // parse has reported it
	}
	s.Pool = pool
	if last, err := netip.ParseAddr(s.Object.Status.LastIP); err == nil {
		pool.Resume(last)
	}
}
