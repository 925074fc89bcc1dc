package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/neutron/ports"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
)

const (
	// networkOwner starts the owners of a network's Services, and hostOwner owns those that the host serves.
	networkOwner                 = "neutron/network/"
	hostOwner    reconcile.Owner = "neutron/host-services"
	// labelsPatience limits how long an ADD waits for the pod's labels. The API server had the pod before the runtime did.
	labelsPatience = 20 * time.Second
)

// hostServices are the Services that pods of all networks reach by the host: the API server and the cluster's DNS.
func hostServices() []client.ObjectKey {
	return []client.ObjectKey{{Namespace: "default", Name: "kubernetes"}, {Namespace: "kube-system", Name: "kube-dns"}}
}

// worldKinds are the kinds that flows depend on besides NeutronPorts.
func worldKinds() []client.Object {
	return []client.Object{
		&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Pod{}, &corev1.Namespace{}, &networkingv1.NetworkPolicy{},
	}
}

// fragments are the flows of several owners.
type fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry

// subnet is what a node's ports contain about their network.
type subnet struct {
	prefixes   []netip.Prefix
	gatewayMAC net.HardwareAddr
}

// macOf returns the MAC address at which an address is reached: ports that Weft creates have one derived from their address. That of a machine
// in the subnet is not known; the router leads to it.
func (s *subnet) macOf(addr netip.Addr, isPod bool) net.HardwareAddr {
	inside := addr.Is4() && slices.ContainsFunc(s.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
	if inside && (isPod || s.gatewayMAC == nil) {
		return append(net.HardwareAddr{0x0a, 0x58}, addr.AsSlice()...)
	}
	return s.gatewayMAC
}

// endpointsOf returns the endpoints of a virtual address that can be reached: those that get new connections, and the others.
func (s *subnet) endpointsOf(va *service.VirtualAddress, pods map[netip.Addr]bool) (chosen, leaving []pipeline.Endpoint) {
	fresh := map[netip.AddrPort]bool{}
	for _, e := range va.Endpoints {
		fresh[e.Addr] = true
	}
	for _, at := range va.Known {
		e := pipeline.Endpoint{Addr: at, MAC: s.macOf(at.Addr(), pods[at.Addr()])}
		switch {
		case e.MAC == nil:
		case fresh[at]:
			chosen = append(chosen, e)
		default:
			leaving = append(leaving, e)
		}
	}
	return chosen, leaving
}

// podsOf returns the addresses that slices name as those of pods.
func podsOf(all []discoveryv1.EndpointSlice) map[netip.Addr]bool {
	found := map[netip.Addr]bool{}
	for i := range all {
		for _, e := range all[i].Endpoints {
			if e.TargetRef == nil || e.TargetRef.Kind != "Pod" || len(e.Addresses) == 0 {
				continue
			}
			if addr, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				found[addr] = true
			}
		}
	}
	return found
}

// scope identifies a network in flows: the namespace and the name of its Network. The zero value represents the Services that the host
// serves.
type scope struct{ namespace, name string }

func (s scope) host() bool { return s == scope{} }

func (s scope) owner() reconcile.Owner {
	return reconcile.Owner(networkOwner + s.namespace + "/" + s.name)
}

func (s scope) number() uint64 {
	sum := sha256.Sum256([]byte(s.namespace + "/" + s.name))
	return binary.BigEndian.Uint64(sum[:8])
}

func scopeOf(rec *attach.Record, d *ports.Details) scope { return scope{rec.PodNamespace, d.Network} }

// world is the input from which the flows of one network are compiled.
type world struct {
	scope    scope
	node     string
	subnet   subnet
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice
	policies []networkingv1.NetworkPolicy
	pods     []corev1.Pod
	// labels are the namespace's.
	labels map[string]string
	// attached are the network's pods on this node.
	attached []attach.Record
	// number returns the group of a Service's port.
	number func(groupKey) uint32
	// virtual are the Services that compile has compiled, not nil.
	virtual []pipeline.Service
	// tracked are the families whose connections the compiled flows track, of each pod.
	tracked map[attach.Key]tracked
}

