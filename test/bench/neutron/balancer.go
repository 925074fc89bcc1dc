package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/external"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Balanced is the time until a load balancer's first answer, in ms.
const Balanced = "load-balancer"

// balancerPorts are the ports of the load balancers, and endpoints the number of pods behind each.
func balancerPorts() []int32 { return []int32{80, 81} }

const endpoints = 4

// Balancers are load balancers with the same pods behind them.
type Balancers struct {
	*Scene

	pods             []*lab.Pod
	subnet, external string
}

// Balancers starts the pods behind load balancers.
func (s *Scene) Balancers(ctx context.Context) (*Balancers, error) {
	b := &Balancers{Scene: s}
	for i := range endpoints {
		spec := lab.PodSpec{Namespace: Tenant, Name: fmt.Sprintf("web-%d", i), Node: s.Node(1 + i%nodes).Name}
		pod, err := s.pod(ctx, spec)
		if err != nil {
			return nil, err
		}
		for _, port := range balancerPorts() {
			if _, err := traffic.NewSourceServer(pod.Netns, pod.Name, netip.AddrPortFrom(pod.IPs[0], uint16(port))); err != nil { //nolint:gosec // small
				return nil, err
			}
		}
		b.pods = append(b.pods, pod)
	}
	below, err := all(ctx, subnets.List(s.admin.Network, subnets.ListOpts{NetworkID: s.network.Status.NetworkID}), subnets.ExtractSubnets)
	if err != nil {
		return nil, err
	}
	b.subnet = below[0].ID
	yes := true
	outside, err := all(ctx, networks.List(s.admin.Network, external.ListOptsExt{ListOptsBuilder: networks.ListOpts{}, External: &yes}), networks.ExtractNetworks)
	if err != nil {
		return nil, err
	}
	b.external = outside[0].ID
	return b, nil
}

var errNone = errors.New("it has no address")

// answers waits for the first answer of a load balancer from outside.
func (b *Balancers) answers(ctx context.Context, address string) error {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("address of a load balancer: %w", err)
	}
	_, err = probe.Await(ctx, limit, "an answer of "+address, func(ctx context.Context) error {
		const once = 250 * time.Millisecond // a lost SYN is sent again after a second
		ctx, cancel := context.WithTimeout(ctx, once)
		defer cancel()
		_, err := traffic.Ask(ctx, b.External.Netns, "tcp", netip.AddrPortFrom(addr, uint16(balancerPorts()[0]))) //nolint:gosec // small
		return err
	})
	return err //nolint:wrapcheck // it says what was waited for
}

// balancerAddress waits for the external address of a Service of type LoadBalancer of the tenant.
func balancerAddress(ctx context.Context, objects client.Client, name string) (string, error) {
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Tenant, Name: name}}
	_, err := probe.Await(ctx, limit, "the address of Service "+name, func(ctx context.Context) error {
		err := objects.Get(ctx, client.ObjectKeyFromObject(object), object)
		if err == nil && len(object.Status.LoadBalancer.Ingress) == 0 {
			err = errNone
		}
		return err
	})
	if err != nil {
		return "", err //nolint:wrapcheck // it says what was waited for
	}
	return object.Status.LoadBalancer.Ingress[0].IP, nil
}

// ByService creates a Service of type LoadBalancer.
func (b *Balancers) ByService(ctx context.Context) (measure.Figures, error) {
	name := "lb-" + strconv.Itoa(b.round("service"))
	began := time.Now()
	if _, err := b.service(ctx, service4{
		namespace: Tenant, name: name, kind: corev1.ServiceTypeLoadBalancer, protocol: corev1.ProtocolTCP, ports: balancerPorts(), pods: b.pods,
	}); err != nil {
		return nil, err
	}
	address, err := balancerAddress(ctx, b.objects, name)
	if err != nil {
		return nil, err
	}
	if err := b.answers(ctx, address); err != nil {
		return nil, err
	}
	figures := measure.Figures{Balanced: milliseconds(time.Since(began))}
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Tenant, Name: name}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: Tenant, Name: name}}
	if err := errors.Join(b.objects.Delete(ctx, object), b.objects.Delete(ctx, slice)); err != nil {
		return nil, fmt.Errorf("delete Service %s: %w", name, err)
	}
	_, err = probe.Await(ctx, limit, "the deletion of Service "+name, func(ctx context.Context) error {
		err := b.objects.Get(ctx, client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errThere)
	})
	return figures, err
}

