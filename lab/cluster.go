package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/lab/stack/openstack"
)

// Cluster is a running lab, for clients.
type Cluster struct {
	Config     Config
	Kubeconfig string     // the administrator's, for use on the machine
	HostIP     netip.Addr // the machine's own address on the link to the lab
	Outside    Outside
	External   Outside    // with Config.VPC or Config.OpenStack: the host in the outside network of NAT gateways and floating IPs
	ControlIP  netip.Addr // of the API server on the underlay
	Datapath   plan.Datapath

	// OpenStack is the lab's running OpenStack, with Config.OpenStack; nil without.
	OpenStack *openstack.Stack

	lab   plan.Lab
	nodes []Node
}

// Outside is a namespace beyond the router: it has a route to the nodes' addresses and none to the cluster's networks.
type Outside struct {
	Space ground.Space // only for External
	Netns string       // path of the network namespace
	IP    netip.Addr   // 198.51.100.10
	// URL answers a GET with the request's source address. UDP on the same port answers the same.
	URL string
}

// Node is a node of a cluster.
type Node struct {
	Name   string
	IP     netip.Addr
	Netns  string // path of the network namespace
	RunDir string // the node's /run, from outside: openvswitch/db.sock, weft/..., netns/...
	Dir    string // the node's state, from outside: root/var/lib/weft, root/etc/cni/net.d, ...
	Space  ground.Space
}

// Root returns the machine's path of a path in the node.
func (n Node) Root(path string) string {
	return filepath.Join("/proc", strconv.Itoa(n.Space.Pid), "root", path)
}

// Enter returns the command that runs argv in the node's namespaces.
func (n Node) Enter(argv ...string) []string { return n.Space.Enter(argv...) }

// Open returns the cluster of a running lab.
func Open(ctx context.Context, name string) (*Cluster, error) {
	st, err := Inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	if st.Phase != report.Up {
		return nil, fmt.Errorf("lab %s is %s, not up: see `weft-lab status --name %s`", name, st.Phase, name)
	}
	l := plan.New(st.Config)
	hostIP, err := netip.ParseAddr(st.HostIP)
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", name, err)
	}
	c := &Cluster{
		Config: st.Config, Kubeconfig: st.Kubeconfig, HostIP: hostIP, ControlIP: l.ControlIP, Datapath: st.Datapath, lab: l,
		Outside: Outside{Netns: st.OutsideNS, IP: l.Outside.Host, URL: st.Outside},
	}
	if st.Config.HasExternal() {
		c.External = Outside{Netns: st.ExternalNS, IP: l.External.Host, URL: st.External, Space: space(st.ExternalSpace)}
	}
	if st.Config.OpenStack != "" {
		c.OpenStack = &openstack.Stack{Space: space(st.OpenStackSpace), Driver: st.Config.OpenStack, Dir: l.Path("os"), Addr: l.OpenStackIP, HostAddr: l.OpenStackIP}
	}
	for i, n := range st.Nodes {
		c.nodes = append(c.nodes, Node{
			Name: n.Name, IP: l.Node(i + 1).IP, Netns: n.Netns, RunDir: n.RunDir, Dir: n.Dir,
			Space: ground.Space{Name: n.Space, Pid: n.Holder},
		})
	}
	return c, nil
}

func space(s report.Space) ground.Space { return ground.Space{Name: s.Name, Pid: s.Holder} }

// Name returns the lab's name.
func (c *Cluster) Name() string { return c.Config.Name }

// Nodes lists the nodes in order.
func (c *Cluster) Nodes() []Node { return c.nodes }

// Node returns node i, counted from 1; it panics if there is none.
func (c *Cluster) Node(i int) Node { return c.nodes[i-1] }

// NodeNamed finds a node by its name.
func (c *Cluster) NodeNamed(name string) (Node, error) {
	for _, n := range c.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("lab %s has no node %q: it has n1 to n%d", c.Name(), name, len(c.nodes))
}

// Programs returns the state of all programs of the lab: PID, restarts, log.
func (c *Cluster) Programs(ctx context.Context) ([]process.Status, error) {
	st, err := Inspect(ctx, c.Name())
	return st.Programs, err
}

// Crashed returns an error that names the programs that crashed, including the lab's supervisor.
func (c *Cluster) Crashed(ctx context.Context) error {
	st, err := Inspect(ctx, c.Name())
	if err != nil {
		return err
	}
	if st.Phase == report.Dead {
		return fmt.Errorf("the supervisor of lab %s is gone; its log is in %s", c.Name(), st.LogDir)
	}
	var errs []error
	for _, p := range st.Programs {
		if p.Crash != "" {
			errs = append(errs, fmt.Errorf("%s crashed: %s", p.Name, p.Crash))
		}
	}
	return errors.Join(errs...)
}

// Kubectl returns the command that runs kubectl with the lab's API server.
func (c *Cluster) Kubectl(args ...string) []string {
	kubectl := filepath.Join(KubernetesBin(c.Config), "kubectl")
	return append([]string{"env", "NO_PROXY=*", kubectl, "--kubeconfig=" + c.Kubeconfig}, args...)
}

// Down takes the lab down.
func (c *Cluster) Down(ctx context.Context) error { return Down(ctx, c.Name(), nil) }

// Enter returns the command that runs argv on a node, or in one of the lab's own namespaces: control, outside, underlay, external.
func Enter(st report.Status, where string, argv []string) ([]string, error) {
	for _, n := range st.Nodes {
		if n.Name == where && n.Holder != 0 {
			return ground.Space{Name: n.Space, Pid: n.Holder}.Enter(argv...), nil
		}
	}
	own := map[string]string{"control": st.ControlNS, "outside": st.OutsideNS, "underlay": st.UnderlayNS, "external": st.ExternalNS}
	if path := own[where]; path != "" {
		return append([]string{"nsenter", "--net=" + path, "--"}, argv...), nil
	}
	return nil, fmt.Errorf("lab %s has no node %q: it has n1 to n%d, and control, outside, underlay, external (with --vpc or --openstack)", st.Name, where, len(st.Nodes))
}

// KubernetesBin returns the directory with the lab's kubectl, or "".
func KubernetesBin(cfg Config) string {
	dir, err := kubebuild.Folder(cfg.KubernetesModule)
	if err != nil {
		return ""
	}
	return dir
}
