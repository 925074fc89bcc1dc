package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/buckets"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// MaxEndpoints is the maximum of endpoints that a node uses for one port of a Service: a group must fit one OpenFlow message of 64 KiB. If
// there are more, each node uses another part, by a hash of the node's address and the endpoint's.
const MaxEndpoints = 800

// MaxServiceEntries is the maximum of flows and buckets on a node for one Service. The ports and addresses in an object of a megabyte could
// make millions, and each costs the switch about a kilobyte. What exceeds the maximum is left to the host.
const MaxServiceEntries = 10_000

// maxAffinity is the longest idle time of a flow: OpenFlow counts seconds in 16 bits (a little over 18 hours).
const maxAffinity = 65535 * time.Second

// ServiceRules are the flows and groups of one Service.
type ServiceRules struct {
	Rules  []openflow.Rule
	Groups []*openflow.Group
	// Warnings say which parts of the Service are not in effect, or not as the object specifies.
	Warnings []error
}

// Fragment returns flows and groups together.
func (r ServiceRules) Fragment() map[openflow.Key]openflow.Entry {
	fragment := openflow.Fragment(r.Rules)
	for _, g := range r.Groups {
		fragment[g.Key()] = g
	}
	return fragment
}

// Services compiles the flows of Services.
type Services struct{ *Config }

// Check returns an error that says why a virtual address gets no flows. Packets to it are then handled like any other packet.
func (c Services) Check(v *service.VirtualAddress) error {
	where := fmt.Sprintf("%s: %s port %d of %s", v.Owner, v.Protocol, v.Port, v.IP)
	switch {
	case !c.Conntrack:
		return fmt.Errorf("%s: Services in the switch need connection tracking", where)
	case v.Protocol == transport.SCTP && !c.SCTP:
		return fmt.Errorf("%s: the datapath does not track SCTP", where)
	case !c.KeepApart && c.endless(v):
		return fmt.Errorf("%s: an endpoint is the address itself, which the userspace datapath cannot translate", where)
	case v.Kind == service.KindNodePort:
		return nil
	case !v.IP.Is4():
		return fmt.Errorf("%s: no IPv4 address", where)
	case c.inCluster(host(v.IP)):
		return fmt.Errorf("%s: the address is a pod's or a gateway's: a Service must not take their traffic", where)
	case v.Kind != service.KindClusterIP && c.ServiceNetwork.Contains(v.IP):
		return fmt.Errorf("%s: the address is in the Services' network %s, where the API server gives addresses, and no object takes one", where, c.ServiceNetwork)
	}
	return nil
}

// endless reports whether an endpoint of the address is, or may be, the address itself. A packet would be translated to its own
// destination, which only conntrack with KeepApart supports.
func (c Services) endless(v *service.VirtualAddress) bool {
	return slices.ContainsFunc(v.Endpoints, func(e service.Endpoint) bool {
		ip := e.Addr.Addr()
		return e.Addr.Port() == v.Port && (ip == v.IP || v.Kind == service.KindNodePort && !c.inCluster(host(ip)))
	})
}

// Flows returns the flows and groups of one Service. list are its addresses from service.Compile, all with the same owner.
//
// A virtual address is one flow in table 25, for new connections only. It hands the packet to the group of the port, whose buckets each
// translate to an endpoint. All further packets, in both directions, are translated when their connection is looked up. So a change of
// endpoints changes only the group. With affinity, the flow first looks up what the switch has learned about the client, and each endpoint
// has a flow of its own in table 26, which learns. When the endpoint is removed, this flow is removed, and with it the learned flows.
//
// Groups of valid addresses come with their flows; an invalid address (Check) has none.
func (c Services) Flows(list []service.VirtualAddress, ids *groupid.IDs) map[openflow.Key]openflow.Entry {
	return c.Rules(list, ids).Fragment()
}

