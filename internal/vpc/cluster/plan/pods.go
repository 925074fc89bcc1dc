package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/vpc/cluster/plan/gateways"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// addresser keeps the addresses that pods have in a plan, and assigns new ones.
type addresser struct {
	network  *topology.Network
	gateways *gateways.Gateways
	assigned *assigned
	// chosen are what the plan computes: it has the finalizers of those that have none yet.
	chosen *topology.Chosen
	// vpcs are the names of the VPCs in which addresses are assigned, by the UIDs of their Subnets.
	vpcs map[string]string
	// ips are the IP objects of chosen Subnets, kept and created, by name.
	ips map[string]*kubeovn.IP
	// created are IP objects that assign addresses. removed are those of pods that do not exist any more: their addresses are free with the
	// next plan. unconfirmed are those of removed whose pods the planner has not seen end.
	created, removed, unconfirmed []*kubeovn.IP
	former                        map[string]struct{} // the PodKeys that removed name
}

// keep keeps the IP objects of existing pods in a Subnet, by its UID, and removes others.
func (a *addresser) keep(uid string) {
	s := a.network.SubnetOf(uid)
	for _, ip := range slices.SortedFunc(maps.Values(a.assigned.ipsIn[uid]), objects.CompareIPs) {
		pod := a.assigned.podOfIP(ip)
		switch {
		case s != nil && s.Pool != nil:
			s.Keep(ip, pod != nil)
		case s != nil && pod != nil:
			s.Holders++ // the Subnet cannot be used now, and stays while the pod exists
		}
		if pod == nil {
			a.remove(ip)
			continue
		}
		a.ips[ip.Name] = ip
	}
	if s != nil && s.Pool != nil {
		a.reserve(s)
	}
}

// reserve takes the addresses from a Subnet's pool whose names IP objects of a former Subnet of its name have: the API server refuses a second
// object of the name.
func (a *addresser) reserve(s *topology.Subnet) {
	for _, ip := range a.assigned.ipsNamed[s.Value.Name] {
		if ip.Spec.SubnetUID == s.Value.UID {
			continue
		}
		owner := "the IP object " + ip.Name + " of a former Subnet of this name"
		if ip.Spec.NATGateway != "" {
			owner = objects.HolderOf(ip) // the gateway's lanIp stays
		}
		if addr, err := objects.AddressOf(ip); err == nil && ip.Name == objects.IPName(s.Value.Name, addr) {
			_ = s.Pool.Use(addr, owner) // or nothing can have it
		}
	}
}

// remove removes the IP object of a pod that does not exist.
func (a *addresser) remove(ip *kubeovn.IP) {
	a.removed = append(a.removed, ip)
	a.former[objects.HolderOf(ip)] = struct{}{}
	if !a.assigned.ended(ip) {
		a.unconfirmed = append(a.unconfirmed, ip)
	}
}

// assign assigns an address to a bound pod that has a node, and returns why it could not; empty: it has one.
func (a *addresser) assign(p bound) (why string) {
	why = p.Refuse
	for _, name := range p.Names {
		err := a.attach(p.pod, a.network.Subnet(name))
		if err == nil {
			return ""
		}
		why = err.Error()
	}
	return report.Bounded(why, maxWaiting)
}

// maxPool is how many addresses of its annotation ip_pool are tried for a pod.
const maxPool = 256

// maxWaiting is the maximum length of the reason why a pod waits: that of an event's note.
const maxWaiting = 1024

// attach assigns the pod an address of the subnet, and creates its IP object.
func (a *addresser) attach(pod *corev1.Pod, s *topology.Subnet) error {
	if v := a.network.VPC(s.Value.VPC); !s.Exists || s.Object.DeletionTimestamp != nil || v == nil || !a.held(s, v) {
		return fmt.Errorf("subnet %s or its Vpc is not in effect, or is being deleted", s.Value.Name)
	}
	if s.Value.Stopped != "" {
		return fmt.Errorf("subnet %s gives no addresses: %s", s.Value.Name, s.Value.Stopped)
	}
	holder := objects.PodKey(pod.Namespace, pod.Name)
	if _, removed := a.former[holder]; removed {
		return errors.New("the address of a former pod of this name is not free yet")
	}
	last := s.Pool.Last()
	addr, err := address(pod, s, holder)
	if err != nil {
		return err
	}
	mac, err := macOf(pod, s, addr, holder)
	if err != nil {
		s.Pool.Release(addr, holder)
		s.Pool.Resume(last) // the address was not assigned
		return err
	}
	s.MACs[mac] = holder
	s.Holders++
	ip := &kubeovn.IP{ObjectMeta: metav1.ObjectMeta{Name: objects.IPName(s.Value.Name, addr)}, Spec: kubeovn.IPSpec{
		PodName: pod.Name, Namespace: pod.Namespace, PodUID: string(pod.UID), NodeName: pod.Spec.NodeName,
		Subnet: s.Value.Name, SubnetUID: s.Value.UID, IPAddress: addr.String(), V4IPAddress: addr.String(), MacAddress: mac,
		LogicalPort: northbound.PortName(s.Value.Name, addr), CIDR: s.Value.Prefix.String(), Gateway: s.Value.Gateway.String(),
		NATGateway: a.gateways.Of(pod, s.Value.Name), Mtu: int32(s.Value.MTU), //nolint:gosec // at most 65535
	}}
	a.ips[ip.Name] = ip
	a.created, a.vpcs[s.Value.UID] = append(a.created, ip), s.Value.VPC
	return nil
}

