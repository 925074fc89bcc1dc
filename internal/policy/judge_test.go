package policy_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/internal/transport"
)

// judge evaluates packets by compiled rules, one rule and one address after the other.
type judge struct {
	isolated map[netip.Addr]policy.Isolation
	rules    []policy.Rule
	sets     map[policy.SetName]map[netip.Addr]bool
}

// index builds an index of a world's objects.
func index(t testing.TB, w oracle.World) *policy.Index {
	t.Helper()
	x := policy.New("")
	for _, ns := range w.Namespaces {
		x.SetNamespace(policy.FromNamespace(ns))
	}
	for _, pod := range w.Pods {
		x.SetPod(policy.FromPod(pod))
	}
	for _, np := range w.Policies {
		x.SetPolicy(compile(t, np))
	}
	return x
}

func compile(t testing.TB, np *networkingv1.NetworkPolicy) policy.Policy {
	t.Helper()
	p, err := policy.FromNetworkPolicy(np)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newJudge(x *policy.Index, w oracle.World) *judge {
	j := &judge{isolated: map[netip.Addr]policy.Isolation{}, sets: map[policy.SetName]map[netip.Addr]bool{}}
	for _, obj := range w.Pods {
		pod := policy.FromPod(obj)
		isolation, ok := x.Isolation(pod.Key)
		for _, ip := range pod.Addresses {
			if was := j.isolated[ip]; ok {
				j.isolated[ip] = policy.Isolation{Ingress: was.Ingress || isolation.Ingress, Egress: was.Egress || isolation.Egress}
			}
		}
	}
	for _, np := range w.Policies {
		for _, r := range x.Rules(policy.Key{Namespace: np.Namespace, Name: np.Name}) {
			j.rules = append(j.rules, r)
			for _, name := range append([]policy.SetName{r.Subjects}, r.PeerSets...) {
				if j.sets[name] == nil {
					j.sets[name] = map[netip.Addr]bool{}
					for _, ip := range x.Addresses(name) {
						j.sets[name][ip] = true
					}
				}
			}
		}
	}
	return j
}

func (j *judge) allowed(p oracle.Packet) bool {
	return p.Src == p.Dst ||
		(!j.isolated[p.Src].Egress || j.some(policy.Egress, p.Src, p.Dst, p)) && (!j.isolated[p.Dst].Ingress || j.some(policy.Ingress, p.Dst, p.Src, p))
}

func (j *judge) some(d policy.Direction, subject, peer netip.Addr, p oracle.Packet) bool {
	return slices.ContainsFunc(j.rules, func(r policy.Rule) bool {
		return r.Direction == d && j.sets[r.Subjects][subject] &&
			(r.AnyPeer || slices.ContainsFunc(r.PeerSets, func(s policy.SetName) bool { return j.sets[s][peer] }) ||
				slices.ContainsFunc(r.PeerBlocks, func(b netip.Prefix) bool { return b.Contains(peer) })) &&
			(r.AnyService || slices.ContainsFunc(r.Services, func(s policy.Service) bool { return s.Contains(numbers[p.Protocol], p.Port) }))
	})
}

var numbers = map[corev1.Protocol]transport.Protocol{corev1.ProtocolTCP: transport.TCP, corev1.ProtocolUDP: transport.UDP, corev1.ProtocolSCTP: transport.SCTP, "ICMP": 1}

// connects evaluates a packet by Index.Allows alone.
func connects(x *policy.Index, w oracle.World, p oracle.Packet) bool {
	c := policy.Connection{Source: p.Src, Destination: p.Dst, Protocol: numbers[p.Protocol], Port: p.Port}
	side := func(d policy.Direction, subject netip.Addr) bool {
		isolated := false
		for _, obj := range w.Pods {
			pod := policy.FromPod(obj)
			isolation, known := x.Isolation(pod.Key)
			if !known || !slices.Contains(pod.Addresses, subject) || d == policy.Ingress && !isolation.Ingress || d == policy.Egress && !isolation.Egress {
				continue
			}
			isolated = true
			if x.Allows(pod.Key, d, c) {
				return true
			}
		}
		return !isolated
	}
	return p.Src == p.Dst || side(policy.Egress, p.Src) && side(policy.Ingress, p.Dst)
}