// tracked are the families of which a pod's connections are tracked.
type tracked struct{ v4, v6 bool }

// read reads the objects of a network's namespace from the cache. They belong to the cache, and must not be changed.
func read(ctx context.Context, objects client.Reader, w *world) error {
	var (
		all      corev1.ServiceList
		eps      discoveryv1.EndpointSliceList
		policies networkingv1.NetworkPolicyList
		ports    weftv1.NeutronPortList
	)
	in, shared := client.InNamespace(w.scope.namespace), client.UnsafeDisableDeepCopy
	err := errors.Join(objects.List(ctx, &all, in, shared), objects.List(ctx, &eps, in, shared), objects.List(ctx, &policies, in, shared))
	if err != nil {
		return fmt.Errorf("read Services and NetworkPolicies of namespace %s: %w", w.scope.namespace, err)
	}
	if err := objects.List(ctx, &ports, shared); err != nil {
		return fmt.Errorf("read NeutronPorts: %w", err)
	}
	w.subnet = subnetOf(ports.Items, w)
	w.services, w.slices, w.policies = all.Items, eps.Items, policies.Items
	// The cache lists them in any order.
	slices.SortFunc(w.policies, func(x, y networkingv1.NetworkPolicy) int { return strings.Compare(x.Name, y.Name) })
	if len(w.policies) == 0 {
		return nil
	}
	var pods corev1.PodList
	var namespace corev1.Namespace
	err = errors.Join(objects.List(ctx, &pods, in, shared), client.IgnoreNotFound(objects.Get(ctx, client.ObjectKey{Name: w.scope.namespace}, &namespace)))
	if err != nil {
		return fmt.Errorf("read pods of namespace %s: %w", w.scope.namespace, err)
	}
	w.pods, w.labels = pods.Items, namespace.Labels
	return nil
}

// subnetOf returns what the node's ports of a network contain about it.
func subnetOf(list []weftv1.NeutronPort, w *world) subnet {
	var found subnet
	add := func(p netip.Prefix) {
		if p = p.Masked(); !slices.Contains(found.prefixes, p) {
			found.prefixes = append(found.prefixes, p)
		}
	}
	for i := range w.attached {
		for _, p := range w.attached[i].Addresses {
			add(p)
		}
	}
	last := ""
	for i := range list {
		object := &list[i]
		if object.Spec.Node != w.node || object.Spec.Network.Namespace != w.scope.namespace || object.Spec.Network.Name != w.scope.name {
			continue
		}
		parsed, err := ports.Parse(object)
		if err != nil {
			continue // the port's status has the reason
		}
		for i, a := range parsed.Addresses {
			add(a)
			// The CRD has validated it. Of several, the port with the lowest name decides, not the cache's order.
			if mac, err := net.ParseMAC(object.Spec.Addresses[i].GatewayMAC); err == nil && a.Addr().Is4() && (last == "" || object.Name < last) {
				found.gatewayMAC, last = mac, object.Name
			}
		}
	}
	return found
}

// compile returns the flows of the network's Services and of its pods on this node, their judge, and the policies that are invalid.
func (w *world) compile() (fragments, *judge, error) {
	out := fragments{}
	list := w.compileServices()
	if len(w.attached) == 0 {
		list = nil
	}
	w.virtual, w.tracked = append([]pipeline.Service{}, list...), map[attach.Key]tracked{}
	out[w.scope.owner()] = pipeline.ServiceEntries(w.scope.owner(), w.scope.number(), list)
	var problem error
	judge := w.judge()
	for i := range w.attached {
		rec := &w.attached[i]
		pod, _, err := podOf(rec)
		if err != nil {
			problem = errors.Join(problem, err)
			continue
		}
		pod.Network = w.scope.number()
		if judge != nil {
			pod.Ingress, pod.Egress = judge.allowed(rec)
		}
		isolated := pod.Ingress != nil || pod.Egress != nil
		pod.Tracked = len(list) > 0 || isolated
		w.tracked[rec.Key()] = tracked{v4: pod.Tracked, v6: isolated}
		out[pod.Owner] = openflow.Fragment(pipeline.PodRules(pod))
	}
	if judge != nil {
		for _, r := range judge.refused {
			problem = errors.Join(problem, fmt.Errorf("NetworkPolicy %s/%s: %w", r.policy.Namespace, r.policy.Name, r.err))
		}
	}
	return out, judge, problem
}

