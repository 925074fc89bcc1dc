package neutron

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/test/probe"
)

// touches is how often steady changes what the controller keeps.
const touches = 2

var errChanging = errors.New("ports are being created, deleted or plugged")

// steady waits until the controller has nothing to do. It changes objects that the controller puts right at the end of a comparison with
// OpenStack, one for each kind of its work, and waits until they are right; and then once more: the controller compares an object once at a
// time, so that it has completed one comparison of each then, with all requests that follow from it. If ports are changed meanwhile, it begins
// anew.
func (s *restarts) steady(ctx context.Context) error {
	_, err := probe.Await(ctx, limit, "the controller has nothing to do", func(ctx context.Context) error {
		before, err := s.countPorts(ctx)
		if err != nil {
			return err
		}
		for range touches {
			if err := s.touch(ctx); err != nil {
				return err
			}
		}
		after, err := s.countPorts(ctx)
		if err == nil && after != before {
			err = fmt.Errorf("%w: they were %d, and are %d", errChanging, before, after)
		}
		return err
	})
	return err //nolint:wrapcheck // it says what was waited for
}

// countPorts returns the number of ports of the nodes with agents, or an error while one of them is not ACTIVE.
func (s *restarts) countPorts(ctx context.Context) (count int, err error) {
	for i := range nodes {
		all, err := s.ports(ctx, s.Node(1+i).Name)
		if err != nil {
			return 0, err
		}
		for k := range all {
			if p := &all[k]; p.DeletionTimestamp != nil || !p.Status.Plugged || !p.Spec.Active {
				return 0, fmt.Errorf("%w: %s", errChanging, p.Name)
			}
		}
		count += len(all)
	}
	return count, nil
}

// marked is a message that the controller does not write.
const marked = "changed by the benchmark"

// touch changes the statuses of Tenant, Network and load balancer, and the state of a free port of the second node, and waits until the
// controller has put them right. None of this is anything that OpenStack or the switch of the first node has.
func (s *restarts) touch(ctx context.Context) error {
	network := &stackubev1.Network{ObjectMeta: s.network.ObjectMeta}
	tenant := &stackubev1.Tenant{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: Tenant}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Tenant, Name: balanced}}
	port, err := s.freePort(ctx)
	if err != nil {
		return err
	}
	for _, change := range []struct {
		object client.Object
		status bool
		patch  string
	}{
		{network, true, `{"status":{"message":"` + marked + `"}}`},
		{tenant, true, `{"status":{"message":"` + marked + `"}}`},
		{service, true, `{"status":{"loadBalancer":null}}`},
		{port, false, `{"spec":{"active":false}}`},
	} {
		patch := client.RawPatch(types.MergePatchType, []byte(change.patch))
		if change.status {
			err = s.objects.Status().Patch(ctx, change.object, patch)
		} else {
			err = s.objects.Patch(ctx, change.object, patch)
		}
		if err != nil {
			return fmt.Errorf("change %T %s: %w", change.object, change.object.GetName(), err)
		}
	}
	_, err = probe.Await(ctx, limit, "the controller puts right what was changed", func(ctx context.Context) error {
		for _, object := range []client.Object{network, tenant, service, port} {
			if err := s.objects.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
				return fmt.Errorf("read %T %s: %w", object, object.GetName(), err)
			}
		}
		if network.Status.Message == marked || tenant.Status.Message == marked || len(service.Status.LoadBalancer.Ingress) == 0 || !port.Spec.Active {
			return fmt.Errorf("network %q, tenant %q, load balancer at %v, port %s active: %t",
				network.Status.Message, tenant.Status.Message, service.Status.LoadBalancer.Ingress, port.Name, port.Spec.Active)
		}
		return nil
	})
	return err //nolint:wrapcheck // it says what was waited for
}

// freePort returns a port of the second node without a pod.
func (s *restarts) freePort(ctx context.Context) (*weftv1.NeutronPort, error) {
	all, err := s.ports(ctx, s.Node(2).Name)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Status.Pod == nil {
			return &all[i], nil
		}
	}
	return nil, errFew
}
