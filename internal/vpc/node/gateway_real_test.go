//go:build real

package node_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/deploy"
	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/attach"
	shared "weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/cluster"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/node"
)

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(apiservertest.MainWith(m, &server, crds.All, apiservertest.DefinitionIn("../../../deploy/third-party/k8s.cni.cncf.io_network-attachment-definitions.yaml")))
}

// manifests are the manifests of users of Kube-OVN's gateways.
const manifests = `
kind: ConfigMap
apiVersion: v1
metadata: {name: ovn-vpc-nat-config, namespace: kube-system}
data: {image: 'docker.io/kubeovn/vpc-nat-gateway:v1.12.4'}
---
kind: ConfigMap
apiVersion: v1
metadata: {name: ovn-vpc-nat-gw-config, namespace: kube-system}
data: {enable-vpc-nat-gw: 'true'}
---
apiVersion: kubeovn.io/v1
kind: Subnet
metadata: {name: ovn-vpc-external-network}
spec:
  protocol: IPv4
  provider: ovn-vpc-external-network.kube-system
  cidrBlock: 192.168.100.0/24
  gateway: 192.168.100.1
  excludeIps: [192.168.100.1..192.168.100.220]
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: ovn-vpc-external-network, namespace: kube-system}
spec:
  config: '{"cniVersion": "0.3.0", "type": "macvlan", "master": "ens37", "mode": "bridge", "ipam": {"type": "kube-ovn"}}'
---
kind: Vpc
apiVersion: kubeovn.io/v1
metadata: {name: test-vpc-1}
spec:
  namespaces: [ns1]
  staticRoutes: [{cidr: 0.0.0.0/0, nextHopIP: 10.0.1.254, policy: policyDst}]
---
kind: Subnet
apiVersion: kubeovn.io/v1
metadata: {name: net1}
spec: {vpc: test-vpc-1, cidrBlock: 10.0.1.0/24, protocol: IPv4, namespaces: [ns1]}
---
kind: VpcNatGateway
apiVersion: kubeovn.io/v1
metadata: {name: gw1}
spec: {vpc: test-vpc-1, subnet: net1, lanIp: 10.0.1.254, externalSubnets: [ovn-vpc-external-network]}
---
kind: IptablesEIP
apiVersion: kubeovn.io/v1
metadata: {name: eip2}
spec: {v4ip: 192.168.100.231, natGwDp: gw1}
---
kind: IptablesSnatRule
apiVersion: kubeovn.io/v1
metadata: {name: snat01}
spec: {eip: eip2, internalCIDR: 10.1.1.0/24}
---
kind: IptablesEIP
apiVersion: kubeovn.io/v1
metadata: {name: eip3}
spec: {v4ip: 192.168.100.232, natGwDp: gw1}
---
kind: IptablesFIPRule
apiVersion: kubeovn.io/v1
metadata: {name: fip01}
spec: {eip: eip3, internalIp: 10.0.1.5}
`

// controllerOf runs the controller's part on the site's northbound database until the test ends.
func controllerOf(t *testing.T, site *ovntest.Site) {
	t.Helper()
	engine, err := ovn.Open(t.Context(), ovn.Config{Endpoints: []string{site.NB()}})
	must(t, err)
	parts := []shared.Part{cluster.Part(cluster.Options{
		Northbound: engine, Term: func(context.Context, client.Reader) (uint64, error) { return 1, nil },
	})}
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), shared.AddToScheme(parts, scheme)))
	cached, err := shared.Cached(parts, scheme)
	must(t, err)
	always := true
	mgr, err := manager.New(server.Config(), manager.Options{
		Scheme: scheme, Cache: ctrlcache.Options{ByObject: cached}, HealthProbeBindAddress: "0", Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &always},
	})
	must(t, err)
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	tools := shared.NewTools(mgr, shared.NewReadiness(metrics.NewController("test")), log, rand.New(rand.NewPCG(1, 1)))
	must(t, shared.SetUp(parts, tools))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		engine.Close()
	})
}

