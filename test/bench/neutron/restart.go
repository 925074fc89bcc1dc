package neutron

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/controller"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/probe"
)

// Metrics of a restart of agent and controller.
const (
	// Writes is the number of writing requests to Keystone, Neutron and Octavia.
	Writes = "openstack-writes"
	// Rows is the number of changes of the rows of bridges, ports and interfaces in the switch's database.
	Rows = "changed-rows"
	// Mods is the number of changes of flows and groups of br-n.
	Mods = "flow-mods"
)

const (
	// standingPorts is the number of ports of a node whose agent restarts.
	standingPorts = 100
	// attachedPods is the number of pods on these ports, and farPods that of pods on the other node.
	attachedPods, farPods = 20, 4
	// balanced is the name of the tenant's load balancer.
	balanced = "standing-lb"
)

// restarts are those of the first node's agent and of the controller while the node has many ports, some of them with pods, and the tenant has
// a Service and a load balancer.
type restarts struct {
	*Scene

	// specs and uids are those of the pods that the ports are for.
	specs []lab.PodSpec
	uids  []string
}

// prepare makes the ports, pods and Services.
func (s *restarts) prepare(ctx context.Context) error {
	node := s.Node(1)
	for i := range standingPorts {
		spec := lab.PodSpec{Namespace: Tenant, Name: fmt.Sprintf("standing-%d", i), Node: node.Name}
		uid, err := s.object(ctx, spec)
		if err != nil {
			return err
		}
		s.specs, s.uids = append(s.specs, spec), append(s.uids, uid)
	}
	if err := s.awaitPorts(ctx, node.Name, standingPorts); err != nil {
		return err
	}
	pods, err := s.crowd(ctx, s.specs[:attachedPods], s.uids[:attachedPods])
	if err != nil {
		return err
	}
	for i := range farPods {
		spec := lab.PodSpec{Namespace: Tenant, Name: fmt.Sprintf("far-%d", i), Node: s.Node(2).Name}
		pod, err := s.pod(ctx, spec)
		if err != nil {
			return err
		}
		pods = append(pods, pod)
	}
	for name, kind := range map[string]corev1.ServiceType{"standing": corev1.ServiceTypeClusterIP, balanced: corev1.ServiceTypeLoadBalancer} {
		want := service4{namespace: Tenant, name: name, kind: kind, protocol: corev1.ProtocolTCP, ports: balancerPorts(), pods: pods}
		if _, err := s.service(ctx, want); err != nil {
			return err
		}
	}
	if _, err := balancerAddress(ctx, s.objects, balanced); err != nil {
		return err
	}
	if err := s.awaitGroups(ctx); err != nil {
		return err
	}
	if err := prove(ctx, s.Node(1), pipeline.Bridge); err != nil {
		return err
	}
	return s.steady(ctx)
}

var errNoGroup = errors.New("br-n has no group of a Service")

// awaitGroups waits until the first node's br-n has the groups of the Services.
func (s *restarts) awaitGroups(ctx context.Context) error {
	_, err := probe.Await(ctx, limit, "the Services on br-n", func(ctx context.Context) error {
		groups, err := probe.Groups(ctx, s.Node(1), pipeline.Bridge)
		if err == nil && groups < 2*len(balancerPorts()) {
			err = fmt.Errorf("%w: %d", errNoGroup, groups)
		}
		return err
	})
	return err //nolint:wrapcheck // it says what was waited for
}

func (s *restarts) restart(ctx context.Context) (figures measure.Figures, err error) {
	node := s.Node(1)
	flows, err := probe.WatchBridge(ctx, node, pipeline.Bridge)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the node
	}
	defer func() { err = errors.Join(err, flows.Close()) }()
	rows, err := watchRows(ctx, node)
	if err != nil {
		return nil, err
	}
	defer rows.close()
	before, err := s.requests()
	if err != nil {
		return nil, err
	}
	if err := probe.Kill(ctx, s.Cluster, node.Name+"/weft-agent", syscall.SIGKILL); err != nil {
		return nil, err //nolint:wrapcheck // it names the program
	}
	if err := s.restartController(ctx); err != nil {
		return nil, err
	}
	if _, err := probe.Await(ctx, limit, "the agent is ready", func(ctx context.Context) error { return probe.Ready(ctx, node) }); err != nil {
		return nil, err //nolint:wrapcheck // it says what was waited for
	}
	if err := s.steady(ctx); err != nil {
		return nil, err
	}
	after, err := s.requests()
	if err != nil {
		return nil, err
	}
	writes, err := after.since(before)
	if err != nil {
		return nil, err
	}
	mods, err := flows.Count(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the monitor
	}
	changed, err := rows.count(ctx)
	if err != nil {
		return nil, err
	}
	return measure.Figures{Writes: float64(writes), Rows: float64(changed), Mods: float64(mods)}, nil
}

// controllerProgram is the controller's name in the lab, and controllerNamespace the namespace of its lease.
const (
	controllerProgram   = "weft-controller"
	controllerNamespace = metav1.NamespaceSystem
)

// restartController kills the controller. The next one would wait for 15 s until the lease of the killed one has expired: it is deleted.
func (s *restarts) restartController(ctx context.Context) error {
	if err := probe.Kill(ctx, s.Cluster, controllerProgram, syscall.SIGKILL); err != nil {
		return err //nolint:wrapcheck // it names the program
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: controllerNamespace, Name: controller.DefaultLeaseName}}
	if err := s.objects.Delete(ctx, lease); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the controller's lease: %w", err)
	}
	return nil
}