// compileServices returns the virtual addresses of the namespace's Services, except those that the host serves.
func (w *world) compileServices() []pipeline.Service {
	var list []pipeline.Service
	of, pods := map[string][]service.Slice{}, podsOf(w.slices)
	for i := range w.slices {
		if slice, is := service.FromSlice(&w.slices[i]); is {
			of[slice.Service] = append(of[slice.Service], slice)
		}
	}
	for i := range w.services {
		object := &w.services[i]
		if slices.Contains(hostServices(), client.ObjectKeyFromObject(object)) {
			continue
		}
		for _, va := range addressesOf(object, of[object.Name], w.node) {
			if !va.IP.Is4() {
				continue // IPv6 of pods without policies is not tracked
			}
			s := pipeline.Service{
				Group:   w.number(groupKey{object.UID, va.PortName, va.Protocol, va.Port}),
				Address: va.IP, Port: pipeline.Port{Protocol: uint8(va.Protocol), Number: va.Port}, Sticky: va.Affinity > 0,
			}
			s.Endpoints, s.Leaving = w.subnet.endpointsOf(&va, pods)
			list = append(list, s)
		}
	}
	return list
}

// addressesOf returns the cluster addresses of a Service with its slices.
func addressesOf(object *corev1.Service, own []service.Slice, node string) []service.VirtualAddress {
	s, usable := service.FromService(object)
	if !usable {
		return nil
	}
	return slices.DeleteFunc(service.Compile(s, own, service.Place{Node: node}), func(va service.VirtualAddress) bool {
		return va.Kind != service.KindClusterIP
	})
}

// judge has what policies allow to the network's pods.
type judge struct {
	index *policy.Index
	uids  map[policy.Key][]string
	// policies are the objects, and refused the parts of them that are not in effect as written.
	policies map[policy.Key]*networkingv1.NetworkPolicy
	refused  []refusal
}

// refusal is why a policy is not in effect as written.
type refusal struct {
	policy *networkingv1.NetworkPolicy
	err    error
}