// manyRecords are the attachments of the node.
type manyRecords struct {
	network.Records
	mu   sync.Mutex
	recs map[attach.Key]attach.Record
}

func (m *manyRecords) Attached() []attach.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]attach.Record, 0, len(m.recs))
	for _, rec := range m.recs {
		all = append(all, rec)
	}
	return all
}

// nodeUnderTest is an agent's network on a chassis of the site; the test acts as its kubelet.
type nodeUnderTest struct {
	client.Client
	t       *testing.T
	site    *ovntest.Site
	chassis *ovntest.Chassis
	records *manyRecords
	network network.Network
	objects ctrlcache.Cache
	stop    func()
	// applied are the objects of the manifests.
	applied []*unstructured.Unstructured
}

// newNode returns a node whose agent does not run yet.
func newNode(t *testing.T, c client.Client, site *ovntest.Site, chassis *ovntest.Chassis) *nodeUnderTest {
	return &nodeUnderTest{Client: c, t: t, site: site, chassis: chassis, records: &manyRecords{recs: map[attach.Key]attach.Record{}}}
}

func (n *nodeUnderTest) start() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	kind := node.Kind(node.Options{Node: n.chassis.Name, Database: "unix:" + n.chassis.DBSock})
	by := map[client.Object]ctrlcache.ByObject{}
	for _, object := range kind.Objects {
		by[object.Kind] = object.By
	}
	objects, err := ctrlcache.New(server.Config(), ctrlcache.Options{Scheme: n.Scheme(), ByObject: by})
	must(n.t, err)
	made, runner, err := kind.New(ctx, startNode(ctx, n.t, n.chassis.NetNS, "boot"), network.Deps{
		Records: n.records, Objects: objects, API: n.Client, Log: slog.New(slog.NewTextHandler(n.t.Output(), nil)),
	})
	must(n.t, err)
	n.network, n.objects = made, objects
	var group sync.WaitGroup
	group.Go(func() { _ = objects.Start(ctx) })
	if !objects.WaitForCacheSync(ctx) { // a cache that is not started cannot be read
		n.t.Error("the cache has not started")
	}
	group.Go(func() {
		if err := runner.Run(ctx); err != nil {
			n.t.Error(err)
		}
	})
	n.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	n.t.Cleanup(n.stop)
	ovntest.Eventually(n.t, "the network is ready", func() bool { return made.Ready() == nil })
}

// add attaches a pod of the API server, as a runtime does.
func (n *nodeUnderTest) add(namespace, name string) (*ovntest.Pod, attach.Record) {
	n.t.Helper()
	var object corev1.Pod
	must(n.t, n.Get(n.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &object))
	pod := ovntest.NewPod(n.t)
	req := &cni.Request{
		ContainerID: "sandbox-" + string(object.UID), IfName: "eth0", Netns: pod.ProcPath(),
		Args: cni.Args{PodNamespace: namespace, PodName: name, PodUID: string(object.UID)},
	}
	rec, err := n.network.Plan(n.t.Context(), req, placement.Decision{Network: "vpc"}, attach.InUse{})
	must(n.t, err)
	rec.ContainerID, rec.IfName, rec.Netns = req.ContainerID, req.IfName, req.Netns
	rec.PodNamespace, rec.PodName, rec.PodUID = namespace, name, string(object.UID)
	_, err = n.network.Connect(n.t.Context(), &rec)
	must(n.t, err)
	n.records.mu.Lock()
	n.records.recs[rec.Key()] = rec
	n.records.mu.Unlock()
	pod.Device = rec.HostInterface
	return pod, rec
}

// makePod creates a pod on the node.
func (n *nodeUnderTest) makePod(namespace, name string, template *corev1.PodTemplateSpec) {
	n.t.Helper()
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace, pod.Name, pod.Spec.NodeName = namespace, name, n.chassis.Name
	must(n.t, n.Create(n.t.Context(), pod))
}