// Rules is Flows with the purpose of each flow.
func (c Services) Rules(list []service.VirtualAddress, ids *groupid.IDs) ServiceRules {
	b := serviceProgram{ids: ids, backends: map[string]*backend{}}
	for i := range list {
		v := &list[i]
		if c.Check(v) != nil {
			continue
		}
		if b.program == nil {
			b.program = c.program(v.Owner)
		}
		if b.entries += b.cost(v); b.entries > MaxServiceEntries {
			b.warnings = append(b.warnings, fmt.Errorf("%s: %s port %d of %s and what follows: a node takes %d flows and buckets for one Service; what is beyond is left to the host",
				v.Owner, v.Protocol, v.Port, v.IP, MaxServiceEntries))
			b.List = append(b.List, c.HostRules(v.Owner, clusterIPs(list[i:]), list[:i])...)
			break
		}
		b.address(v)
	}
	if b.program == nil {
		return ServiceRules{}
	}
	return ServiceRules{Rules: b.List, Groups: b.groups, Warnings: b.warnings}
}

// clusterIPs returns the cluster IPs of a list of addresses.
func clusterIPs(list []service.VirtualAddress) []netip.Addr {
	var ips []netip.Addr
	for i := range list {
		if list[i].Kind == service.KindClusterIP {
			ips = append(ips, list[i].IP)
		}
	}
	return ips
}

// HostRules returns the flows that leave a Service's addresses in the Services' network to the host, which serves the ports that the switch
// does not serve. served are its addresses that the switch serves. Without connection tracking there are none: the host serves all Services.
// Without policies, packets to an address of which the switch serves no port are not tracked: conntrack would not see the host's replies, and
// would find a TCP connection invalid.
func (c Services) HostRules(owner reconcile.Owner, addresses []netip.Addr, served []service.VirtualAddress) []openflow.Rule {
	if !c.Conntrack {
		return nil
	}
	p := c.program(owner)
	trusted, whose := c.trusted()
	addresses = slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare)
	for _, addr := range slices.Compact(addresses) {
		if !c.ServiceNetwork.Contains(addr) {
			continue
		}
		p.handOver(priorityTrusted, "to a Service that the host serves"+whose, append(slices.Clip(trusted), oxm.IPDst(host(addr))), c.toHost()...)
		if !c.policies() && !slices.Contains(clusterIPs(served), addr) {
			p.Add(layout.TableState, priorityHosts, "to a Service that the host serves, which has conntrack of its own", untracked(oxm.IPDst(host(addr))), action.GotoTable(layout.TableEgressPolicy))
		}
	}
	return p.List
}

// serviceProgram collects the rules and groups of one Service.
type serviceProgram struct {
	*program
	ids      *groupid.IDs
	backends map[string]*backend
	groups   []*openflow.Group
	warnings []error
	entries  int
}

// cost returns how many flows and buckets an address adds.
func (b *serviceProgram) cost(v *service.VirtualAddress) int {
	n := 2 + len(v.SourceRanges)
	if v.Verdict != service.Forward || b.backends[GroupName(v)] != nil {
		return n
	}
	endpoints := min(len(v.Endpoints), MaxEndpoints)
	if v.Affinity > 0 {
		n += endpoints + 1
	}
	return n + endpoints
}

// limits adds warnings about what a port gets only in part.
func (b *serviceProgram) limits(v *service.VirtualAddress) {
	if v.Affinity > maxAffinity {
		b.warnings = append(b.warnings, fmt.Errorf("%s: sessionAffinityConfig.clientIP.timeoutSeconds: a client's endpoint is kept for %d seconds and not %d: the switch counts no further",
			v.Owner, int(maxAffinity.Seconds()), int(v.Affinity.Seconds())))
	}
	if len(v.Endpoints) > MaxEndpoints {
		b.warnings = append(b.warnings, fmt.Errorf("%s: %s port %d: each node uses %d of the %d endpoints, another part than other nodes",
			v.Owner, v.Protocol, v.Port, MaxEndpoints, len(v.Endpoints)))
	}
}

// backend is the group of one port.
type backend struct {
	name  string
	group uint32
}

// GroupName returns the name of a virtual address's group. Addresses with the same endpoints share it.
func GroupName(v *service.VirtualAddress) string {
	name := string(v.Owner) + "/" + v.Protocol.String() + "/" + v.PortName
	if v.Local {
		name += "/local"
	}
	return name
}

