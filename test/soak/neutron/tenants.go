package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
	"weft.dev/weft/lab"
	stack "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/neutron/cloudfault"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// echoPort is the port where pods answer.
const echoPort = 7777

// tenants are two tenants with one address range, with pods on two nodes, and their pairs.
type tenants struct {
	cluster *lab.Cluster
	kube    kubernetes.Interface
	ports   client.Client // of NeutronPorts
	admin   *openstack.Client
	pods    map[string]*lab.Pod
	echoes  []*traffic.Echo
	pairs   []traffic.Pair
}

// newTenants makes the tenants of deploy/examples/neutron, their pods, and a Service.
func newTenants(ctx context.Context, c *lab.Cluster) (*tenants, error) {
	t := &tenants{cluster: c, pods: map[string]*lab.Pod{}}
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	if t.kube, err = c.Client(); err != nil {
		return nil, err
	}
	if t.ports, err = client.New(config, client.Options{}); err != nil {
		return nil, err
	}
	if err := weftv1.AddToScheme(t.ports.Scheme()); err != nil {
		return nil, err
	}
	t.admin, err = openstack.New(ctx, conf.Global{
		AuthURL: c.OpenStack.AuthURL(), Username: stack.Admin, Password: stack.AdminPassword, TenantName: stack.Admin, Region: stack.Region,
	}, openstack.Options{Transport: c.OpenStack.Transport()})
	if err != nil {
		return nil, err
	}
	manifest := filepath.Join(c.Config.DeployDir, "examples", "neutron", "tenants.yaml")
	if _, err := probe.Run(ctx, c.Kubectl("apply", "-f", manifest)); err != nil {
		return nil, err
	}
	wait := c.Kubectl("wait", "--for=condition=Ready", "--timeout=180s", "tenants.stackube.kubernetes.io/blue", "tenants.stackube.kubernetes.io/red")
	if _, err := probe.Run(ctx, wait); err != nil {
		return nil, err
	}
	for _, pod := range []lab.PodSpec{
		{Namespace: "blue", Name: "a", Node: "n1"},
		{Namespace: "blue", Name: "b", Node: "n1"},
		{Namespace: "blue", Name: "c", Node: "n2"},
		{Namespace: "red", Name: "a", Node: "n1"},
		{Namespace: "red", Name: "c", Node: "n2"},
	} {
		if err := t.serve(ctx, pod); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	service, err := t.service(ctx)
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	t.pairs = []traffic.Pair{
		{Name: "blue, within a node", From: t.pods["blue/a"].Netns, To: t.at("blue/b")},
		{Name: "blue, across nodes", From: t.pods["blue/a"].Netns, To: t.at("blue/c")},
		{Name: "red, across nodes", From: t.pods["red/c"].Netns, To: t.at("red/a")},
		{Name: "blue, by a Service", From: t.pods["blue/c"].Netns, To: service},
		{Name: "the node to its pod", From: c.Node(1).Netns, To: t.at("blue/a")},
	}
	if err := t.reach(ctx); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *tenants) at(pod string) netip.AddrPort {
	return netip.AddrPortFrom(t.pods[pod].IPs[0], echoPort)
}

// start starts a pod. It makes the ServiceAccount, because this lab has no controller for these.
func (t *tenants) start(ctx context.Context, spec lab.PodSpec) (*lab.Pod, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := t.kube.CoreV1().ServiceAccounts(spec.Namespace).Create(ctx, account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	uid, err := t.cluster.MakeObject(ctx, spec)
	if err != nil {
		return nil, err
	}
	node, err := t.cluster.NodeNamed(spec.Node)
	if err != nil {
		return nil, err
	}
	var pod *lab.Pod
	// Neutron creates about one port in a second, and a crowd needs 100.
	_, err = probe.Await(ctx, 3*probe.Patience, "pod "+spec.Namespace+"/"+spec.Name, func(ctx context.Context) (err error) {
		if pod, err = node.Attach(ctx, spec, uid); err == nil {
			return nil
		}
		if pod != nil {
			err = errors.Join(err, probe.Detach(ctx, pod))
		}
		return err
	})
	return pod, err
}

// serve starts a permanent server pod.
func (t *tenants) serve(ctx context.Context, spec lab.PodSpec) error {
	pod, err := t.start(ctx, spec)
	if err != nil {
		return err
	}
	t.pods[spec.Namespace+"/"+spec.Name] = pod
	e, err := traffic.NewEcho(pod.Netns, netip.AddrPortFrom(pod.IPs[0], echoPort))
	if err != nil {
		return err
	}
	t.echoes = append(t.echoes, e)
	return nil
}

// fresh adds a pod, checks that the other node reaches it, and deletes it.
func (t *tenants) fresh(ctx context.Context, name string) (err error) {
	p, err := t.start(ctx, lab.PodSpec{Namespace: "blue", Name: name, Node: "n1"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.cluster.DelPod(ctx, p)) }()
	at := netip.AddrPortFrom(p.IPs[0], echoPort)
	e, err := traffic.NewEcho(p.Netns, at)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	patient, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	_, err = traffic.Ping(patient, t.pods["blue/c"].Netns, at)
	return err
}

// service makes a Service of tenant blue with its EndpointSlice, because this lab has no controller for these.
func (t *tenants) service(ctx context.Context) (netip.AddrPort, error) {
	made, err := t.kube.CoreV1().Services("blue").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "echo"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: echoPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(echoPort)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return netip.AddrPort{}, err
	}
	_, err = t.kube.DiscoveryV1().EndpointSlices("blue").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "echo", Labels: map[string]string{discoveryv1.LabelServiceName: "echo"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{t.pods["blue/b"].IPs[0].String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(echoPort)), Protocol: new(corev1.ProtocolUDP)}},
	}, metav1.CreateOptions{})
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr, err := netip.ParseAddr(made.Spec.ClusterIP)
	return netip.AddrPortFrom(addr, echoPort), err
}