func (n *nodeUnderTest) namespace(name string) {
	n.t.Helper()
	if err := n.Create(n.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); !apierrors.IsAlreadyExists(err) {
		must(n.t, err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}}
	if err := n.Create(n.t.Context(), account); !apierrors.IsAlreadyExists(err) {
		must(n.t, err)
	}
}

// withoutDefinition deletes floating IP fip01 and its EIP while the gateway's NetworkAttachmentDefinition does not exist: with an agent that has
// programmed the gateway, and with one that has not. Afterwards everything is as before.
func withoutDefinition(n *nodeUnderTest, gate *ovntest.Pod, before, after func()) {
	ctx, t := n.t.Context(), n.t
	for _, restart := range []bool{false, true} {
		config, rule, eip := nat.Definition(), &kubeovn.IptablesFIPRule{}, &kubeovn.IptablesEIP{}
		must(t, n.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "ovn-vpc-external-network"}, config))
		must(t, n.Delete(ctx, config))
		ovntest.Eventually(t, "the agent has no definition", func() bool {
			return apierrors.IsNotFound(n.objects.Get(ctx, client.ObjectKeyFromObject(config), nat.Definition()))
		})
		if restart {
			n.stop()
			n.start()
		}
		before()
		must(t, n.Get(ctx, client.ObjectKey{Name: "fip01"}, rule))
		must(t, n.Get(ctx, client.ObjectKey{Name: "eip3"}, eip))
		must(t, n.Delete(ctx, eip))
		must(t, n.Delete(ctx, rule))
		after()
		ovntest.Eventually(t, "the EIP is gone", func() bool {
			return apierrors.IsNotFound(n.Get(ctx, client.ObjectKey{Name: "eip3"}, &kubeovn.IptablesEIP{}))
		})
		if out := ovntest.Run(t, gate.NetNS, "ip", "-o", "addr", "show", "net1"); strings.Contains(out, "192.168.100.232/") || !strings.Contains(out, "192.168.100.231/") {
			t.Errorf("addresses of net1 without the EIP: %s", out)
		}
		config.SetResourceVersion("")
		config.SetUID("")
		must(t, n.Create(ctx, config))
		must(t, n.Create(ctx, &kubeovn.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: "eip3"}, Spec: eip.Spec}))
		must(t, n.Create(ctx, &kubeovn.IptablesFIPRule{ObjectMeta: metav1.ObjectMeta{Name: "fip01"}, Spec: rule.Spec}))
		before()
	}
}

// changedDefinition changes the interface that the gateway's NetworkAttachmentDefinition configures: with an agent that has programmed the
// gateway, and with one that has not. Traffic goes on, by a new interface with the same addresses and routes. A host outside that sends nothing
// gets the MAC address of the new interface by the announcement of the EIP.
func changedDefinition(n *nodeUnderTest, gate, host *ovntest.Pod, works func()) {
	ctx, t := n.t.Context(), n.t
	change := func(config string) {
		definition := nat.Definition()
		must(t, n.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "ovn-vpc-external-network"}, definition))
		must(t, unstructured.SetNestedField(definition.Object, config, "spec", "config"))
		must(t, n.Update(ctx, definition))
	}
	becomes := func(want string) {
		ovntest.Eventually(t, "net1: "+want, func() bool {
			have, err := ovntest.Try(gate.NetNS, "ip", "-d", "link", "show", "net1")
			return err == nil && strings.Contains(have, want)
		})
	}
	neighbour := func() string { return ovntest.Run(t, host.NetNS, "ip", "neigh", "show", "192.168.100.231") }
	host.Reaches("192.168.100.231")
	former := neighbour()
	change(`{"type":"macvlan","master":"ens37","mode":"private"}`)
	becomes("mode private")
	ovntest.Eventually(t, "the host outside has the new MAC address", func() bool {
		mac := strings.Fields(ovntest.Run(t, gate.NetNS, "ip", "-br", "link", "show", "net1"))[2]
		return !strings.Contains(former, mac) && strings.Contains(neighbour(), mac)
	})
	works()
	n.stop()
	change(`{"type":"macvlan","master":"ens37","mode":"bridge","mtu":1300}`)
	n.start()
	becomes("mode bridge")
	becomes("mtu 1300")
	works()
	change(`{"type":"macvlan","master":"ens37","mode":"bridge"}`)
	becomes("mtu 1500")
	works()
}

