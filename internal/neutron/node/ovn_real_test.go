//go:build real

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/placement"
)

// site has a cluster's nodes on a real OVN, whose rows the test writes.
type site struct {
	*ovntest.Site
	t     *testing.T
	nodes []*served
}

// served is a node with an agent's part for this network.
type served struct {
	*machine
	*Network
	handler *lifecycle.Handler
	chassis *ovntest.Chassis
}

// newSite starts the nodes.
func newSite(t *testing.T, nodes int) *site {
	t.Helper()
	return &site{Site: ovntest.NewSite(t, nodes), t: t}
}

// serve starts the network on all nodes.
func (s *site) serve() {
	s.t.Helper()
	boot, err := attach.ReadBootID()
	must(s.t, err)
	for _, c := range s.Chassis {
		m := &machine{Switch: c.Switch, name: c.Name, boot: boot, ports: portsSpace(s.t)}
		n, stop := m.serve(s.t, filepath.Join(s.t.TempDir(), "attachments"))
		n.chassis = c
		s.t.Cleanup(stop)
		s.nodes = append(s.nodes, n)
	}
	for _, n := range s.nodes {
		eventually(s.t, n.name+" is ready", n.Ready)
		got := n.reported.Load()
		if got == nil || got.Neutron.Hostname != n.name || got.Neutron.Datapath != ovstest.Datapath || len(got.Neutron.Problems) > 0 {
			s.t.Errorf("the section of %s: %+v", n.name, got)
		}
	}
}