// judge returns nil if the namespace has no policy. An invalid policy isolates its pods and allows what of it is valid.
func (w *world) judge() *judge {
	if len(w.policies) == 0 {
		return nil
	}
	j := &judge{index: policy.New(""), uids: map[policy.Key][]string{}, policies: map[policy.Key]*networkingv1.NetworkPolicy{}}
	j.index.SetNamespace(policy.Namespace{Name: w.scope.namespace, Labels: w.labels})
	local := map[policy.Key][]netip.Addr{}
	for i := range w.attached {
		key := policy.Key{Namespace: w.attached[i].PodNamespace, Name: w.attached[i].PodName}
		local[key] = append(local[key], addrs(w.attached[i].Addresses)...)
	}
	for i := range w.pods {
		object := &w.pods[i]
		pod := policy.FromPod(object)
		if own, here := local[pod.Key]; here {
			pod.Addresses = own
		} else {
			// A pod of the namespace that is on another network has no address here.
			pod.Addresses = slices.DeleteFunc(pod.Addresses, func(a netip.Addr) bool {
				return !slices.ContainsFunc(w.subnet.prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
			})
		}
		slices.SortFunc(pod.Addresses, netip.Addr.Compare)
		j.index.SetPod(pod)
		j.uids[pod.Key] = []string{string(object.UID), object.Annotations[corev1.MirrorPodAnnotationKey]}
	}
	for i := range w.policies {
		p, err := policy.FromNetworkPolicy(&w.policies[i])
		j.policies[p.Key] = &w.policies[i]
		if err != nil {
			j.refused = append(j.refused, refusal{&w.policies[i], err})
		}
		j.index.SetPolicy(p)
	}
	return j
}

// knows reports whether the judge has the pod of an attachment.
func (j *judge) knows(rec *attach.Record) bool {
	uids, there := j.uids[policy.Key{Namespace: rec.PodNamespace, Name: rec.PodName}]
	return there && (rec.PodUID == "" || slices.Contains(uids, rec.PodUID))
}

// allowed returns what policies allow the pod of an attachment; nil: it is not isolated in that direction. An unknown pod is closed.
func (j *judge) allowed(rec *attach.Record) (ingress, egress *pipeline.Allowed) {
	key := policy.Key{Namespace: rec.PodNamespace, Name: rec.PodName}
	isolation, known := j.index.Isolation(key)
	if !known || !j.knows(rec) {
		return &pipeline.Allowed{}, &pipeline.Allowed{}
	}
	if isolation.Ingress {
		ingress = &pipeline.Allowed{}
	}
	if isolation.Egress {
		egress = &pipeline.Allowed{}
	}
	for _, name := range j.index.Policies(key) {
		for _, rule := range j.index.Rules(name) {
			if !j.index.Has(rule.Subjects, key) {
				continue
			}
			switch {
			case rule.Direction == policy.Ingress && ingress != nil:
				ingress.Rules = append(ingress.Rules, j.rule(&rule))
			case rule.Direction == policy.Egress && egress != nil:
				egress.Rules = append(egress.Rules, j.rule(&rule))
			}
		}
	}
	return j.bounded(key, "ingress", ingress), j.bounded(key, "egress", egress)
}

// mostMatches limits the policies' flows for one pod and direction: a rule results in one for each combination of peer and port.
const mostMatches = 4096

// errMatches is the problem of a pod whose policies result in more flows than a node programs.
var errMatches = errors.New("too many combinations of a peer and a port, the pod is closed in this direction: write fewer ports, or peers as ranges")

// bounded returns what is allowed, or nothing if that needs more flows than a node programs for a pod.
func (j *judge) bounded(key policy.Key, direction string, a *pipeline.Allowed) *pipeline.Allowed {
	if a == nil {
		return nil
	}
	count := 0
	for i := range a.Rules {
		r := &a.Rules[i]
		peers, ports := len(r.Peers), len(r.Ports)
		if r.AnyPeer {
			peers = 1
		}
		if r.AnyPort {
			ports = 1
		}
		if peers > mostMatches || ports > mostMatches || count+peers*ports > mostMatches {
			err := fmt.Errorf("the NetworkPolicies of pod %s/%s, %s: more than %d: %w", key.Namespace, key.Name, direction, mostMatches, errMatches)
			for _, name := range j.index.Policies(key) {
				j.refused = append(j.refused, refusal{j.policies[name], err})
			}
			return &pipeline.Allowed{}
		}
		count += peers * ports
	}
	return a
}

func (j *judge) rule(rule *policy.Rule) pipeline.Allow {
	allow := pipeline.Allow{AnyPeer: rule.AnyPeer, AnyPort: rule.AnyService, Peers: slices.Clone(rule.PeerBlocks)}
	for _, set := range rule.PeerSets {
		for _, a := range j.index.Addresses(set) {
			allow.Peers = append(allow.Peers, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, s := range rule.Services {
		allow.Ports = append(allow.Ports, pipeline.Port{Protocol: uint8(s.Protocol), Number: s.Port, Mask: s.Mask})
	}
	return allow
}

// compileHost returns the flows of the Services that the host serves.
func compileHost(ctx context.Context, objects client.Reader) (fragments, error) {
	var list []pipeline.HostService
	for _, key := range hostServices() {
		var object corev1.Service
		if err := objects.Get(ctx, key, &object); err != nil {
			if client.IgnoreNotFound(err) == nil {
				continue
			}
			return nil, fmt.Errorf("read Service %s: %w", key, err)
		}
		for _, va := range addressesOf(&object, nil, "") {
			list = append(list, pipeline.HostService{Address: va.IP, Port: pipeline.Port{Protocol: uint8(va.Protocol), Number: va.Port}})
		}
	}
	return fragments{hostOwner: pipeline.HostServiceEntries(hostOwner, list)}, nil
}