// newGateways applies the users' manifests, and further ones, on a site with a controller and an agent. The test acts as StatefulSet
// controller, kubelet and runtime. It returns two hosts outside, too.
func newGateways(t *testing.T, further string) (n *nodeUnderTest, host, router *ovntest.Pod) {
	t.Helper()
	return gatewaysOn(t, ovntest.NewSite(t, 1), further)
}

// gatewaysOn is newGateways on a site, with an agent on its first chassis, which has the network outside.
func gatewaysOn(t *testing.T, site *ovntest.Site, further string) (n *nodeUnderTest, host, router *ovntest.Pod) {
	t.Helper()
	host, router = ovntest.Outside(t, site.Chassis[0].NetNS)
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), kubeovn.AddToScheme(scheme)))
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	must(t, err)
	n = newNode(t, c, site, site.Chassis[0])
	n.namespace("ns1")
	n.namespace("kube-system")
	controllerOf(t, site)
	n.start()
	n.applied, err = deploy.Parse([]byte(manifests + further))
	must(t, err)
	for _, object := range n.applied {
		must(t, c.Create(t.Context(), object))
	}
	return n, host, router
}

// makeGateway creates the pod of a gateway, once there is its StatefulSet, and returns its name.
func (n *nodeUnderTest) makeGateway(gateway string) string {
	n.t.Helper()
	set := &appsv1.StatefulSet{}
	name := "vpc-nat-gw-" + gateway
	ovntest.Eventually(n.t, "StatefulSet "+name, func() bool {
		return n.Get(n.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: name}, set) == nil
	})
	n.makePod("kube-system", name+"-0", &set.Spec.Template)
	return name + "-0"
}

// deleteAll deletes pods, and then the manifests' objects in the order of creation, and waits until nothing is left.
func (n *nodeUnderTest) deleteAll(pods ...client.ObjectKey) {
	n.t.Helper()
	ctx := n.t.Context()
	for _, p := range pods {
		must(n.t, n.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}, client.GracePeriodSeconds(0)))
	}
	for _, object := range n.applied {
		must(n.t, client.IgnoreNotFound(n.Delete(ctx, object)))
	}
	ovntest.Eventually(n.t, "everything is gone", func() bool {
		var sets appsv1.StatefulSetList
		must(n.t, n.List(ctx, &sets))
		left := len(sets.Items)
		for _, object := range n.applied {
			if !apierrors.IsNotFound(n.Get(ctx, client.ObjectKeyFromObject(object), object)) {
				left++
			}
		}
		return left == 0 && n.site.Nbctl("list", "Logical_Router")+n.site.Nbctl("list", "Logical_Switch") == ""
	})
}