// reach waits until every pair exchanges packets.
func (t *tenants) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	var errs []error
	for _, pair := range t.pairs {
		if _, err := traffic.Ping(ctx, pair.From, pair.To); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", pair.Name, err))
		}
	}
	return errors.Join(errs...)
}

// inventory returns OpenStack's inventory without the spare ports for pods, whose number follows the pods'.
func (t *tenants) inventory(ctx context.Context) (cloudfault.Inventory, error) {
	held, err := cloudfault.Take(ctx, t.admin)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(held, ahead), nil
}

// ahead reports whether a line of an inventory is a port that Weft made for pods.
func ahead(line string) bool {
	return strings.HasPrefix(line, "ports ") && strings.Contains(line, "description=weft ") && strings.Contains(line, " port/")
}

// matched compares Weft's ports in OpenStack with the NeutronPorts and with the ports of br-int: each must be in all three, once.
func (t *tenants) matched(ctx context.Context) error {
	var objects weftv1.NeutronPortList
	if err := t.ports.List(ctx, &objects); err != nil {
		return err
	}
	var named []string
	plugged := map[string][]string{}
	for i := range objects.Items {
		p := &objects.Items[i]
		named = append(named, p.Name)
		if p.Status.Plugged {
			plugged[p.Spec.Node] = append(plugged[p.Spec.Node], p.Name)
		}
	}
	held, err := cloudfault.Take(ctx, t.admin)
	if err != nil {
		return err
	}
	var made []string
	for _, line := range held {
		if ahead(line) {
			made = append(made, strings.TrimPrefix(strings.Fields(line)[1], "id="))
		}
	}
	errs := []error{same("OpenStack's ports and NeutronPorts", made, named)}
	for _, n := range t.cluster.Nodes() {
		bound, err := boundPorts(ctx, n)
		if err != nil {
			return err
		}
		errs = append(errs, same("ports of "+n.Name+"'s br-int and plugged NeutronPorts", bound, plugged[n.Name]))
	}
	return errors.Join(errs...)
}

