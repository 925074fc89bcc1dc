// Package vpc has the scene of the benchmark's rows of VPCs: a lab of one node with VPCs, Weft's operations in it, and the same by hand
// with OVN's and the kernel's own commands.
package vpc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

const (
	prefix = "10.0.1.0/24"
	// router is the router's address, lanIP the NAT gateway's, server a pod's.
	router, lanIP, server = "10.0.1.1", "10.0.1.254", "10.0.1.60"
	// echoPort is where echoes answer.
	echoPort = 7000
	// handEIP is the outside address of a gateway made by hand; the Subnet excludes it.
	handEIP = "192.168.100.50"
	// limit is the time limit of each wait in a round.
	limit = 2 * time.Minute
)

// Metrics.
const (
	// Add is the time of an ADD until the interface's flows are installed, in ms.
	Add = "add-wall"
	// Ping is the time from the first object until an answer from outside, in ms.
	Ping = "first-ping"
)

// podsPerRound is the number of pods that a round adds, one after the other.
const podsPerRound = 10

// Scene is a lab of one node with VPCs. The work by hand uses the same databases and the same node: Weft does not change rows and ports
// of others.
type Scene struct {
	*lab.Cluster
	stage   *stage.Stage
	kind    string
	objects client.Client
	echo    *traffic.Echo
	round   int
}

// Open starts a lab of a kind of package stage. Call Close after it, also after an error.
func Open(ctx context.Context, st *stage.Stage, kind string) (*Scene, error) {
	s := &Scene{stage: st, kind: kind}
	return s, s.open(ctx, st)
}

// Close removes the lab.
func (s *Scene) Close(ctx context.Context) error {
	var err error
	if s.echo != nil {
		err = s.echo.Close()
	}
	return errors.Join(err, s.stage.StrikeLab(ctx, s.kind))
}

func (s *Scene) open(ctx context.Context, st *stage.Stage) (err error) {
	if s.Cluster, err = st.Lab(ctx, s.kind, lab.Config{Nodes: 1, VPC: true}); err != nil {
		return err
	}
	log.SetLogger(logr.Discard()) // otherwise the client's library logs a warning
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kubeovn.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	config, err := s.RESTConfig()
	if err != nil {
		return err
	}
	if s.objects, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if s.echo, err = traffic.NewEcho(s.External.Netns, netip.AddrPortFrom(s.External.IP, echoPort)); err != nil {
		return err
	}
	definition := nat.Definition()
	definition.SetNamespace(kubeovn.ConfigNamespace)
	definition.SetName(kubeovn.DefaultExternalSubnet)
	definition.Object["spec"] = map[string]any{"config": `{"cniVersion":"0.3.0","type":"macvlan","master":"ens37","mode":"bridge","ipam":{"type":"kube-ovn"}}`}
	return s.Create(ctx, definition,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: kubeovn.ConfigNamespace, Name: kubeovn.NATGatewayConfigMap}, Data: map[string]string{"enable-vpc-nat-gw": "true"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: kubeovn.ConfigNamespace, Name: kubeovn.NATConfigMap}, Data: map[string]string{"image": "gateway"}},
		&kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: kubeovn.DefaultExternalSubnet}, Spec: kubeovn.SubnetSpec{
			Provider: kubeovn.DefaultExternalSubnet + "." + kubeovn.ConfigNamespace, CIDRBlock: "192.168.100.0/24", Gateway: "192.168.100.1",
			ExcludeIps: []string{"192.168.100.1..192.168.100.99"},
		}})
}

// Vpc returns a Vpc that sends packets for the outside to the gateway.
func Vpc(name string) *kubeovn.Vpc {
	return &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.VpcSpec{
		StaticRoutes: []kubeovn.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: lanIP, Policy: "policyDst"}},
	}}
}

// Subnet returns the Subnet of the Vpc of that name.
func Subnet(name string) *kubeovn.Subnet {
	return &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.SubnetSpec{Vpc: name, CIDRBlock: prefix}}
}