// Priorities in table 25. Named addresses come before ports at all nodes' addresses.
const (
	priorityNodePort   = 50
	priorityVIP        = 100
	priorityVIPSources = 110 // clients in the source ranges, above the flow that drops the others
)

func (b *serviceProgram) address(v *service.VirtualAddress) {
	on, priority := b.match(v)
	if v.Kind == service.KindNodePort || !b.config.ServiceNetwork.Contains(v.IP) { // packets to addresses in it are tracked in any case
		_, to := ports(v.Protocol, v.Port)
		b.Add(layout.TableService, priority, v.Protocol.String()+" port "+strconv.Itoa(int(v.Port))+": find the connection", untracked(to, where(v)), b.config.track())
	}
	switch v.Verdict {
	case service.Drop:
		b.drop(layout.TableService, priority, "no endpoint on this node and the policy is Local, or the pods of an idled Service are awaited", on)
		return
	case service.Reject:
		b.reject(v, on, priority)
		return
	default:
	}
	purpose := v.Protocol.String() + " port " + strconv.Itoa(int(v.Port)) + ": "
	var actions []action.Action
	if v.Verdict == service.Wake {
		purpose, actions = purpose+"the Service is idled: a new connection is reported to the agent", wake(v, priority)
	} else {
		purpose, actions = purpose+"a new connection picks an endpoint", b.choose(v)
	}
	if len(v.SourceRanges) == 0 {
		b.Add(layout.TableService, priority, purpose, on, actions...)
		return
	}
	for _, from := range v.SourceRanges {
		b.Add(layout.TableService, priorityVIPSources, purpose, append(slices.Clip(on), oxm.IPSrc(from)), actions...)
	}
	b.drop(layout.TableService, priority, "a client that is in none of the source ranges", on)
}

// wakeRest is how long the switch drops packets to an address of an idled Service after it has reported one. Linux repeats the first packet
// of a TCP connection after 1, 3, 7 and 15 seconds (tcp_syn_retries in tcp(7)). So if a report is lost, the same client causes another.
const wakeRest = 10 * time.Second

// wakeBytes is how much of a packet is reported: its headers. The flow's cookie identifies the Service.
const wakeBytes = 64

// wake reports a new connection to an idled Service, and drops the packet: the client repeats it until an endpoint answers. The switch
// learns to drop what follows, so that it reports an address once in wakeRest, no matter how many packets arrive. The learned flow is
// removed with the flow that learned it, when the Service gets an endpoint.
func wake(v *service.VirtualAddress, priority uint16) []action.Action {
	const above = 20 // above priorityVIPSources as well
	state := func(bit uint16, value uint64) action.LearnField {
		return action.LearnMatchValue(oxm.Bits(oxm.FieldCTState, bit, bit), value)
	}
	_, to := ports(v.Protocol, v.Port)
	port, address := oxm.Whole(to.Field()), oxm.Whole(oxm.FieldIPv4Dst)
	return []action.Action{
		action.Learn(action.LearnSpec{
			Table: layout.TableService, Priority: priority + above, DeleteLearned: true,
			Cookie: cookies.Of("affinity/" + v.Owner + "/idled"), HardTimeout: uint16(wakeRest.Seconds()),
			Fields: []action.LearnField{
				action.LearnMatchValue(oxm.Whole(oxm.FieldEthType), uint64(oxm.EthTypeIPv4)),
				action.LearnMatchValue(oxm.Whole(oxm.FieldIPProto), uint64(v.Protocol)),
				action.LearnMatch(address, address), action.LearnMatch(port, port),
				state(ctNew, 1), state(ctTracked, 1), state(ctDNAT, 0),
			},
		}),
		action.Controller(action.ControllerAction{Reason: action.ReasonAction, MaxLen: wakeBytes}),
	}
}

// Bits of ct_state (ovs-fields(7)).
const (
	ctNew     = 0
	ctTracked = 5
	ctDNAT    = 7
)

