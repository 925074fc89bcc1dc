package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/egressip"
)

// EgressIPState is everything that a plan of egress IPs is made from.
type EgressIPState struct {
	HostSubnets   []networkv1.HostSubnet
	NetNamespaces []networkv1.NetNamespace
	// Offline has the names of hosts that do not answer.
	Offline map[string]bool
	// Unproven has the names of hosts that have not answered yet.
	Unproven map[string]bool
	// Capacity is the number of addresses that a host can have, by name. Without an entry there is no limit.
	Capacity map[string]int
}

// EgressIPPlan is what to write about egress IPs.
type EgressIPPlan struct {
	Writes[*networkv1.HostSubnet]
	// Again says that addresses were taken off hosts, and that the next plan assigns them to others.
	Again bool
	// Problems are about NetNamespaces and HostSubnets, in a fixed order.
	Problems []Problem
	// InUse describes, for NetNamespaces that want egress IPs, which are in use and where.
	InUse map[string]string
}

// EgressIPs plans the egressIPs of HostSubnets with egressCIDRs, and checks those of all. An address never moves in one plan: the next plan
// assigns to a host what this one takes off another, once the removal is confirmed.
func EgressIPs(s EgressIPState) EgressIPPlan {
	var namespaces []egressip.Namespace
	uids := map[Object]Object{}
	for i := range s.NetNamespaces {
		nn := &s.NetNamespaces[i]
		namespaces = append(namespaces, egressip.Namespace{Name: nn.Name, VNID: nn.NetID, IPs: clusternetwork.WantedEgressIPs(nn)})
		uids[Object{Kind: KindNetNamespace, Name: nn.Name}] = about(KindNetNamespace, nn.Name, nn.UID)
	}
	nodes := make([]egressip.Node, 0, len(s.HostSubnets))
	for i := range s.HostSubnets {
		hs := &s.HostSubnets[i]
		capacity, limited := s.Capacity[hs.Name]
		refused := clusternetwork.RefusedEgressIPs(hs)
		nodes = append(nodes, egressip.Node{
			Name: hs.Name, IPs: clusternetwork.HostedEgressIPs(hs), CIDRs: clusternetwork.EgressCIDRs(hs),
			Limited: limited, Capacity: capacity, Offline: s.Offline[hs.Name], Unproven: s.Unproven[hs.Name],
			Refused: refused, RefusedAbove: clusternetwork.RefusedAbove(refused),
		})
		uids[Object{Kind: KindHostSubnet, Name: hs.Name}] = about(KindHostSubnet, hs.Name, hs.UID)
	}
	assigned := egressip.Assign(namespaces, nodes)
	result := EgressIPPlan{Again: assigned.Again}
	for i := range s.HostSubnets {
		list, automatic := assigned.IPs[s.HostSubnets[i].Name]
		if texts := addressTexts(list); automatic && !slices.Equal(texts, s.HostSubnets[i].EgressIPs) {
			hs := s.HostSubnets[i].DeepCopy()
			hs.EgressIPs = texts
			result.Update = append(result.Update, hs)
		}
		if automatic {
			nodes[i].IPs = list
		}
	}
	judged := egressip.NewPlan(namespaces, nodes)
	for _, p := range unassigned(judged.Problems, &assigned) {
		result.Problems = append(result.Problems, Problem{Object: uids[Object{Kind: p.Kind, Name: p.Name}], Reason: p.Reason, Message: p.Message})
	}
	result.InUse = inUse(judged)
	return result
}

// unassigned returns the problems of a plan, with the more specific reason why no node hosts an address if nodes have ranges, and without
// addresses that are about to be assigned.
func unassigned(problems []egressip.Problem, assigned *egressip.Assignment) []egressip.Problem {
	var all []egressip.Problem
	for _, p := range problems {
		if p.Reason != egressip.ReasonUnassigned || len(assigned.IPs) == 0 {
			all = append(all, p)
			continue
		}
		for _, better := range assigned.Problems {
			if better.Name == p.Name && better.IP == p.IP {
				all = append(all, better)
			}
		}
	}
	return all
}

// inUse describes, for each namespace that wants egress IPs, which of them are in use.
func inUse(plan egressip.Plan) map[string]string {
	words := map[string]string{}
	for _, way := range plan.Ways {
		var used []string
		for _, holder := range way.Holders {
			used = append(used, fmt.Sprintf("%s at %s", holder.IP, holder.Node))
		}
		for _, name := range way.Namespaces {
			words[name] = strings.Join(used, ", ")
		}
	}
	return words
}

func addressTexts(list []netip.Addr) []string {
	var texts []string
	for _, ip := range list {
		texts = append(texts, ip.String())
	}
	return texts
}