var errThere = errors.New("it still exists")

// ByHand creates the same load balancer by the bare calls of Octavia and Neutron.
func (b *Balancers) ByHand(ctx context.Context) (measure.Figures, error) {
	name, octavia := "hand-"+strconv.Itoa(b.round("hand")), b.admin.LoadBalancer
	began := time.Now()
	lb, err := loadbalancers.Create(ctx, octavia, loadbalancers.CreateOpts{Name: name, VipSubnetID: b.subnet}).Extract()
	if err != nil {
		return nil, fmt.Errorf("create a load balancer: %w", err)
	}
	if err := b.settle(ctx, lb.ID); err != nil {
		return nil, err
	}
	for _, port := range balancerPorts() {
		if err := b.listen(ctx, lb.ID, int(port)); err != nil {
			return nil, err
		}
	}
	ip, err := floatingips.Create(ctx, b.admin.Network, floatingips.CreateOpts{FloatingNetworkID: b.external, PortID: lb.VipPortID}).Extract()
	if err != nil {
		return nil, fmt.Errorf("create a floating IP: %w", err)
	}
	if err := b.answers(ctx, ip.FloatingIP); err != nil {
		return nil, err
	}
	figures := measure.Figures{Balanced: milliseconds(time.Since(began))}
	err = errors.Join(floatingips.Delete(ctx, b.admin.Network, ip.ID).ExtractErr(),
		loadbalancers.Delete(ctx, octavia, lb.ID, loadbalancers.DeleteOpts{Cascade: true}).ExtractErr())
	if err != nil {
		return nil, fmt.Errorf("delete a load balancer: %w", err)
	}
	_, err = probe.Await(ctx, limit, "the deletion of load balancer "+name, func(ctx context.Context) error {
		_, err := loadbalancers.Get(ctx, octavia, lb.ID).Extract()
		if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
			return nil
		}
		return errors.Join(err, errThere)
	})
	return figures, err
}

// listen creates a listener with its pool and members, waiting for each step.
func (b *Balancers) listen(ctx context.Context, lb string, port int) error {
	octavia := b.admin.LoadBalancer
	listener, err := listeners.Create(ctx, octavia, listeners.CreateOpts{LoadbalancerID: lb, Protocol: "TCP", ProtocolPort: port}).Extract()
	if err != nil {
		return fmt.Errorf("create a listener: %w", err)
	}
	if err := b.settle(ctx, lb); err != nil {
		return err
	}
	pool, err := pools.Create(ctx, octavia, pools.CreateOpts{ListenerID: listener.ID, Protocol: "TCP", LBMethod: pools.LBMethodSourceIpPort}).Extract()
	if err != nil {
		return fmt.Errorf("create a pool: %w", err)
	}
	if err := b.settle(ctx, lb); err != nil {
		return err
	}
	var members []pools.BatchUpdateMemberOpts
	for _, pod := range b.pods {
		members = append(members, pools.BatchUpdateMemberOpts{Address: pod.IPs[0].String(), ProtocolPort: port, SubnetID: &b.subnet})
	}
	if err := pools.BatchUpdateMembers(ctx, octavia, pool.ID, members).ExtractErr(); err != nil {
		return fmt.Errorf("add members: %w", err)
	}
	return b.settle(ctx, lb)
}

var errPending = errors.New("a change is under way")

// settle waits until Octavia accepts the next change.
func (b *Balancers) settle(ctx context.Context, id string) error {
	_, err := probe.Await(ctx, limit, "load balancer "+id, func(ctx context.Context) error {
		lb, err := loadbalancers.Get(ctx, b.admin.LoadBalancer, id).Extract()
		if err == nil && lb.ProvisioningStatus != "ACTIVE" {
			err = fmt.Errorf("%w: %s", errPending, lb.ProvisioningStatus)
		}
		return err
	})
	return err //nolint:wrapcheck // it says what was waited for
}
