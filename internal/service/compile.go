package service

import (
	"cmp"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/transport"
)

// Compile returns the virtual addresses by which pods of this node reach the Service, sorted. Slices of other Services are ignored. The
// order of the slices does not matter.
func Compile(svc Service, all []Slice, here Place) []VirtualAddress {
	own := slices.DeleteFunc(slices.Clone(all), func(s Slice) bool { return s.Namespace != svc.Namespace || s.Service != svc.Name })
	slices.SortFunc(own, func(a, b Slice) int { return cmp.Compare(a.Name, b.Name) })
	index := indexPorts(own)
	var list []VirtualAddress
	seen := map[key]bool{}
	for _, p := range svc.Ports {
		b := backends(&svc, gather(index[portName{p.Name, p.Protocol}], here), here)
		for _, v := range svc.addresses(p, b) {
			if !seen[v.key()] {
				seen[v.key()] = true
				list = append(list, v)
			}
		}
	}
	slices.SortFunc(list, compareAddresses)
	return list
}

// addresses returns the virtual addresses of one port. If an address occurs twice, the first one is used.
func (s *Service) addresses(p Port, b choice) []VirtualAddress {
	internal := VirtualAddress{
		Owner: s.Owner(), PortName: p.Name, Protocol: p.Protocol, Port: p.Number, Affinity: s.Affinity, Serving: b.serving, Known: b.known,
	}
	external := internal
	external.Verdict, external.Endpoints = Forward, b.cluster
	internal.Verdict, internal.Endpoints = Forward, b.cluster
	if s.InternalLocal {
		internal.Local, internal.Endpoints = true, b.local
	}
	if len(internal.Endpoints) == 0 {
		internal.Verdict = b.none(s)
	}
	if len(external.Endpoints) == 0 {
		external.Verdict = b.none(s)
	}
	var list []VirtualAddress
	add := func(v VirtualAddress, kind Kind, ips ...netip.Addr) {
		for _, ip := range ips {
			v.Kind, v.IP = kind, ip
			list = append(list, v)
		}
	}
	if s.ClusterIP.IsValid() {
		add(internal, KindClusterIP, s.ClusterIP)
	}
	add(external, KindExternalIP, s.ExternalIPs...)
	balanced := external
	if balanced.Verdict == Forward || balanced.Verdict == Wake { // source ranges do not matter if no endpoint can serve
		balanced.SourceRanges = s.SourceRanges
	}
	add(balanced, KindLoadBalancer, s.LoadBalancerIPs...)
	if p.NodePort != 0 {
		external.Port, external.OnlyThisNode = p.NodePort, s.ExternalLocal
		add(external, KindNodePort, netip.Addr{})
	}
	return list
}

// choice is the usable endpoints of a port.
type choice struct {
	// cluster are the endpoints for the traffic policy Cluster, local those for Local.
	cluster, local []Endpoint
	// serving are all endpoints that serve; known are all endpoints.
	serving, known []netip.AddrPort
	// any says that there is a usable endpoint on some node.
	any bool
}

// none returns the verdict if no endpoint can be used.
func (c *choice) none(s *Service) Verdict {
	switch {
	case c.any:
		return Drop
	case s.Idled:
		return Wake
	case s.Waking:
		return Drop
	default:
		return Reject
	}
}

// hinted is an endpoint with its topology hints.
type hinted struct {
	Endpoint
	zones, nodes []string
}

// portName matches a Service's port with ports of slices.
type portName struct {
	name     string
	protocol transport.Protocol
}

// slicePort is a port of a slice, with the slice's endpoints.
type slicePort struct {
	number    uint16
	endpoints []SliceEndpoint
}

// indexPorts indexes the ports of slices by name, because objects may have thousands of them.
func indexPorts(own []Slice) map[portName][]slicePort {
	index := map[portName][]slicePort{}
	for _, s := range own {
		for _, p := range s.Ports {
			name := portName{p.Name, p.Protocol}
			index[name] = append(index[name], slicePort{p.Number, s.Endpoints})
		}
	}
	return index
}