// lost writes what the node controller writes about a gateway's pod when its kubelet does not report any more, and what the kubelet writes
// afterwards: the gateway is not Ready meanwhile, also if its state changes.
func lost(n *nodeUnderTest, gateway string) {
	ctx, t := n.t.Context(), n.t
	write := func(ready, containers corev1.ConditionStatus) {
		pod := &corev1.Pod{}
		must(t, n.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: gateway}, pod))
		before := pod.DeepCopy()
		pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type != nat.Condition })
		after := metav1.NewTime(pod.Status.Conditions[0].LastTransitionTime.Add(time.Minute))
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: ready, LastTransitionTime: after},
			corev1.PodCondition{Type: corev1.ContainersReady, Status: containers, LastTransitionTime: after})
		must(t, n.Status().Patch(ctx, pod, client.MergeFrom(before)))
	}
	is := func(what string, ready bool) {
		ovntest.Eventually(t, what, func() bool {
			gate, eip := &kubeovn.VpcNatGateway{}, &kubeovn.IptablesEIP{}
			must(t, n.Get(ctx, client.ObjectKey{Name: "gw1"}, gate))
			must(t, n.Get(ctx, client.ObjectKey{Name: "eip3"}, eip))
			return gate.Status.Ready == ready && eip.Status.Ready == ready
		})
	}
	write(corev1.ConditionFalse, corev1.ConditionTrue)
	is("a gateway whose node does not report is not ready", false)
	former := &kubeovn.VpcNatGateway{}
	must(t, n.Get(ctx, client.ObjectKey{Name: "gw1"}, former))
	eip := &kubeovn.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: kubeovn.IptablesEIPSpec{NatGwDp: "gw1"}}
	must(t, n.Create(ctx, eip))
	ovntest.Eventually(t, "the gateway has another state", func() bool {
		gate, pod := &kubeovn.VpcNatGateway{}, &corev1.Pod{}
		must(t, n.Get(ctx, client.ObjectKey{Name: "gw1"}, gate))
		must(t, n.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: gateway}, pod))
		return gate.Status.Hash != former.Status.Hash && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == nat.Condition && c.Message == gate.Status.Hash
		})
	})
	is("the gateway is still not ready", false)
	write(corev1.ConditionTrue, corev1.ConditionTrue)
	is("a gateway whose node reports again is ready", true)
	must(t, n.Delete(ctx, eip))
}

// refused makes changes that the API server has to refuse, because a gateway's pod has an address of its external Subnet.
func refused(n *nodeUnderTest) {
	ctx, t := n.t.Context(), n.t
	gate, eip := &kubeovn.VpcNatGateway{}, &kubeovn.IptablesEIP{}
	must(t, n.Get(ctx, client.ObjectKey{Name: "gw1"}, gate))
	must(t, n.Get(ctx, client.ObjectKey{Name: "eip3"}, eip))
	gate.Spec.ExternalSubnets = []string{kubeovn.DefaultExternalSubnet}
	must(t, n.Update(ctx, gate)) // the default, in words
	gate.Spec.ExternalSubnets, eip.Spec.ExternalSubnet = []string{"another"}, "another"
	for _, object := range []client.Object{gate, eip} {
		if err := n.Update(ctx, object); err == nil || !strings.Contains(err.Error(), "cannot be changed: delete the") {
			t.Errorf("another external Subnet of %s: %v", object.GetName(), err)
		}
	}
}