// reject sends a new connection to the host to be rejected: the switch cannot create packets. At a node port, the node with the address
// answers, which is not tracked without policies: then the connection is not committed either (handOver).
func (b *serviceProgram) reject(v *service.VirtualAddress, on conditions, priority uint16) {
	switch {
	case v.Kind != service.KindNodePort:
		b.Add(layout.TableService, priority, "no endpoints: the host rejects", on,
			action.SetField(oxm.EthSrc(RejectMAC())), action.GotoTable(layout.TableHost))
	case !b.config.policies():
		b.Add(layout.TableService, priority, "no endpoints: the node with the address answers", on, action.CTClear(), action.GotoTable(layout.TableEgressPolicy))
	}
}

// match returns the conditions for a new connection to the address, and the priority. A connection whose destination was translated is not
// new to Services: the address of an endpoint may itself be a Service's.
func (b *serviceProgram) match(v *service.VirtualAddress) (conditions, uint16) {
	_, to := ports(v.Protocol, v.Port)
	on := append(freshConnection(), to)
	if v.Kind == service.KindNodePort {
		return append(on, where(v)), priorityNodePort
	}
	return append(on, where(v)), priorityVIP
}

func freshConnection() conditions {
	return match(oxm.EthType(oxm.EthTypeIPv4), oxm.CTState(oxm.CTTrk|oxm.CTNew, oxm.CTRel|oxm.CTDNAT))
}

// where matches the virtual address or, for a node port, a destination marked as a node's.
func where(v *service.VirtualAddress) oxm.MatchField {
	switch {
	case v.Kind != service.KindNodePort:
		return oxm.IPDst(host(v.IP))
	case v.OnlyThisNode:
		return oxm.RegMasked(layout.RegFlags, layout.FlagThisNode, layout.FlagThisNode)
	default:
		return oxm.RegMasked(layout.RegFlags, layout.FlagNode, layout.FlagNode)
	}
}

// choose returns the actions that pick an endpoint, and creates the group that they use.
func (b *serviceProgram) choose(v *service.VirtualAddress) []action.Action {
	name := GroupName(v)
	k := b.backends[name]
	if k == nil {
		k = &backend{name: name, group: b.ids.ID(name)}
		b.backends[name] = k
		b.limits(v)
		endpoints := buckets.Share(b.config.NodeIP, v.Endpoints, MaxEndpoints)
		if v.Affinity > 0 {
			b.affinity(k, v, endpoints)
		} else {
			b.groups = append(b.groups, Services{b.config}.balance(k, v.Protocol, endpoints))
		}
	}
	if v.Affinity == 0 {
		return []action.Action{action.GroupAction(k.group)}
	}
	return []action.Action{
		action.SetField(oxm.Reg(layout.RegService, k.group)),
		action.Resubmit(openflow.PortInPort, layout.TableAffinity),
		action.GotoTable(layout.TableEndpoint),
	}
}

// translate commits the connection with an endpoint as its destination, and continues with that destination.
func (c Services) translate(to netip.AddrPort) action.Action {
	next := layout.TableEgressPolicy
	return action.CT(action.CTAction{Commit: true, Zone: c.zone(), Table: &next, NAT: action.DNAT(to.Addr(), to.Port())})
}

// balance returns the group of a port without affinity. The switch picks a bucket by a hash that it has anyway (dp_hash), so that a new
// connection needs no upcall to the slow path. The method is named because the switch's default leaves UDP ports out of the hash: all of a
// client's connections would go to one endpoint. For more endpoints than that hash has values, each connection needs an upcall.
func (c Services) balance(k *backend, protocol transport.Protocol, endpoints []service.Endpoint) *openflow.Group {
	group := &openflow.Group{ID: k.group, Type: openflow.GroupSelect, Selection: &openflow.Selection{Method: "dp_hash"}}
	if len(endpoints) > buckets.HashValues {
		group.Selection = &openflow.Selection{Method: "hash", Fields: []oxm.Field{oxm.FieldIPv4Src, sourcePort(protocol)}}
	}
	if len(endpoints) == 1 { // nothing to choose, no hash to compute
		group.Type, group.Selection = openflow.GroupIndirect, nil
		group.Buckets = []openflow.Bucket{{Actions: action.Actions{c.translate(endpoints[0].Addr)}}}
		return group
	}
	weight, ids := buckets.Weight(len(endpoints)), buckets.IDs(endpoints)
	for i, e := range endpoints {
		bucket := openflow.Bucket{ID: ids[i], Weight: weight, Actions: action.Actions{c.translate(e.Addr)}}
		if i == 0 && weight > 1 {
			// The least weight decides how finely the switch divides the hash values: one share gets a bucket of its own.
			bucket.Weight--
			group.Buckets = append(group.Buckets, openflow.Bucket{ID: buckets.Fine, Weight: 1, Actions: bucket.Actions})
		}
		group.Buckets = append(group.Buckets, bucket)
	}
	return group
}

