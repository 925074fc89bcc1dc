// Package neutron has the scene of the benchmark's rows of pods on OpenStack's networks: a lab with an OpenStack, a tenant in it, and the
// same work by the bare calls of OpenStack and of the switch.
package neutron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	stack "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
)

const (
	// Tenant is the tenant with the pods.
	Tenant = "blue"
	// Overlay is a namespace without a tenant: its pods are on the cluster's network.
	Overlay = "default"
	// nodes is the number of nodes.
	nodes = 2
	// limit is the time limit of each wait in a round.
	limit = 4 * time.Minute
)

// Scene is a lab with an OpenStack and a tenant.
type Scene struct {
	*lab.Cluster
	stage   *stage.Stage
	objects client.Client
	admin   *openstack.Client
	// network is the tenant's.
	network stackubev1.Network
	rounds  map[string]int
	// overlaySize is the resident size of the first node's agent with pods of the overlay, before the tenant existed, in MB.
	overlaySize float64
}

// Open starts the lab, runs before unless it is nil, and creates the tenant. Call Close after it, also after an error.
func Open(ctx context.Context, st *stage.Stage, before func(context.Context, *Scene) error) (*Scene, error) {
	s := &Scene{stage: st, rounds: map[string]int{}}
	if err := s.open(ctx); err != nil {
		return s, err
	}
	if err := s.account(ctx, Overlay); err != nil {
		return s, err
	}
	if before != nil {
		if err := before(ctx, s); err != nil {
			return s, err
		}
	}
	return s, s.tenant(ctx)
}

// Close removes the lab.
func (s *Scene) Close(ctx context.Context) error { return s.stage.StrikeLab(ctx, stage.KindNeutron) }

func (s *Scene) open(ctx context.Context) (err error) {
	if s.Cluster, err = s.stage.Lab(ctx, stage.KindNeutron, lab.Config{Nodes: nodes, OpenStack: plan.OpenStackOVN}); err != nil {
		return err
	}
	log.SetLogger(logr.Discard()) // otherwise the client's library logs a warning
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, stackubev1.AddToScheme, weftv1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("make a client: %w", err)
		}
	}
	config, err := s.RESTConfig()
	if err != nil {
		return err
	}
	if s.objects, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	s.admin, err = openstack.New(ctx, conf.Global{
		AuthURL: s.OpenStack.AuthURL(), Username: stack.Admin, Password: stack.AdminPassword, TenantName: stack.Admin, Region: stack.Region,
	}, openstack.Options{Transport: s.OpenStack.Transport()})
	return err
}