// gather returns a port's endpoints from all slices, sorted, without duplicates. If slices differ about an endpoint, the entry with the
// higher standing is used: while an endpoint moves between slices, the older entry may be outdated.
func gather(ports []slicePort, here Place) []hinted {
	found := map[netip.AddrPort]hinted{}
	for _, p := range ports {
		if p.number == 0 {
			continue
		}
		for i := range p.endpoints {
			e := &p.endpoints[i]
			h := e.at(p.number, here)
			if have, ok := found[h.Addr]; e.IP.IsValid() && (!ok || h.rank() > have.rank()) {
				found[h.Addr] = h
			}
		}
	}
	list := make([]hinted, 0, len(found))
	for _, h := range found {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b hinted) int { return a.Addr.Compare(b.Addr) })
	return list
}

// at returns the endpoint for a port.
func (e *SliceEndpoint) at(port uint16, here Place) hinted {
	return hinted{zones: e.Zones, nodes: e.Nodes, Endpoint: Endpoint{
		Addr: netip.AddrPortFrom(e.IP, port), Node: e.Node, Local: here.Node != "" && e.Node == here.Node,
		Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating,
	}}
}

// rank orders the entries of several slices for one endpoint.
func (h *hinted) rank() int {
	const local, ready, serving, terminating = 8, 4, 2, 1
	n := 0
	for _, x := range []struct {
		has    bool
		weight int
	}{{h.Local, local}, {h.Ready, ready}, {h.Serving, serving}, {h.Terminating, terminating}} {
		if x.has {
			n += x.weight
		}
	}
	return n
}

func backends(s *Service, endpoints []hinted, here Place) choice {
	ready := func(h *hinted) bool { return h.Ready }
	leaving := func(h *hinted) bool { return h.Serving && h.Terminating }
	local := func(of func(*hinted) bool) func(*hinted) bool {
		return func(h *hinted) bool { return h.Local && of(h) }
	}
	meant := hints(endpoints, here)
	c := choice{
		cluster: first(endpoints, func(h *hinted) bool { return h.Ready && meant(h) }, leaving),
		any:     len(first(endpoints, ready, leaving)) > 0,
	}
	if s.InternalLocal {
		c.local = first(endpoints, local(ready), local(leaving))
	}
	for i := range endpoints {
		h := &endpoints[i]
		c.known = append(c.known, h.Addr)
		if h.Ready || h.Serving {
			c.serving = append(c.serving, h.Addr)
		}
	}
	return c
}

// first returns the endpoints that meet the first condition that any endpoint meets.
func first(endpoints []hinted, conditions ...func(*hinted) bool) []Endpoint {
	for _, holds := range conditions {
		var list []Endpoint
		for i := range endpoints {
			if holds(&endpoints[i]) {
				list = append(list, endpoints[i].Endpoint)
			}
		}
		if len(list) > 0 {
			return list
		}
	}
	return nil
}

// hints returns a function that reports whether this node should use a ready endpoint. If all ready endpoints have node hints and one names
// this node, the node hints decide. Otherwise zone hints are evaluated in the same way. Otherwise all endpoints are used.
func hints(endpoints []hinted, here Place) func(*hinted) bool {
	nodes := func(h *hinted) []string { return h.nodes }
	zones := func(h *hinted) []string { return h.zones }
	for _, by := range []struct {
		of    func(*hinted) []string
		place string
	}{{nodes, here.Node}, {zones, here.Zone}} {
		all, some := true, false
		for i := range endpoints {
			if h := &endpoints[i]; h.Ready {
				all = all && len(by.of(h)) > 0
				some = some || slices.Contains(by.of(h), by.place)
			}
		}
		if all && some {
			return func(h *hinted) bool { return slices.Contains(by.of(h), by.place) }
		}
	}
	return func(*hinted) bool { return true }
}