func sourcePort(p transport.Protocol) oxm.Field {
	switch p {
	case transport.TCP:
		return oxm.FieldTCPSrc
	case transport.UDP:
		return oxm.FieldUDPSrc
	default:
		return oxm.FieldSCTPSrc
	}
}

// affinity adds the flows and the group of a port with affinity. A client without an endpoint, or whose endpoint is gone, gets one by a
// hash of its address. So simultaneous connections, before the switch has learned, go to the same endpoint.
func (b *serviceProgram) affinity(k *backend, v *service.VirtualAddress, endpoints []service.Endpoint) {
	const known, unknown = 100, 50
	group := &openflow.Group{
		ID: k.group, Type: openflow.GroupSelect,
		Selection: &openflow.Selection{Method: "hash", Fields: []oxm.Field{oxm.FieldIPv4Src}},
	}
	ipv4, of := oxm.EthType(oxm.EthTypeIPv4), oxm.Reg(layout.RegService, k.group)
	b.Add(layout.TableEndpoint, unknown, "no endpoint yet, or the endpoint was removed: pick one", match(ipv4, of), action.GroupAction(k.group))
	ids := buckets.IDs(endpoints)
	for i, e := range endpoints {
		addr, port := binary.BigEndian.Uint32(e.Addr.Addr().AsSlice()), uint32(e.Addr.Port())
		group.Buckets = append(group.Buckets, openflow.Bucket{ID: ids[i], Weight: 1, Actions: action.Actions{
			action.SetField(oxm.Reg(layout.RegEndpoint, addr)), action.SetField(oxm.Reg(layout.RegEndpointPort, port)),
			action.Resubmit(openflow.PortInPort, layout.TableEndpoint),
		}})
		b.Add(layout.TableEndpoint, known, "the client's endpoint is "+e.Addr.String()+", and stays it",
			match(ipv4, of, oxm.Reg(layout.RegEndpoint, addr), oxm.Reg(layout.RegEndpointPort, port), oxm.IPProto(uint8(v.Protocol))),
			b.learn(k, v.Affinity, e.Addr), Services{b.config}.translate(e.Addr))
	}
	b.groups = append(b.groups, group)
}

// learn makes the switch remember a client's endpoint. What it learns has the endpoint's cookie, and is removed with the flow that learned
// it. Each new connection of the client restarts the timeout, as in kube-proxy.
func (b *serviceProgram) learn(k *backend, timeout time.Duration, endpoint netip.AddrPort) action.Action {
	const priority = 100
	reg := func(n int) oxm.Subfield { return oxm.Whole(oxm.FieldReg(n)) }
	client := oxm.Whole(oxm.FieldIPv4Src)
	return action.Learn(action.LearnSpec{
		Table: layout.TableAffinity, Priority: priority, DeleteLearned: true,
		Cookie:      cookies.Of(reconcile.Owner("affinity/" + k.name + "/" + endpoint.String())),
		IdleTimeout: uint16(max(1, min(timeout, maxAffinity).Seconds())),
		Fields: []action.LearnField{
			action.LearnMatchValue(oxm.Whole(oxm.FieldEthType), uint64(oxm.EthTypeIPv4)),
			action.LearnMatch(reg(layout.RegService), reg(layout.RegService)), action.LearnMatch(client, client),
			action.LearnLoad(reg(layout.RegEndpoint), reg(layout.RegEndpoint)), action.LearnLoad(reg(layout.RegEndpointPort), reg(layout.RegEndpointPort)),
		},
	})
}