// held reports whether a Subnet and its VPC have their finalizers, or get them with this plan: they are written before addresses are assigned
// (Plan.Withhold).
func (a *addresser) held(s *topology.Subnet, v *topology.VPC) bool {
	_, subnet := a.chosen.Subnets[s]
	_, vpc := a.chosen.VPCs[v]
	return (subnet || report.Held(s.Object)) && (report.Held(v.Object) || vpc && v.Object.DeletionTimestamp == nil)
}

// address assigns the address that the pod requests, or the next one.
func address(pod *corev1.Pod, s *topology.Subnet, owner string) (netip.Addr, error) {
	if text := pod.Annotations[kubeovn.AnnotationIPAddress]; text != "" {
		return fixed(s, owner, kubeovn.AnnotationIPAddress, text)
	}
	list := pod.Annotations[kubeovn.AnnotationIPPool]
	if list == "" {
		addr, err := s.Pool.Next(owner)
		if err != nil {
			return addr, fmt.Errorf("%w; add a Subnet, or delete pods", err)
		}
		return addr, nil
	}
	separator := separatorOf(list)
	count := strings.Count(list, separator) + 1
	if ordinal, ok := ordinalOf(pod); ok {
		if ordinal >= count {
			return netip.Addr{}, fmt.Errorf("annotation %s has %d addresses, and none for ordinal %d", kubeovn.AnnotationIPPool, count, ordinal)
		}
		return fixed(s, owner, kubeovn.AnnotationIPPool, word(list, separator, ordinal))
	}
	if count > maxPool {
		return netip.Addr{}, fmt.Errorf("annotation %s has %d addresses; write %d at most", kubeovn.AnnotationIPPool, count, maxPool)
	}
	return oneOf(s, owner, list, separator)
}

// separatorOf returns what separates the addresses of an annotation ip_pool, as in Kube-OVN: semicolons if there is one, because the two
// families of an address are separated by a comma; else commas, unless there is only one address of two families.
func separatorOf(list string) string {
	const semicolon, comma = ";", ","
	first, second, pair := strings.Cut(list, comma)
	if strings.Contains(list, semicolon) ||
		pair && !strings.Contains(second, comma) && strings.Contains(first, ":") != strings.Contains(second, ":") {
		return semicolon
	}
	return comma
}

// oneOf assigns the first free address of a list.
func oneOf(s *topology.Subnet, owner, list, separator string) (netip.Addr, error) {
	var first error
	count := 0
	for word := range strings.SplitSeq(list, separator) {
		count++
		addr, err := fixed(s, owner, kubeovn.AnnotationIPPool, word)
		if err == nil {
			return addr, nil
		}
		first = cmp.Or(first, err)
	}
	if count > 1 {
		first = fmt.Errorf("%w; none of the %d other addresses is free either", first, count-1)
	}
	return netip.Addr{}, first
}

// word returns a word of a list by its index.
func word(list, separator string, at int) string {
	for range at {
		_, list, _ = strings.Cut(list, separator)
	}
	found, _, _ := strings.Cut(list, separator)
	return found
}

// fixed assigns an address that an annotation requests: the IPv4 side of one of two families.
func fixed(s *topology.Subnet, owner, annotation, text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(strings.TrimSpace(objects.FirstIPv4(text)))
	if err != nil {
		return addr, fmt.Errorf("annotation %s: %.64q is not an address; write one of %s", annotation, text, s.Value.Prefix)
	}
	if err := s.Pool.Use(addr, owner); err != nil {
		if errors.Is(err, ipam.ErrOutside) {
			return addr, fmt.Errorf("annotation %s: %w; write another address of the Subnet %s", annotation, err, s.Value.Name)
		}
		return addr, fmt.Errorf("annotation %s: %w", annotation, err)
	}
	return addr, nil
}

// ordinalOf returns the ordinal of a StatefulSet's pod.
func ordinalOf(pod *corev1.Pod) (int, bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "StatefulSet" {
		return 0, false
	}
	text, ok := strings.CutPrefix(pod.Name, owner.Name+"-")
	if !ok {
		return 0, false
	}
	ordinal, err := strconv.Atoi(text)
	return ordinal, err == nil && ordinal >= 0
}

// macOf returns the MAC address that the pod requests, or the one derived from its address.
func macOf(pod *corev1.Pod, s *topology.Subnet, addr netip.Addr, owner string) (string, error) {
	text := pod.Annotations[kubeovn.AnnotationMACAddress]
	if text == "" {
		mac := northbound.MAC(addr)
		if holder := s.MACs[mac]; holder != "" && holder != owner {
			return "", fmt.Errorf("the MAC address %s is in use by %s", mac, holder)
		}
		return mac, nil
	}
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil || len(mac) != 6 || mac[0]&1 == 1 || mac.String() == "00:00:00:00:00:00":
		return "", fmt.Errorf("annotation %s: %.32q is not a MAC address of one host; write one such as 02:00:00:00:01:05", kubeovn.AnnotationMACAddress, text)
	case mac.String() == northbound.MAC(s.Value.Gateway):
		return "", fmt.Errorf("annotation %s: %s is the gateway's MAC address", kubeovn.AnnotationMACAddress, mac)
	case northbound.Derived(mac) && mac.String() != northbound.MAC(addr):
		return "", fmt.Errorf("annotation %s: %s belongs to another address than %s; write %s, or one such as 02:00:00:00:01:05",
			kubeovn.AnnotationMACAddress, mac, addr, northbound.MAC(addr))
	case s.MACs[mac.String()] != "":
		return "", fmt.Errorf("annotation %s: %s is in use by %s", kubeovn.AnnotationMACAddress, mac, s.MACs[mac.String()])
	}
	return mac.String(), nil
}