func same(what string, a, b []string) error {
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		return fmt.Errorf("%s differ: %d %v and %d %v", what, len(a), a, len(b), b)
	}
	return nil
}

// census counts the pods' resources on each node, without those of spare ports, which remain for some time: patch ports, pre-plugged veth
// pairs (wp-), OVN's conntrack zones. It also counts the objects in OpenStack, by kind, without the ports for pods.
func (t *tenants) census(ctx context.Context) (map[string]probe.Counts, error) {
	census := map[string]probe.Counts{}
	for _, n := range t.cluster.Nodes() {
		var err error
		counts := probe.Counts{}
		for name, command := range map[string]string{
			"links": "ip -o link show", "routes": "ip route show", "flows of br-n": "ovs-ofctl -O OpenFlow15 --no-stats dump-flows br-n",
			"groups of br-n": "ovs-ofctl -O OpenFlow15 dump-groups br-n",
			"rules":          "nft -s list ruleset", "ports that are no patch ports": "ovs-vsctl -f csv --no-headings --columns=name find Interface type!=patch",
		} {
			out, err := probe.Run(ctx, n.Enter(strings.Fields(command)...))
			if err != nil {
				return nil, err
			}
			counts[name] = strings.Count(out, "\n") - strings.Count(out, "wp-")
		}
		for name, pattern := range map[string]string{"records": "/var/lib/weft/attachments/*", "namespaces": "/run/netns/*"} {
			files, err := filepath.Glob(n.Root(pattern))
			if err != nil {
				return nil, err
			}
			counts[name] = len(files)
		}
		if counts["ports with a pod"], err = t.attached(ctx, n.Name); err != nil {
			return nil, err
		}
		if counts["OVN's conntrack zones without a port of a pod"], err = zones(ctx, n); err != nil {
			return nil, err
		}
		census[n.Name] = counts
	}
	held, err := t.inventory(ctx)
	if err != nil {
		return nil, err
	}
	census["OpenStack"] = probe.Counts{}
	for _, line := range held {
		kind, _, _ := strings.Cut(line, " ")
		census["OpenStack"][kind]++
	}
	return census, nil
}

// attached counts the ports of a node on which the agent reports a pod.
func (t *tenants) attached(ctx context.Context, node string) (count int, err error) {
	var all weftv1.NeutronPortList
	if err := t.ports.List(ctx, &all); err != nil {
		return 0, err
	}
	for i := range all.Items {
		if p := &all.Items[i]; p.Spec.Node == node && p.Status.Pod != nil {
			count++
		}
	}
	return count, nil
}

// zones counts the conntrack zones that ovn-controller has assigned on a node, without one for each port of br-int for pods. Weft's own zones are
// those of the ports' numbers on the node: a port that was unplugged has none.
func zones(ctx context.Context, n lab.Node) (int, error) {
	assigned, err := probe.Run(ctx, n.Enter("ovs-vsctl", "--bare", "--columns=external_ids", "list", "Bridge", stack.Integration))
	if err != nil {
		return 0, err
	}
	bound, err := boundPorts(ctx, n)
	return strings.Count(assigned, "ct-zone-") - len(bound), err
}

// boundPorts returns the UUIDs of the ports for pods on a node's br-int.
func boundPorts(ctx context.Context, n lab.Node) ([]string, error) {
	out, err := probe.Run(ctx, n.Enter("ovs-vsctl", "--bare", "--columns=external_ids", "find", "Interface", "type=patch"))
	if err != nil {
		return nil, err
	}
	var bound []string
	for word := range strings.FieldsSeq(out) {
		if id, is := strings.CutPrefix(strings.Trim(word, `"`), "iface-id="); is {
			bound = append(bound, id)
		}
	}
	return bound, nil
}

// close ends the echoes; the pods are removed with the lab.
func (t *tenants) close() error {
	var errs []error
	for _, e := range t.echoes {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
