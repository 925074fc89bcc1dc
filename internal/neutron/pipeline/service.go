package pipeline

import (
	"maps"
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/reconcile"
)

// Service is a virtual address and port of a Service in one network.
type Service struct {
	// Group is the number of its group of endpoints.
	Group uint32
	// Address and Port are its own; Port.Mask is not used.
	Address netip.Addr
	Port    Port
	// Sticky sends a client's connections to one endpoint as long as the endpoints do not change.
	Sticky bool
	// Endpoints are the possible destinations. None: connections are dropped.
	Endpoints []Endpoint
	// Leaving are endpoints that get no new connections, and may have some.
	Leaving []Endpoint
}

// mostEndpoints is how many endpoints of a Service get new connections: more do not fit into the OpenFlow message of its group (64 KiB), without
// which no Service of the network would be programmed.
const mostEndpoints = 512

// Endpoint is a destination of connections.
type Endpoint struct {
	Addr netip.AddrPort
	// MAC is the endpoint's, or that of the gateway to it.
	MAC net.HardwareAddr
}

// exact returns the port with all bits compared.
func (p Port) exact() Port { return Port{p.Protocol, p.Number, ^uint16(0)} }

// ServiceEntries returns the groups and the flows of the Services of a network, by its number.
func ServiceEntries(owner reconcile.Owner, network uint64, services []Service) map[openflow.Key]openflow.Entry {
	high, low := words(network)
	c := &services4{
		program: *newProgram(owner), network: match(oxm.Reg(RegNetwork, high), oxm.Reg(RegNetwork+1, low)),
		groups: map[openflow.Key]openflow.Entry{},
	}
	for i := range services {
		c.add4(&services[i])
	}
	fragment := openflow.Fragment(c.List)
	maps.Copy(fragment, c.groups)
	return fragment
}

// services4 collects the entries of one network.
type services4 struct {
	program
	network []oxm.MatchField
	groups  map[openflow.Key]openflow.Entry
}

func (c *services4) add4(s *Service) {
	to := slices.Concat(match(oxm.CTState(oxm.CTTrk|oxm.CTNew, 0), oxm.IPDst(single(s.Address))), c.network, s.Port.exact().match())
	for _, e := range slices.Concat(s.Endpoints, s.Leaving) {
		c.translated(&e)
	}
	if len(s.Endpoints) == 0 {
		c.Add(TableService, priorityPod, "to a Service without endpoints", to)
		return
	}
	zone, table := zoneField(), TableEgress
	group := &openflow.Group{ID: s.Group, Type: openflow.GroupSelect}
	if s.Sticky {
		group.Selection = &openflow.Selection{Method: "hash", Fields: []oxm.Field{oxm.FieldIPv4Src}}
	}
	for i, e := range s.Endpoints[:min(len(s.Endpoints), mostEndpoints)] {
		group.Buckets = append(group.Buckets, openflow.Bucket{ID: uint32(i), Weight: 1, Actions: action.Actions{ //nolint:gosec // small
			action.CT(action.CTAction{Commit: true, ZoneField: &zone, Table: &table, NAT: action.DNAT(e.Addr.Addr(), e.Addr.Port())}),
		}})
	}
	c.Add(TableService, priorityPod, "to a Service", to, action.GroupAction(s.Group))
	c.groups[group.Key()] = group
}

// translated addresses translated packets to an endpoint.
func (c *services4) translated(e *Endpoint) {
	c.Add(TableEndpoint, priorityPod, "translated, to its endpoint",
		slices.Concat(match(oxm.CTState(oxm.CTTrk|oxm.CTDNAT, 0), oxm.IPDst(single(e.Addr.Addr()))), c.network),
		action.SetField(oxm.EthDst(e.MAC)), action.GotoTable(TableOut))
	c.Add(TableEndpoint, priorityPod+1, "translated, to its endpoint; the connection is allowed again",
		slices.Concat(match(oxm.CTState(oxm.CTTrk|oxm.CTDNAT, oxm.CTRpl), refused(), oxm.IPDst(single(e.Addr.Addr()))), c.network),
		markRefused(0), action.SetField(oxm.EthDst(e.MAC)), action.GotoTable(TableOut))
}

// HostService is a virtual address and port that the host serves, for the pods of all networks.
type HostService struct {
	Address netip.Addr
	Port    Port
}

// HostServiceEntries returns the flows of the Services that the host serves.
func HostServiceEntries(owner reconcile.Owner, services []HostService) map[openflow.Key]openflow.Entry {
	p := newProgram(owner)
	for _, s := range services {
		p.Add(TableFromPod, priorityHost, "to a Service that the host serves",
			append(match(oxm.IPDst(single(s.Address))), s.Port.exact().match()...), action.GotoTable(TableHostService))
	}
	return openflow.Fragment(p.List)
}
