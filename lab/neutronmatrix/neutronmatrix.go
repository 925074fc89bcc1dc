// Package neutronmatrix measures, in a lab with an OpenStack, what the pods of the example (deploy/examples/neutron) reach, with the
// source address that the receiver sees: two tenants whose networks have the same range, pods on two nodes, and a pod of the cluster's
// network.
package neutronmatrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/addon"
	"weft.dev/weft/lab/matrix"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/reach"
)

// overlay is the pod of the cluster's own network.
const overlay = "default/overlay-pod"

// tenants are the example's; members are the pods of each: near is on the client's node, far on another.
func tenants() []string { return []string{"blue", "red"} }

func members() []string { return []string{"client", "near", "far"} }

const (
	webPort     = 80
	kubeletPort = 10250
	askPath     = "/clientip" // agnhost's netexec answers with the sender's address
	rootPath    = "/"         // and so does the lab's reporter
)

// tries is the maximum number of requests if one must arrive: a load balancer may lag behind its objects.
const tries = 20

// Run measures the connectivity. An error means that it could not be measured.
func Run(ctx context.Context, c *lab.Cluster) (*reach.Report, error) {
	k, err := c.Client()
	if err != nil {
		return nil, err
	}
	names := []string{overlay}
	for _, t := range tenants() {
		for _, m := range members() {
			names = append(names, t+"/"+m)
		}
	}
	pods, err := reach.Pods(ctx, c, k, names...)
	if err != nil {
		return nil, fmt.Errorf("%w: kubectl apply -f deploy/examples/neutron", err)
	}
	cloud, err := Read(ctx, c)
	if err != nil {
		return nil, err
	}
	s := &scene{cluster: c, pods: pods, services: map[string]netip.Addr{}, public: map[string]netip.Addr{}}
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := s.findServices(ctx, k); err != nil {
		return nil, err
	}
	for _, tenant := range tenants() {
		s.within(tenant)
		s.closed(tenant)
	}
	s.between()
	s.outside(cloud)
	report := reach.Measure(s.ways, tries)
	spoofed, err := reach.Spoof(pods["blue/client"], pods["blue/near"], netip.MustParseAddr("10.244.9.9"), net.HardwareAddr{0x0a, 0x58, 10, 244, 9, 9})
	if err != nil {
		return nil, err
	}
	report.Rows = append(report.Rows, spoofed...)
	return report, nil
}

// scene has the data for the rows.
type scene struct {
	cluster  *lab.Cluster
	pods     map[string]reach.Pod
	services map[string]netip.Addr
	public   map[string]netip.Addr // of Services of type LoadBalancer, from outside
	ways     []reach.Way
}

var errPlaces = errors.New("near must be on the client's node and far on another: are two nodes ready?")

// check compares the pods' nodes with the rows' assumptions.
func (s *scene) check() error {
	for _, t := range tenants() {
		client := s.pods[t+"/client"].Node.Name
		if s.pods[t+"/near"].Node.Name != client || s.pods[t+"/far"].Node.Name == client {
			return fmt.Errorf("pods of tenant %s: %w", t, errPlaces)
		}
	}
	return nil
}

func (s *scene) findServices(ctx context.Context, k kubernetes.Interface) error {
	for _, name := range []string{"blue/web", "red/web", "blue/public", "red/public", "default/overlay", "default/kubernetes"} {
		namespace, service, _ := strings.Cut(name, "/")
		object, err := k.CoreV1().Services(namespace).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
		for _, ingress := range object.Status.LoadBalancer.Ingress {
			if addr, err := netip.ParseAddr(ingress.IP); err == nil {
				s.public[name] = addr
			}
		}
		if s.services[name], err = netip.ParseAddr(object.Spec.ClusterIP); err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
	}
	return nil
}

// pod adds a path from a pod, with the expected source; zero: nothing may arrive.
func (s *scene) pod(name, from, to string, at netip.Addr, want netip.Addr) *reach.Way {
	s.ways = append(s.ways, reach.Way{
		Row: reach.Row{Name: name, From: from, To: to, Want: want}, Netns: s.pods[from].Netns, At: netip.AddrPortFrom(at, webPort), Path: askPath,
	})
	return &s.ways[len(s.ways)-1]
}