func gatewayOf(name string) *kubeovn.VpcNatGateway {
	return &kubeovn.VpcNatGateway{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.VpcNatGatewaySpec{Vpc: name, Subnet: name, LanIP: lanIP}}
}

// Create creates objects.
func (s *Scene) Create(ctx context.Context, objects ...client.Object) error {
	for _, object := range objects {
		if err := s.objects.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

func (s *Scene) delete(ctx context.Context, objects ...client.Object) error {
	for _, object := range objects {
		if err := s.objects.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// gone waits until an object is deleted.
func (s *Scene) gone(ctx context.Context, object client.Object) error {
	_, err := probe.Await(ctx, limit, fmt.Sprintf("%T %s is gone", object, object.GetName()), func(ctx context.Context) error {
		err := s.objects.Get(ctx, client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errThere)
	})
	return err
}

var errThere = errors.New("the object still exists")

// node returns the lab's only node.
func (s *Scene) node() lab.Node { return s.Node(1) }

// start starts a pod. It retries while the network is not ready for the pod.
func (s *Scene) start(ctx context.Context, spec lab.PodSpec) (*lab.Pod, error) {
	spec.Node = s.node().Name
	uid, err := s.MakeObject(ctx, spec)
	if err != nil {
		return nil, err
	}
	var pod *lab.Pod
	_, err = probe.Await(ctx, limit, "pod "+spec.Name+" is attached", func(ctx context.Context) (err error) {
		if pod, err = s.node().Attach(ctx, spec, uid); err != nil && pod != nil {
			_, undone := pod.Detach(ctx)
			err = errors.Join(err, undone)
		}
		return err
	})
	return pod, err
}

func inSubnet(name, subnet, address string) lab.PodSpec {
	annotations := map[string]string{kubeovn.AnnotationLogicalSwitch: subnet}
	if address != "" {
		annotations[kubeovn.AnnotationIPAddress] = address
	}
	return lab.PodSpec{Namespace: "default", Name: name, Annotations: annotations}
}

// startGateway starts the pod of a NAT gateway, as its StatefulSet defines it.
func (s *Scene) startGateway(ctx context.Context, name string) (*lab.Pod, error) {
	set := &appsv1.StatefulSet{}
	_, err := probe.Await(ctx, limit, "the StatefulSet of "+name, func(ctx context.Context) error {
		return s.objects.Get(ctx, client.ObjectKey{Namespace: kubeovn.ConfigNamespace, Name: nat.WorkloadName(name)}, set)
	})
	if err != nil {
		return nil, err
	}
	return s.start(ctx, lab.PodSpec{
		Namespace: kubeovn.ConfigNamespace, Name: nat.PodName(name), Labels: set.Spec.Template.Labels, Annotations: set.Spec.Template.Annotations,
	})
}

// end deletes pods, and waits until their addresses are free.
func (s *Scene) end(ctx context.Context, pods ...*lab.Pod) error {
	for _, pod := range pods {
		if err := s.DelPod(ctx, pod); err != nil {
			return err
		}
	}
	for _, pod := range pods {
		_, err := probe.Await(ctx, limit, "the address of "+pod.Name+" is free", func(ctx context.Context) error {
			if there, err := s.addressed(ctx, pod.Namespace, pod.Name); there || err != nil {
				return errors.Join(err, errThere)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addressed reports whether a pod has an IP object.
func (s *Scene) addressed(ctx context.Context, namespace, pod string) (bool, error) {
	var all kubeovn.IPList
	if err := s.objects.List(ctx, &all); err != nil {
		return false, fmt.Errorf("list IP objects: %w", err)
	}
	return slices.ContainsFunc(all.Items, func(ip kubeovn.IP) bool { return ip.Spec.Namespace == namespace && ip.Spec.PodName == pod }), nil
}

var errNotYet = errors.New("the pod has no address yet")

func (s *Scene) awaitAddress(ctx context.Context, pod lab.PodSpec) error {
	_, err := probe.Await(ctx, limit, "the address of "+pod.Name, func(ctx context.Context) error {
		if there, err := s.addressed(ctx, pod.Namespace, pod.Name); !there {
			return errors.Join(err, errNotYet)
		}
		return nil
	})
	return err //nolint:wrapcheck // it names the pod
}

// AddPods adds a round's pods. Their addresses and logical ports exist before.
func (s *Scene) AddPods(subnet string) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		s.round++
		specs, uids := [podsPerRound]lab.PodSpec{}, [podsPerRound]string{}
		for i := range podsPerRound {
			specs[i] = inSubnet(fmt.Sprintf("%s-%d-%d", subnet, s.round, i), subnet, "")
			specs[i].Node = s.node().Name
			var err error
			if uids[i], err = s.MakeObject(ctx, specs[i]); err != nil {
				return nil, err
			}
		}
		for _, spec := range specs {
			if err := s.awaitAddress(ctx, spec); err != nil {
				return nil, err
			}
		}
		if err := s.nbctl(ctx, "--wait=hv", "sync"); err != nil {
			return nil, err
		}
		var walls []float64
		pods := make([]*lab.Pod, 0, podsPerRound)
		for i := range podsPerRound {
			pod, err := s.node().Attach(ctx, specs[i], uids[i])
			if err != nil {
				return nil, err
			}
			pods, walls = append(pods, pod), append(walls, milliseconds(pod.Took))
		}
		return measure.Figures{Add: measure.Median(walls)}, s.end(ctx, pods...)
	}
}

// FirstPing makes a VPC with a gateway and a pod in it, and measures the time until the pod has an answer from outside.
func (s *Scene) FirstPing(ctx context.Context) (measure.Figures, error) {
	s.round++
	name := fmt.Sprintf("first-%d", s.round)
	v, subnet, gateway := Vpc(name), Subnet(name), gatewayOf(name)
	eip := &kubeovn.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.IptablesEIPSpec{NatGwDp: name}}
	snat := &kubeovn.IptablesSnatRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovn.IptablesSnatRuleSpec{EIP: name, InternalCIDR: prefix}}
	began := time.Now()
	if err := s.Create(ctx, v, subnet, gateway, eip, snat); err != nil {
		return nil, err
	}
	pods := [2]*lab.Pod{}
	group, within := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		pods[0], err = s.start(within, inSubnet(name, name, ""))
		return err
	})
	group.Go(func() (err error) {
		pods[1], err = s.startGateway(within, name)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	at, err := firstAnswer(ctx, pods[0].Netns, netip.AddrPortFrom(s.External.IP, echoPort))
	if err != nil {
		return nil, err
	}
	if err := s.delete(ctx, snat, eip, gateway, subnet, v); err != nil {
		return nil, err
	}
	if err := s.end(ctx, pods[:]...); err != nil {
		return nil, err
	}
	for _, object := range []client.Object{eip, gateway, subnet, v} {
		if err := s.gone(ctx, object); err != nil {
			return nil, err
		}
	}
	return measure.Figures{Ping: milliseconds(at.Sub(began))}, s.nbctl(ctx, "--wait=hv", "sync") // OVN is at rest before the other side's turn
}

// firstAnswer returns when the first of many datagrams was answered.
func firstAnswer(ctx context.Context, from string, to netip.AddrPort) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := traffic.ListenUDP(from, netip.AddrPort{})
	if err != nil {
		return time.Time{}, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_, _ = conn.WriteToUDPAddrPort([]byte("8 octets"), to) // a datagram that cannot be sent is not answered
			}
		}
	}()
	if _, err = conn.Read(make([]byte, 64)); err != nil {
		return time.Time{}, fmt.Errorf("wait for an answer of %s: %w", to, err)
	}
	return time.Now(), nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (s *Scene) nbctl(ctx context.Context, args ...string) error {
	_, err := probe.Run(ctx, append([]string{"ovn-nbctl", "--timeout=120", "--db=unix:" + plan.New(s.Config).RunPath("ovn", "nb.sock")}, args...))
	return err
}

func (s *Scene) kubectl(ctx context.Context, args ...string) error {
	_, err := probe.Run(ctx, s.Kubectl(args...))
	return err
}