// From the users' manifests to packets: controller, API server, OVN and agent are real.
func TestGatewayOfUsers(t *testing.T) {
	n, host, router := newGateways(t, "")
	c, ctx := n.Client, t.Context()
	gateway := n.makeGateway("gw1")
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pod.Annotations = map[string]string{kubeovn.AnnotationLogicalSwitch: "net1"}
	n.makePod("ns1", "vpc1-pod", &pod)
	pod.Annotations[kubeovn.AnnotationIPAddress] = "10.0.1.5"
	n.makePod("ns1", "floating", &pod)
	one, _ := n.add("ns1", "vpc1-pod")
	floating, _ := n.add("ns1", "floating")
	gate, recGate := n.add("kube-system", gateway)
	for netns, name := range map[*ovntest.Pod]string{one: "one", floating: "floating", host: "host", router: "router"} {
		ovntest.Serve(t, netns.NetNS, name, 7000)
	}
	one.Reaches("10.0.1.254")
	expect := func(what string, from *ovntest.Pod, to, want string) {
		t.Helper()
		ask := ovntest.Ask
		if want == "" {
			ask = ovntest.Silent
		}
		ovntest.Eventually(t, what, func() bool { return ask(t, from.NetNS, "tcp4", to) == want })
	}
	fip, snat := &kubeovn.IptablesFIPRule{}, &kubeovn.IptablesSnatRule{}
	ovntest.Eventually(t, "all rules are in effect", func() bool {
		must(t, c.Get(ctx, client.ObjectKey{Name: "fip01"}, fip))
		must(t, c.Get(ctx, client.ObjectKey{Name: "snat01"}, snat))
		return fip.Status.Ready && snat.Status.Ready
	})
	if matched := meta.FindStatusCondition(snat.Status.Conditions, "Matched"); matched == nil || matched.Status != metav1.ConditionFalse ||
		!strings.Contains(matched.Message, "net1 (10.0.1.0/24)") {
		t.Errorf("an SNAT rule that matches nothing: %+v", matched)
	}
	expect("the floating IP, from outside", host, "192.168.100.232:7000", "floating 192.168.100.10")
	expect("the floating IP, to outside", floating, "1.1.1.1:7000", "router 192.168.100.232")
	if have := ovntest.Silent(t, one.NetNS, "tcp4", "1.1.1.1:7000"); have != "" {
		t.Errorf("a source that no rule matches gets out: %q", have)
	}

	refused(n)
	lost(n, gateway)
	must(t, c.Get(ctx, client.ObjectKey{Name: "snat01"}, snat))
	snat.Spec.InternalCIDR = "10.0.1.0/24" // the corrected rule
	must(t, c.Update(ctx, snat))
	expect("the corrected rule", one, "1.1.1.1:7000", "router 192.168.100.231")

	// A restart of the agent changes nothing in the gateway, and a rule that changed meanwhile takes effect.
	nftables := func() string { return ovntest.Run(t, gate.NetNS, "nft", "-a", "list", "table", "ip", "weft_gateway") }
	handles := func() string { return strings.Join(strings.Fields(nftables())[:5], " ") }
	before := handles()
	n.stop()
	expect("the floating IP without an agent", host, "192.168.100.232:7000", "floating 192.168.100.10")
	must(t, c.Get(ctx, client.ObjectKey{Name: "fip01"}, fip))
	fip.Spec.InternalIP = "10.0.1.2"
	must(t, c.Update(ctx, fip))
	n.start()
	expect("the floating IP of another pod", host, "192.168.100.232:7000", "one 192.168.100.10")
	if after := handles(); after != before {
		t.Errorf("the table was made anew: %s, was %s", after, before)
	}
	ovntest.Eventually(t, "CHECK", func() bool { return n.network.Check(ctx, recGate) == nil })
	changedDefinition(n, gate, host, func() {
		expect("the floating IP of a changed definition", host, "192.168.100.232:7000", "one 192.168.100.10")
		expect("SNAT of a changed definition", floating, "1.1.1.1:7000", "router 192.168.100.231")
	})
	withoutDefinition(n, gate, func() {
		expect("the floating IP without a definition", host, "192.168.100.232:7000", "one 192.168.100.10")
		expect("SNAT without a definition", floating, "1.1.1.1:7000", "router 192.168.100.231")
	}, func() {
		expect("a deleted floating IP", host, "192.168.100.232:7000", "")
		expect("a rule that is left", floating, "1.1.1.1:7000", "router 192.168.100.231")
	})

	// After its deletion, the EIP does not answer any more.
	must(t, c.Delete(ctx, fip))
	must(t, c.Delete(ctx, &kubeovn.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: "eip3"}}))
	ovntest.Eventually(t, "the EIP is gone", func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKey{Name: "eip3"}, &kubeovn.IptablesEIP{}))
	})
	if out := ovntest.Run(t, gate.NetNS, "ip", "-o", "addr", "show", "net1"); strings.Contains(out, "192.168.100.232") || !strings.Contains(out, "192.168.100.231") {
		t.Errorf("addresses of net1: %s", out)
	}
	must(t, n.network.Close(ctx, recGate))
	if have := ovntest.Silent(t, one.NetNS, "tcp4", "1.1.1.1:7000"); have != "" {
		t.Errorf("a closed gateway forwards: %q", have)
	}
	if out, err := ovntest.Try(gate.NetNS, "ip", "link", "show", "net1"); err == nil {
		t.Errorf("net1 of a closed gateway: %s", out)
	}

	n.deleteAll(client.ObjectKey{Namespace: "ns1", Name: "vpc1-pod"}, client.ObjectKey{Namespace: "ns1", Name: "floating"},
		client.ObjectKey{Namespace: "kube-system", Name: gateway})
}
