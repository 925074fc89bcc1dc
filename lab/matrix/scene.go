package matrix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
)

// ErrPods reports that there are too few pods to measure anything.
var ErrPods = errors.New("no pods to measure")

const (
	tun        = "tun0"        // the host's link to the pods
	cni        = "cni0"        // that of a flannel network
	tunnel     = "flannel.1"   // the tunnel device of a flannel network, whose address hosts use with pods elsewhere
	ownPods    = "weft-matrix" // the namespace of pods that the matrix makes
	recordsDir = "/var/lib/weft/attachments"
)

// scene is the parties of a measurement.
type scene struct {
	cluster  *lab.Cluster
	pods     []Party
	services []Party
	// projects are the pods of namespaces that are judged by policies, and world the objects that judge them.
	projects []Party
	world    oracle.World
	hosts    []Party
	outside  Party
	realms   []*realm                 // the pods' networks
	records  map[string]attach.Record // of the pods' attachments, by namespace/name
	underlay string                   // path of the namespace that connects the nodes

	responders []*responder
	made       []*lab.Pod
}

func openScene(ctx context.Context, c *lab.Cluster, o Options) (*scene, error) {
	s := &scene{cluster: c, realms: newRealms(c.Config.Network, c.Config.PluginName), records: map[string]attach.Record{}}
	if err := s.open(ctx, o); err != nil {
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *scene) open(ctx context.Context, o Options) error {
	st, err := lab.Inspect(ctx, s.cluster.Name())
	if err != nil {
		return err
	}
	s.underlay = st.UnderlayNS
	to, err := netip.ParseAddrPort(strings.Trim(strings.TrimPrefix(s.cluster.Outside.URL, "http://"), "/"))
	if err != nil {
		return fmt.Errorf("where the outside answers: %w", err)
	}
	s.outside = Party{Name: "outside", IP: to.Addr(), port: to.Port(), kind: outside, netns: s.cluster.Outside.Netns}
	for _, n := range s.cluster.Nodes() {
		if err := s.addHost(n); err != nil {
			return err
		}
	}
	if s.cluster.Config.Runtime == plan.RuntimeCNI {
		err = s.makePods(ctx)
	} else {
		err = s.findWorkload(ctx, o)
	}
	if err != nil {
		return err
	}
	return s.bindRecords()
}

func (s *scene) addHost(n lab.Node) error {
	r, err := respond(n.Netns, n.Name, 0)
	if err != nil {
		return err
	}
	s.responders = append(s.responders, r)
	s.hosts = append(s.hosts, Party{Name: n.Name, Node: n.Name, IP: n.IP, kind: host, netns: n.Netns, port: r.port, answers: n.Name})
	for _, r := range s.realms {
		if err := r.add(n, s.cluster.Config.Backend); err != nil {
			return err
		}
	}
	return nil
}

// gateway returns the host's address on a device.
func gateway(n lab.Node, tun string) (netip.Addr, error) {
	h, err := n.Space.Handle()
	if err != nil {
		return netip.Addr{}, err
	}
	defer h.Close()
	link, err := h.LinkByName(tun)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s of %s: %w (does Weft run there?)", tun, n.Name, err)
	}
	const ipv4 = 2 // AF_INET
	addrs, err := h.AddrList(link, ipv4)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("addresses of %s of %s: %w", tun, n.Name, err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			return ip.Unmap(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s of %s has no address yet", tun, n.Name)
}

// makePods starts the pods of a lab without kubelets: two on the first node, one on each other.
func (s *scene) makePods(ctx context.Context) error {
	if err := s.dropOwn(ctx); err != nil {
		return err
	}
	for i, n := range s.cluster.Nodes() {
		names := []string{"pod-" + n.Name}
		if i == 0 {
			names = append(names, "neighbour-"+n.Name)
		}
		for _, name := range names {
			if err := s.makePod(ctx, n, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropOwn removes the pods of an interrupted run.
func (s *scene) dropOwn(ctx context.Context) error {
	old, err := s.cluster.Pods(ctx)
	if err != nil {
		return err
	}
	for _, p := range old {
		if p.Namespace != ownPods {
			continue
		}
		if err := s.cluster.DelPod(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) makePod(ctx context.Context, n lab.Node, name string) error {
	p, err := s.cluster.AddPod(ctx, lab.PodSpec{Node: n.Name, Namespace: ownPods, Name: name})
	if p != nil && p.Sandbox.ID != "" {
		s.made = append(s.made, p)
	}
	if err != nil {
		return err
	}
	if len(p.IPs) == 0 {
		return fmt.Errorf("pod %s has no address", name)
	}
	r, err := respond(p.Netns, name, podPort)
	if err != nil {
		return err
	}
	s.responders = append(s.responders, r)
	s.pods = append(s.pods, Party{
		Name: name, Node: n.Name, IP: p.IPs[0], kind: pod, netns: p.Netns, port: podPort, answers: name, key: p.Namespace + "/" + name,
	})
	return nil
}

// findWorkload finds the ready pods of a namespace, which have servers, and its Services.
func (s *scene) findWorkload(ctx context.Context, o Options) error {
	k, err := s.cluster.Client()
	if err != nil {
		return err
	}
	if err := s.findPods(ctx, k, o); err != nil {
		return err
	}
	if err := s.findProjects(ctx, k); err != nil {
		return err
	}
	return s.findServices(ctx, k, o)
}

func (s *scene) findPods(ctx context.Context, k kubernetes.Interface, o Options) error {
	for _, namespace := range s.namespaces(o) {
		list, err := k.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: o.Selector})
		if err != nil {
			return fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			if party, ok := partyOf(&list.Items[i]); ok {
				s.pods = append(s.pods, party)
			}
		}
	}
	slices.SortFunc(s.pods, func(a, b Party) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) })
	if len(s.pods) == 0 {
		return fmt.Errorf("namespace %s: %w: kubectl apply -f deploy/examples/quickstart.yaml", o.Namespace, ErrPods)
	}
	return nil
}

// partyOf returns a ready pod as a party.
func partyOf(p *corev1.Pod) (Party, bool) {
	ip, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil || !ready(p) {
		return Party{}, false
	}
	party := Party{Name: p.Name, Node: p.Spec.NodeName, IP: ip, kind: pod, port: podPort, answers: p.Name, key: p.Namespace + "/" + p.Name}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.ContainerPort == podPort && port.Protocol == corev1.ProtocolTCP && port.HostPort != 0 {
				party.hostPort = uint16(port.HostPort) //nolint:gosec // the API server has checked it
			}
		}
	}
	return party, true
}

// namespaces returns the namespaces of the measured pods and Services: one for each network.
func (s *scene) namespaces(o Options) []string {
	if s.cluster.Config.Network == plan.NetworkBoth {
		return []string{o.Namespace, o.Namespace + "-flannel"}
	}
	return []string{o.Namespace}
}

// findServices finds the Services with one endpoint that is one of the pods: then it is clear which pod must answer, and which source it
// must see.
func (s *scene) findServices(ctx context.Context, k kubernetes.Interface, o Options) error {
	for _, namespace := range s.namespaces(o) {
		if err := s.findServicesOf(ctx, k, namespace); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) findServicesOf(ctx context.Context, k kubernetes.Interface, namespace string) error {
	list, err := k.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the Services of namespace %s: %w", namespace, err)
	}
	for _, svc := range list.Items {
		ip, err := netip.ParseAddr(svc.Spec.ClusterIP)
		if err != nil || len(svc.Spec.Ports) == 0 {
			continue // headless
		}
		behind, err := s.endpoints(ctx, k, &svc)
		if err != nil {
			return err
		}
		if len(behind) != 1 {
			continue
		}
		s.services = append(s.services, Party{
			Name: svc.Name, IP: ip, kind: service, port: uint16(svc.Spec.Ports[0].Port), answers: behind[0],
			name: svc.Name + "." + svc.Namespace + ".svc.cluster.local.",
		})
	}
	return nil
}

// endpoints returns the pods of the scene that are behind a Service.
func (s *scene) endpoints(ctx context.Context, k kubernetes.Interface, svc *corev1.Service) ([]string, error) {
	of := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + svc.Name}
	slicesOf, err := k.DiscoveryV1().EndpointSlices(svc.Namespace).List(ctx, of)
	if err != nil {
		return nil, fmt.Errorf("list the endpoints of Service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	var names []string
	for _, slice := range slicesOf.Items {
		for _, e := range slice.Endpoints {
			at := slices.IndexFunc(s.pods, func(p Party) bool { return slices.Contains(e.Addresses, p.IP.String()) })
			if at >= 0 {
				names = append(names, s.pods[at].Name)
			}
		}
	}
	return names, nil
}

func ready(p *corev1.Pod) bool {
	if p.Spec.HostNetwork || p.DeletionTimestamp != nil {
		return false
	}
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// bindRecords finds the pods' namespaces and links in the agents' attachment records.
func (s *scene) bindRecords() error {
	nodes := map[string]lab.Node{}
	for _, n := range s.cluster.Nodes() {
		nodes[n.Name] = n
		if err := s.readRecords(n); err != nil {
			return err
		}
	}
	for _, parties := range [][]Party{s.pods, s.projects} {
		for i, p := range parties {
			rec, ok := s.records[p.key]
			if !ok {
				return fmt.Errorf("pod %s: no attachment in %s of %s", p.key, recordsDir, p.Node)
			}
			// A runtime may name the namespace through /var/run, an absolute link that would lead out of the node's root.
			path := rec.Netns
			if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
				path = "/run/" + rest
			}
			parties[i].netns, parties[i].network = nodes[p.Node].Root(path), overlayNetwork
			if rec.Network == flannelNetwork {
				parties[i].network = flannelNetwork
			}
		}
	}
	return nil
}

func (s *scene) readRecords(n lab.Node) error {
	paths, err := filepath.Glob(n.Root(filepath.Join(recordsDir, "*.json")))
	if err != nil {
		return fmt.Errorf("list the attachments of %s: %w", n.Name, err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return fmt.Errorf("read the attachments of %s: %w", n.Name, err)
		}
		rec, err := attach.ParseRecord(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		// A restarted pod may have an older sandbox, which is being removed.
		key := rec.PodNamespace + "/" + rec.PodName
		if old, ok := s.records[key]; !ok || old.Created.Before(rec.Created) {
			s.records[key] = rec
		}
	}
	return nil
}

func (s *scene) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var errs []error
	for _, r := range s.responders {
		errs = append(errs, r.close())
	}
	for _, p := range s.made {
		errs = append(errs, s.cluster.DelPod(ctx, p))
	}
	return errors.Join(errs...)
}

// mac returns the hardware address of a link of a node.
func mac(n lab.Node, name string) (net.HardwareAddr, error) {
	h, err := n.Space.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("link %s of %s: %w", name, n.Name, err)
	}
	return link.Attrs().HardwareAddr, nil
}