// serve starts an agent's part for this network with the records in dir. stop ends it.
func (m *machine) serve(t *testing.T, dir string) (n *served, stop func()) {
	t.Helper()
	n = &served{machine: m}
	store, err := attach.Open(dir)
	must(t, err)
	n.handler = lifecycle.New(store, lifecycle.Options{
		BootID: m.boot, Default: func() (string, error) { return Name, nil }, Waiting: func() string { return "the test" },
		Place: func(_ context.Context, req *cni.Request) (placement.Decision, error) {
			return placement.Decision{Network: Name, Part: req.Args.PodNamespace}, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	n.Network = n.life(ctx, t, n.handler.Records(Name))
	leave := n.handler.Serve(Name, n.Network, n.HandedOver())
	var group sync.WaitGroup
	group.Go(func() { _ = n.handler.Run(ctx) })
	group.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return n, sync.OnceFunc(func() {
		cancel()
		group.Wait()
		leave()
		_ = store.Close()
	})
}

// network creates a tenant's network, in Kubernetes and in OVN.
func (s *site) network(name string) *stackubev1.Network {
	s.t.Helper()
	s.Nbctl("ls-add", name, "--", "lr-add", name+"-r", "--", "lrp-add", name+"-r", name+"-rp", "fa:16:3e:00:00:01", "10.244.0.1/16",
		"--", "lsp-add", name, name+"-sp", "--", "lsp-set-type", name+"-sp", "router", "--", "lsp-set-addresses", name+"-sp", "router",
		"--", "lsp-set-options", name+"-sp", "router-port="+name+"-rp")
	return tenant(s.t, name)
}

// port creates a port on a node, in OVN with port security and in Kubernetes.
func (s *site) port(n *stackubev1.Network, node, tag, number int) portOf {
	s.t.Helper()
	p := portOf{network: n, node: s.Chassis[node].Name, tag: tag, number: number}
	s.Nbctl("lsp-add", n.Name, p.uuid(), "--", "lsp-set-addresses", p.uuid(), p.mac()+" "+p.address(),
		"--", "lsp-set-port-security", p.uuid(), p.mac()+" "+p.address())
	p.create(s.t)
	return p
}

func (n *served) request(command cni.Command, namespace, name, netns string) *cni.Request {
	return &cni.Request{
		Command: command, ContainerID: "sandbox-" + namespace + "-" + name, IfName: "eth0", Netns: netns,
		Args: cni.Args{PodNamespace: namespace, PodName: name, PodUID: "uid-" + name}, NetConf: &cni.NetConf{},
	}
}

// add attaches a pod, and returns it with its address.
func (n *served) add(t *testing.T, namespace, name string) (*ovntest.Pod, string) {
	t.Helper()
	pod, result := n.attach(t, namespace, name, "uid-"+name)
	return pod, result.IPs[0].Address.IP.String()
}

// attach attaches a pod of a UID, and returns it with the answer.
func (n *served) attach(t *testing.T, namespace, name, uid string) (*ovntest.Pod, *types100.Result) {
	t.Helper()
	pod := ovntest.NewPod(t)
	request := n.request(cni.CommandAdd, namespace, name, pod.ProcPath())
	request.Args.PodUID = uid
	result, err := n.handler.Add(t.Context(), request)
	must(t, err)
	pod.Device = name
	return pod, result
}

func (n *served) del(t *testing.T, namespace, name string) {
	t.Helper()
	must(t, n.handler.Del(t.Context(), n.request(cni.CommandDel, namespace, name, "")))
}

// reaches waits until a pod reaches an address.
func reaches(t *testing.T, pod *ovntest.Pod, address string) {
	t.Helper()
	eventually(t, pod.Device+" reaches "+address, func() error {
		if !pod.Ping(address, "") {
			return errors.New("no answer")
		}
		return nil
	})
}

// silent fails the test if the node itself reaches an address.
func (n *served) silent(t *testing.T, address string) {
	t.Helper()
	if _, err := ovntest.Try(n.NetNS, "ping", "-n", "-q", "-c", "1", "-W", "1", address); err == nil {
		t.Errorf("%s answers on %s after its pod is gone", address, n.name)
	}
}

// pings reports whether the node itself reaches an address.
func (n *served) pings(address string) error {
	out, err := ovntest.Try(n.NetNS, "ping", "-n", "-q", "-c", "1", "-W", "30", address)
	if err != nil {
		return fmt.Errorf("%w: %s\n%s", err, out, n.flowsOf())
	}
	return nil
}

// Pods of two tenants with equal addresses, on two nodes, over real OVN: within a tenant they reach each other on the same node and across
// nodes, nothing passes between tenants, and each node reaches its pods.
func TestTenantsOnOVN(t *testing.T) {
	s := newSite(t, 2)
	blue, red := s.network("blue"), s.network("red")
	for node := range 2 {
		// The addresses of both tenants are equal, but on different nodes: node 1 has 1 and 2 of blue and 3 and 4 of red.
		for number := range 2 {
			s.port(blue, node, 1, 1+2*node+number)
			s.port(red, node, 2, 1+2*(1-node)+number)
		}
	}
	s.serve()
	type attached struct {
		*ovntest.Pod
		address, tenant string
		node            *served
	}
	var pods []attached
	for i, n := range s.nodes {
		for _, tenant := range []string{"blue", "red"} {
			for k := range 2 {
				pod, address := n.add(t, tenant, fmt.Sprintf("%s-%d-%d", tenant, i, k))
				pods = append(pods, attached{pod, address, tenant, n})
			}
		}
	}
	for _, a := range pods {
		must(t, a.node.pings(a.address))
	}
	for _, a := range pods {
		for _, b := range pods {
			if a.tenant == b.tenant && a.address != b.address {
				reaches(t, a.Pod, b.address)
			}
		}
	}
	// Red's pods on the first node are removed: red's others do not reach their addresses any more, although pods of blue have the same.
	for k := range 2 {
		s.nodes[0].del(t, "red", fmt.Sprintf("red-0-%d", k))
	}
	for _, gone := range pods {
		if gone.tenant != "red" || gone.node != s.nodes[0] {
			continue
		}
		gone.node.silent(t, gone.address)
		for _, a := range pods {
			switch {
			case a.node == gone.node && a.tenant == "red":
			case a.tenant == "red" && a.Ping(gone.address, ""):
				t.Errorf("%s reaches %s, which only another tenant has", a.Device, gone.address)
			case a.tenant == "blue" && a.address != gone.address:
				reaches(t, a.Pod, gone.address)
			}
		}
	}
	eventually(t, "the ports without pods are reported as free", func() error {
		var list weftv1.NeutronPortList
		must(t, api(t).List(t.Context(), &list))
		for _, p := range list.Items {
			busy := p.Spec.Network.Name == "blue" || p.Spec.Node != s.nodes[0].name
			if !p.Status.Plugged || busy != (p.Status.Pod != nil) || busy == (p.Status.ReleasedAt != nil) {
				return fmt.Errorf("port %s of %s: %+v", p.Name, p.Spec.Network.Name, p.Status)
			}
		}
		return nil
	})
}

// A port that a pod has left is used again only once ovn-controller has bound it again, whatever Neutron reported before: without, a pod
// would start and reach nothing.
func TestPortIsBoundAgain(t *testing.T) {
	s := newSite(t, 1)
	blue := s.network("blue")
	s.port(blue, 0, 1, 1)
	s.serve()
	n := s.nodes[0]
	n.add(t, "blue", "a")
	n.chassis.StopController()
	n.del(t, "blue", "a")
	eventually(t, "the port is plugged again", func() error {
		if all, inactive := n.Network.ports.Count(string(blue.UID)); inactive != 1 {
			return fmt.Errorf("%d of %d ports are not bound", inactive, all)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := n.Plan(ctx, n.request(cni.CommandAdd, "blue", "b", ""), placement.Decision{Network: Name, Part: "blue"}, attach.InUse{})
	if cni.AsError(err).Code != cni.CodeTryAgainLater || !strings.Contains(err.Error(), "it has 1, 1 of them not ACTIVE, or not bound") {
		t.Errorf("ADD on a port that is not bound: %v", err)
	}
	n.chassis.StartController(t)
	_, address := n.add(t, "blue", "b")
	must(t, n.pings(address))
}

// Pairs that were deleted by hand are built anew. An ADD gets a port that works, also if all pairs are missing, and also if it is repeated
// for a pod whose pair is gone.
func TestMissingPairs(t *testing.T) {
	s := newSite(t, 1)
	blue := s.network("blue")
	for number := range 3 {
		s.port(blue, 0, 1, 1+number)
	}
	s.serve()
	n := s.nodes[0]
	pairs := func() (names []string) {
		out, err := ovntest.Try(n.NetNS, "ip", "-o", "link", "show", "type", "veth")
		must(t, err)
		for line := range strings.SplitSeq(out, "\n") {
			if _, after, is := strings.Cut(line, ": wp-"); is {
				number, _, _ := strings.Cut(after, "@")
				names = append(names, "wp-"+number)
			}
		}
		return names
	}
	eventually(t, "each port has a pair", func() error {
		if all, inactive := n.Network.ports.Count(string(blue.UID)); len(pairs()) != 3 || all != 3 || inactive != 0 {
			return fmt.Errorf("pairs %v of %d ports, %d inactive", pairs(), all, inactive)
		}
		return nil
	})
	for _, name := range pairs() {
		ovntest.Run(t, n.NetNS, "ip", "link", "del", name)
	}
	pod := ovntest.NewPod(t)
	request := n.request(cni.CommandAdd, "blue", "a", pod.ProcPath())
	for range 2 {
		result, err := n.handler.Add(t.Context(), request)
		must(t, err)
		must(t, n.pings(result.IPs[0].Address.IP.String()))
		ovntest.Run(t, n.NetNS, "ip", "link", "del", result.Interfaces[0].Name)
	}
	n.del(t, "blue", "a")
	eventually(t, "each port has a pair again", func() error {
		if all, inactive := n.Network.ports.Count(string(blue.UID)); len(pairs()) != 3 || all != 3 || inactive != 0 {
			return fmt.Errorf("pairs %v of %d ports, %d inactive", pairs(), all, inactive)
		}
		return nil
	})
}

// A port that its controller deletes is unplugged once its pod is removed, and not before.
func TestDeletedPort(t *testing.T) {
	s := newSite(t, 1)
	blue := s.network("blue")
	p := s.port(blue, 0, 1, 1)
	c := api(t)
	object := &weftv1.NeutronPort{}
	must(t, c.Get(t.Context(), client.ObjectKey{Name: p.uuid()}, object))
	object.Finalizers = []string{weftv1.NeutronPortFinalizer}
	must(t, c.Update(t.Context(), object))
	t.Cleanup(func() {
		_ = c.Patch(context.Background(), object, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	})
	s.serve()
	n := s.nodes[0]
	_, address := n.add(t, "blue", "a")
	must(t, c.Delete(t.Context(), object))
	eventually(t, "the deletion is seen", func() error {
		return c.Get(t.Context(), client.ObjectKeyFromObject(object), object)
	})
	must(t, n.pings(address))
	eventually(t, "the status names the pod", func() error {
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), object))
		if object.Status.Pod == nil || !object.Status.Plugged {
			return fmt.Errorf("status of a port with a pod: %+v", object.Status)
		}
		return nil
	})
	n.del(t, "blue", "a")
	eventually(t, "the port is unplugged", func() error {
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), object))
		if object.Status.Plugged || object.Status.Pod != nil {
			return fmt.Errorf("status %+v", object.Status)
		}
		return nil
	})
	if ports := n.VSCtl("list-ports", "br-int"); strings.Contains(ports, "wi") {
		t.Errorf("ports of br-int: %s", ports)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	if _, err := n.Plan(ctx, n.request(cni.CommandAdd, "blue", "b", ""), placement.Decision{Network: Name, Part: "blue"}, attach.InUse{}); cni.AsError(err).Code != cni.CodeTryAgainLater {
		t.Errorf("ADD without a port: %v", err)
	}
}