// account creates the ServiceAccount of a namespace's pods, for which this lab has no controller.
func (s *Scene) account(ctx context.Context, namespace string) error {
	err := s.create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// tenant creates the tenant.
func (s *Scene) tenant(ctx context.Context) error {
	err := s.create(ctx, &stackubev1.Tenant{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: Tenant}, Spec: stackubev1.TenantSpec{UserName: Tenant, Password: "bench"},
	})
	if err != nil {
		return err
	}
	s.network = stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: Tenant, Name: Tenant}}
	_, err = probe.Await(ctx, limit, "the tenant's Network", func(ctx context.Context) error {
		if err := s.objects.Get(ctx, client.ObjectKeyFromObject(&s.network), &s.network); err != nil {
			return err
		}
		if s.network.Status.State != stackubev1.StateActive {
			return fmt.Errorf("it is %q: %s", s.network.Status.State, s.network.Status.Message)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.account(ctx, Tenant)
}

func (s *Scene) create(ctx context.Context, objects ...client.Object) error {
	for _, object := range objects {
		if err := s.objects.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// round returns the number of a side's next round.
func (s *Scene) round(side string) int {
	s.rounds[side]++
	return s.rounds[side]
}

// ports returns the tenant's ports on a node.
func (s *Scene) ports(ctx context.Context, node string) ([]weftv1.NeutronPort, error) {
	var all weftv1.NeutronPortList
	if err := s.objects.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list NeutronPorts: %w", err)
	}
	var found []weftv1.NeutronPort
	for _, p := range all.Items {
		if p.Spec.Node == node && p.Spec.Network.Namespace == Tenant {
			found = append(found, p)
		}
	}
	return found, nil
}

var errFew = errors.New("not enough ports are free")

// awaitPorts waits until a node has as many ports that can get a pod: those that no pod has used, or that have rested.
func (s *Scene) awaitPorts(ctx context.Context, node string, count int) error {
	_, err := probe.Await(ctx, limit, "free ports", func(ctx context.Context) error {
		all, err := s.ports(ctx, node)
		if err != nil {
			return err
		}
		free := 0
		for i := range all {
			p := &all[i]
			rested := p.Status.ReleasedAt == nil || time.Since(p.Status.ReleasedAt.Time) > ahead.Rest+time.Second // written in whole seconds
			if rested && p.Spec.Active && p.Status.Plugged && p.Status.Pod == nil && p.DeletionTimestamp == nil {
				free++
			}
		}
		if free < count {
			return fmt.Errorf("%w: %d of %d, and %d in all", errFew, free, count, len(all))
		}
		return nil
	})
	return err //nolint:wrapcheck // it says what was waited for
}

// noPorts deletes the tenant's ports on a node, which has no pods of the tenant, and waits until they are deleted.
func (s *Scene) noPorts(ctx context.Context, node string) error {
	_, err := probe.Await(ctx, limit, "the ports of "+node+" are deleted", func(ctx context.Context) error {
		all, err := s.ports(ctx, node)
		if err != nil || len(all) == 0 {
			return err
		}
		for i := range all {
			if all[i].DeletionTimestamp == nil {
				if err := s.objects.Delete(ctx, &all[i]); client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("delete NeutronPort %s: %w", all[i].Name, err)
				}
			}
		}
		return fmt.Errorf("%d ports are left", len(all))
	})
	return err //nolint:wrapcheck // it says what was waited for
}

// object creates a Pod object that is assigned to a node.
func (s *Scene) object(ctx context.Context, spec lab.PodSpec) (uid string, err error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: spec.Namespace, Name: spec.Name},
		Spec:       corev1.PodSpec{NodeName: spec.Node, Containers: []corev1.Container{{Name: "main", Image: "bench"}}},
	}
	if err := s.create(ctx, pod); err != nil {
		return "", err
	}
	return string(pod.UID), nil
}

// attach starts a pod as a kubelet does, which repeats an ADD that failed.
func (s *Scene) attach(ctx context.Context, spec lab.PodSpec, uid string) (pod *lab.Pod, err error) {
	node, err := s.NodeNamed(spec.Node)
	if err != nil {
		return nil, err
	}
	_, err = probe.Await(ctx, limit, "pod "+spec.Name, func(ctx context.Context) error {
		if pod, err = node.Attach(ctx, spec, uid); err != nil && pod != nil {
			_, undone := pod.Detach(ctx)
			err = errors.Join(err, undone)
		}
		return err
	})
	return pod, err
}

// pod creates a Pod object that is assigned to a node, and starts the pod.
func (s *Scene) pod(ctx context.Context, spec lab.PodSpec) (*lab.Pod, error) {
	uid, err := s.object(ctx, spec)
	if err != nil {
		return nil, err
	}
	return s.attach(ctx, spec, uid)
}

// stay starts pods that stay on a node.
func (s *Scene) stay(ctx context.Context, namespace, node string, count int) error {
	for i := range count {
		if _, err := s.pod(ctx, lab.PodSpec{Namespace: namespace, Name: fmt.Sprintf("stays-%s-%d", node, i), Node: node}); err != nil {
			return err
		}
	}
	return nil
}

// settled waits until as many ports as the node's pods that stay have a pod, and until no port is left that a pod of former rounds has used
// and that is not plugged again: what follows is not disturbed.
func settled(ctx context.Context, s *Scene, node string, stay int) error {
	_, err := probe.Await(ctx, limit, "the ports of former pods", func(ctx context.Context) error {
		all, err := s.ports(ctx, node)
		if err != nil {
			return err
		}
		attached := 0
		for i := range all {
			p := &all[i]
			if p.Status.Pod != nil {
				attached++
			}
			if !p.Status.Plugged && p.DeletionTimestamp == nil {
				return fmt.Errorf("port %s is not plugged again", p.Name)
			}
		}
		if attached != stay {
			return fmt.Errorf("%w: %d, and %d stay", errAttached, attached, stay)
		}
		return nil
	})
	return err //nolint:wrapcheck // it says what was waited for
}

var errAttached = errors.New("ports have a pod")

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
