package neutron

import (
	"context"
	"errors"
	"slices"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/sending"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Compare runs rounds of both sides, and computes the rows' results.
type Compare func(ctx context.Context, rows []measure.Row, ours, peer measure.Side) ([]measure.Result, error)

// Group is the rows whose figures come from the same rounds.
type Group struct {
	// Title describes the rounds.
	Title string
	Rows  []measure.Row
	// Before prepares the rounds of some of the rows before the tenant exists. Nil: nothing has to be prepared.
	Before func(ctx context.Context, s *Scene, rows []measure.Row) error
	// Run runs the rounds for some of the rows.
	Run func(ctx context.Context, s *Scene, rows []measure.Row, compare Compare) ([]measure.Result, error)
}

// serviceRow is the row of forwarding to a Service.
const serviceRow = "neutron/forwarding/service"

// Rows of memory: the agent's and the controller's.
const (
	agentRow      = "neutron/memory/agent"
	controllerRow = "neutron/memory/controller"
)

// Limits of resident sizes, in MB: the agent's is what it may have more than with the overlay alone.
const (
	agentMore        = 8
	controllerMemory = 60
	providerMemory   = 40
	megabyte         = 1e6
)

// Groups returns the groups in the order of measurement.
func Groups() []Group {
	ms := func(name, metric string, target measure.Target) []measure.Row {
		return []measure.Row{{Name: name, Metric: metric, Unit: "ms", Target: target}}
	}
	return []Group{
		{
			Title: "Neutron: ADD and DEL with ports that exist, on a node with ten pods of each network, against the overlay",
			Rows: []measure.Row{
				{Name: "neutron/add", Metric: Add, Unit: "ms, p50", Target: measure.RatioAtMost(1.2).Goal(1)},
				{Name: "neutron/del", Metric: Delete, Unit: "ms, p50", Target: measure.RatioAtMost(1.1)},
			},
			Run: compareAdds,
		},
		{
			Title: "Neutron: a pod without a port that exists, against create, plug and ACTIVE by bare calls",
			Rows:  ms("neutron/add-cold", Cold, measure.RatioAtMost(1.15)),
			Run: func(ctx context.Context, s *Scene, rows []measure.Row, compare Compare) ([]measure.Result, error) {
				return compare(ctx, rows, s.AddCold, bare{s}.addCold)
			},
		},
		burstGroup("neutron/burst", "Neutron: 40 pods on two nodes with pods and free ports, against 40 single creations of ports, 8 at a time",
			true, measure.RatioAtMost(0.8).Goal(0.6)),
		burstGroup("neutron/burst/cold", "Neutron: the same on two nodes without a port that exists", false, measure.Target{}),
		{
			Title: "Neutron: processor time of the switch a packet, against veth pairs on br-int, and to a Service, against the overlay",
			Rows: []measure.Row{
				{Name: "neutron/forwarding", Metric: sending.PacketCPU, Unit: "us of CPU a packet", Target: measure.RatioAtMost(1.05)},
				{Name: serviceRow, Metric: sending.PacketCPU, Unit: "us of CPU a packet", Target: measure.RatioAtMost(1.1)},
			},
			Run: forward,
		},
		{
			Title: "Neutron: a load balancer with two ports and four endpoints until the first answer, against the bare calls",
			Rows:  ms("neutron/loadbalancer", Balanced, measure.RatioAtMost(1.2)),
			Run: func(ctx context.Context, s *Scene, rows []measure.Row, compare Compare) ([]measure.Result, error) {
				b, err := s.Balancers(ctx)
				if err != nil {
					return nil, err
				}
				return compare(ctx, rows, b.ByService, b.ByHand)
			},
		},
		{
			Title: "Neutron: a restart of agent and controller with 100 ports on the node, 20 of them with pods, a Service and a load balancer",
			Rows: []measure.Row{
				{Name: "neutron/restart/openstack-writes", Metric: Writes, Unit: "requests", Target: measure.AtMost(0), Alone: true},
				{Name: "neutron/restart/rows", Metric: Rows, Unit: "changed rows", Target: measure.AtMost(0), Alone: true},
				{Name: "neutron/restart/flow-mods", Metric: Mods, Unit: "changed flows and groups", Target: measure.AtMost(0), Alone: true},
				{Name: agentRow, Metric: AgentMore, Unit: "MB more than with as many pods of the overlay", Target: measure.AtMost(agentMore), Alone: true},
				{Name: controllerRow, Metric: ControllerSize, Unit: "MB, with 500 ports", Target: measure.AtMost(controllerMemory), Alone: true},
			},
			Before: func(ctx context.Context, s *Scene, rows []measure.Row) error {
				if !slices.ContainsFunc(rows, ofAgent) {
					return nil
				}
				return s.overlayMemory(ctx)
			},
			Run: restart,
		},
		{
			Title: "provider: CreateNetwork, against the bare calls",
			Rows: []measure.Row{
				{Name: "provider/rpc", Metric: RPC, Unit: "ms", Target: measure.RatioAtMost(1.15)},
				{Name: "provider/memory", Metric: ProviderSize, Unit: "MB", Target: measure.AtMost(providerMemory), Alone: true},
			},
			Run: func(ctx context.Context, s *Scene, rows []measure.Row, compare Compare) (results []measure.Result, err error) {
				p, err := s.Provider(ctx)
				defer func() { err = errors.Join(err, p.Close()) }()
				if err != nil {
					return nil, err
				}
				return compare(ctx, rows, p.Create, p.CreateByHand)
			},
		},
	}
}

func ofAgent(r measure.Row) bool { return r.Name == agentRow }

func ofController(r measure.Row) bool { return r.Name == controllerRow }

// restart measures restarts while pods are on some of the ports, then the agent's memory with a pod on each, and then the controller's with
// more ports.
func restart(ctx context.Context, s *Scene, rows []measure.Row, compare Compare) (results []measure.Result, err error) {
	r := &restarts{Scene: s}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	ofMemory := func(row measure.Row) bool { return ofAgent(row) || ofController(row) }
	for _, part := range []struct {
		rows    []measure.Row
		prepare func(context.Context) error
		side    measure.Side
	}{
		{slices.DeleteFunc(slices.Clone(rows), ofMemory), nil, r.restart},
		{slices.DeleteFunc(slices.Clone(rows), func(row measure.Row) bool { return !ofAgent(row) }), r.attachStanding, r.agentMemory},
		{slices.DeleteFunc(slices.Clone(rows), func(row measure.Row) bool { return !ofController(row) }), r.addPorts, r.controllerMemory},
	} {
		if len(part.rows) == 0 {
			continue
		}
		if part.prepare != nil {
			if err := part.prepare(ctx); err != nil {
				return results, err
			}
		}
		more, err := compare(ctx, part.rows, part.side, nil)
		if results = append(results, more...); err != nil {
			return results, err
		}
	}
	return results, nil
}

// forward compares the switch's cost of a packet between pods with that between interfaces on br-int, and that to a Service with the overlay's.
func forward(ctx context.Context, s *Scene, rows []measure.Row, compare Compare) (results []measure.Result, err error) {
	l, err := s.Forwarding(ctx)
	if err != nil {
		return nil, err
	}
	meter, err := stage.ProgramMeter(ctx, s.Cluster, s.Node(1).Name+"/ovs-vswitchd")
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		ours, peer := l.Pods, l.Bare
		if row.Name == serviceRow {
			ours, peer = l.Service, l.Overlay
		}
		for _, path := range []*sending.Path{ours, peer} {
			path.Meter = meter
			if _, err := probe.Await(ctx, limit, "an answer of "+path.To.String(), func(ctx context.Context) error {
				_, err := traffic.Ping(ctx, path.From, path.To)
				return err
			}); err != nil {
				return results, err
			}
		}
		err := sending.Compare(ctx, ours, peer, func(ours, peer measure.Side) error {
			more, err := compare(ctx, []measure.Row{row}, ours, peer)
			if err == nil {
				results = append(results, more...)
			}
			return err
		})
		if err != nil {
			return results, err
		}
	}
	return results, nil
}