// within adds the paths of one tenant's pods that must work.
func (s *scene) within(tenant string) {
	client, near, far := tenant+"/client", tenant+"/near", tenant+"/far"
	ip := s.pods[client].IP
	s.pod("within a tenant, on the same node", client, near, s.pods[near].IP, ip)
	s.pod("within a tenant, on another node", client, far, s.pods[far].IP, ip)
	s.pod("within a tenant, back from the other node", far, client, s.pods[client].IP, s.pods[far].IP)
	web := s.services[tenant+"/web"]
	s.pod("the tenant's Service", client, "service "+tenant+"/web", web, ip)
	name := "web." + tenant + ".svc.cluster.local."
	byName := s.pod("the tenant's Service by cluster DNS", client, name, netip.Addr{}, ip)
	byName.Prepare = func() (netip.Addr, error) { return resolve(name, web) }
	api := s.pod("the API server's Service", client, "service default/kubernetes", s.services["default/kubernetes"], ip)
	api.At, api.Path = netip.AddrPortFrom(api.At.Addr(), 443), ""
	if s.cluster.Config.OpenStack == plan.OpenStackOVN {
		s.fromOutside(tenant)
	}
	for _, target := range []string{near, far} {
		node := s.pods[target].Node
		s.ways = append(s.ways, reach.Way{
			Row:   reach.Row{Name: "a node to its pod, as kubelet's probes", From: node.Name, To: target, Want: pipeline.HostAddress()},
			Netns: node.Netns, At: netip.AddrPortFrom(s.pods[target].IP, webPort), Path: askPath,
		})
	}
}

// fromOutside adds the path through the tenant's load balancer.
func (s *scene) fromOutside(tenant string) {
	public := reach.Way{
		Row:   reach.Row{Name: "from outside to the tenant's load balancer, by its floating IP", From: "external", To: s.public[tenant+"/public"].String(), Want: s.cluster.External.IP},
		Netns: s.cluster.External.Netns, At: netip.AddrPortFrom(s.public[tenant+"/public"], webPort), Path: askPath,
	}
	if !public.At.IsValid() {
		public.Problem = "service " + tenant + "/public has no address: kubectl -n " + tenant + " describe service public"
	}
	s.ways = append(s.ways, public)
}

var errName = errors.New("the name has other addresses")

func resolve(name string, want netip.Addr) (netip.Addr, error) {
	found, err := matrix.Resolve(addon.DNSAddress(), name)
	if err != nil {
		return netip.Addr{}, err
	}
	if !slices.Contains(found, want) {
		return netip.Addr{}, fmt.Errorf("%s: %w: %v, want %s", name, errName, found, want)
	}
	return want, nil
}

// closed adds the paths of a tenant's pods that must not work.
func (s *scene) closed(tenant string) {
	client, near := tenant+"/client", tenant+"/near"
	var none netip.Addr
	s.pod("from a tenant to the cluster's network", client, overlay, s.pods[overlay].IP, none)
	s.pod("from a tenant to a Service of the cluster's network", client, "service default/overlay", s.services["default/overlay"], none)
	s.pod("from the cluster's network to a tenant", overlay, near, s.pods[near].IP, none)
	s.pod("from the cluster's network to a tenant's Service", overlay, "service "+tenant+"/web", s.services[tenant+"/web"], none)
	node := s.pods[client].Node
	for _, to := range []struct {
		name string
		at   netip.Addr
	}{{"node " + node.Name, node.IP}, {"node " + node.Name + ", by its address for pods", pipeline.HostAddress()}} {
		way := s.pod("from a tenant to kubelet's port", client, to.name, to.at, none)
		way.At, way.Path = netip.AddrPortFrom(to.at, kubeletPort), ""
	}
}

// between adds the paths between tenants. A tenant may have a pod with the same address as the other's: only addresses that the sender's
// tenant does not have are used.
func (s *scene) between() {
	for _, t := range tenants() {
		for _, other := range tenants() {
			if t == other {
				continue
			}
			for _, m := range members() {
				if target := s.pods[other+"/"+m]; !s.has(t, target.IP) {
					s.pod("between tenants of one range", t+"/client", target.Name, target.IP, netip.Addr{})
				}
			}
			s.pod("between tenants, by the Service", t+"/client", "service "+other+"/web", s.services[other+"/web"], netip.Addr{})
		}
	}
}

func (s *scene) has(tenant string, ip netip.Addr) bool {
	for _, m := range members() {
		if s.pods[tenant+"/"+m].IP == ip {
			return true
		}
	}
	return false
}

// outside adds the path through the tenant's router.
func (s *scene) outside(cloud *Cloud) {
	router := cloud.RouterAddress("kube-blue-blue")
	if !router.IsValid() {
		s.ways = append(s.ways, reach.Way{Row: reach.Row{
			Name: "from a tenant to outside, by its router", From: "blue/client", Want: s.cluster.External.IP, Problem: "the router has no address outside",
		}})
		return
	}
	at, err := netip.ParseAddrPort(strings.Trim(strings.TrimPrefix(s.cluster.External.URL, "http://"), "/"))
	way := s.pod("from a tenant to outside, by its router", "blue/client", s.cluster.External.URL, at.Addr(), router)
	way.At, way.Path = at, rootPath
	if err != nil {
		way.Problem = err.Error()
	}
}
