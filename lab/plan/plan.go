// Package plan derives everything about a lab from its configuration: names of namespaces and links, directories, addresses, ports. It is
// pure: it reads nothing and changes nothing. So a killed lab can be found by its name alone, and two labs with different names never
// conflict.
package plan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Directories of labs. Both are removed with the last lab.
const (
	StateRoot = "/var/lib/weft-lab" // what must survive a reboot for the cleanup: data, logs, keys
	RunRoot   = "/run/weft-lab"     // sockets, pid files, the nodes' own /run
)

// MaxNodes is the maximum number of nodes: the underlay is a /24 whose upper addresses belong to the lab itself.
const MaxNodes = 64

// LinkGroup is the link group of every underlay port of a userspace bridge. What a node's kernel receives on a link of this group is
// dropped, because the switch reads the same frames by its own packet socket.
const LinkGroup = 77

// DefaultMTU is the underlay's MTU in bytes.
const DefaultMTU = 1500

// Datapath selects Open vSwitch's forwarding path on the nodes.
type Datapath string

// The datapaths. DatapathAuto uses the kernel's if the openvswitch module is loaded, otherwise the userspace one.
const (
	DatapathAuto   Datapath = "auto"
	DatapathSystem Datapath = "system"
	DatapathNetdev Datapath = "netdev"
)

// Runtime selects the program that starts pods.
type Runtime string

// The runtimes.
const (
	RuntimeCNI     Runtime = "cni"     // pods are namespaces, attached through libcni as a container runtime does; no kubelet
	RuntimeKubelet Runtime = "kubelet" // containerd, kubelet and kube-proxy on every node
)

// Network selects the networks of a lab's cluster.
type Network string

// The networks. With NetworkBoth the overlay is the default one, and pods are on flannel by annotation.
const (
	NetworkOverlay Network = "overlay"
	NetworkFlannel Network = "flannel"
	NetworkBoth    Network = "both"
)

// Flannel reports whether there is a flannel network.
func (n Network) Flannel() bool { return n == NetworkFlannel || n == NetworkBoth }

// Store selects where the nodes of a flannel network keep their leases.
type Store string

// The stores. With StoreEtcd, the nodes without flanneld run `weft flanneld` and Weft's plugin, not the agent, and the control plane has an
// etcd for leases beside the API server's.
const (
	StoreKube Store = "kube"
	StoreEtcd Store = "etcd"
)

// Config is the configuration of a lab.
type Config struct {
	Name     string   `json:"name"`     // 1 to 12 of [a-z0-9-]; default "lab"
	Nodes    int      `json:"nodes"`    // 1 to MaxNodes; default 2
	Runtime  Runtime  `json:"runtime"`  // default RuntimeCNI
	Datapath Datapath `json:"datapath"` // default DatapathAuto
	NoWeft   bool     `json:"noWeft"`   // start everything else, without Weft's own programs
	// KubeProxy runs kube-proxy on every node also with RuntimeCNI; with RuntimeKubelet it always runs.
	KubeProxy bool `json:"kubeProxy"`
	// NoSwitch leaves Open vSwitch out of the nodes: Weft's manifest starts it, in pods. Runtime kubelet only. On the userspace datapath the
	// nodes' addresses are then on no bridge, so that there are no tunnels: pods reach only those of their own node.
	NoSwitch bool `json:"noSwitch"`
	// VPC adds OVN, an outside network for NAT gateways with a host in it, and a link into it on every node. With RuntimeKubelet OVN runs in
	// pods of Weft's manifest, with RuntimeCNI as plain processes.
	VPC bool `json:"vpc"`
	// OpenStack adds an OpenStack whose Neutron serves the nodes, and an outside network for its routers and floating IPs with a host in it:
	// OpenStackOVN or OpenStackOpenVSwitch, the drivers of Neutron's networks. Empty: none.
	OpenStack string `json:"openstack,omitempty"`
	// Network is the pods' network; default NetworkOverlay.
	Network Network `json:"network"`
	// Backend is the flannel network's backend, default vxlan.
	Backend string `json:"backend"`
	// Flanneld are the nodes that run the original flanneld and its plugin in place of Weft, separated by commas: "n2,n3". Network flannel
	// and runtime cni only.
	Flanneld string `json:"flanneld"`
	// FlannelStore is where nodes of the flannel network keep their leases; default StoreKube. StoreEtcd: network flannel and runtime
	// cni only.
	FlannelStore Store `json:"flannelStore,omitempty"`
	// NoPortmap leaves portmap out of the flannel network's list of plugins: Weft's agent serves host ports. Nodes with Flanneld have none.
	NoPortmap bool `json:"noPortmap,omitempty"`
	// DualStack gives nodes and pods of a flannel network IPv6 addresses too. Network flannel and runtime cni only.
	DualStack bool `json:"dualStack,omitempty"`
	// WeftBin is the directory with weft, weft-cni and weft-lab. Default: the directory of the running program.
	WeftBin string `json:"weftBin"`
	// DeployDir is the directory with Weft's manifests (the project's deploy/). Default: deploy/ beside or above WeftBin.
	DeployDir string `json:"deployDir"`
	// KubernetesModule is the directory of the go.mod from which Kubernetes' programs are built. Default: lab/kubernetes beside or above
	// WeftBin. It is read only for the version, and if a program is not in the cache.
	KubernetesModule string `json:"kubernetesModule"`
	// PluginName is ClusterNetwork's pluginName; default redhat/openshift-ovs-subnet.
	PluginName string `json:"pluginName"`
	// HostSubnetLength is ClusterNetwork's hostSubnetLength: the number of address bits for the pods of a node; default 9.
	HostSubnetLength int `json:"hostSubnetLength"`
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?$`) //nolint:gochecknoglobals // a constant: the form of a name

// ErrName reports an invalid name of a lab.
var ErrName = errors.New("a lab's name is 1 to 12 characters of a-z, 0-9 and '-', and starts and ends with a letter or digit")

// CheckName checks a lab's name: it becomes part of link names, which the kernel limits to 15 bytes.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%q: %w", name, ErrName)
	}
	return nil
}

// Default sets empty fields to their defaults and refuses invalid values.
func (c Config) Default() (Config, error) {
	if c.Name == "" {
		c.Name = "lab"
	}
	if c.Nodes == 0 {
		c.Nodes = 2
	}
	if c.Runtime == "" {
		c.Runtime = RuntimeCNI
	}
	if c.Datapath == "" {
		c.Datapath = DatapathAuto
	}
	if c.Network == "" {
		c.Network = NetworkOverlay
	}
	if c.Backend == "" && c.Network.Flannel() {
		c.Backend = "vxlan"
	}
	if c.FlannelStore == "" && c.Network.Flannel() {
		c.FlannelStore = StoreKube
	}
	if c.PluginName == "" {
		c.PluginName = "redhat/openshift-ovs-subnet"
	}
	if c.HostSubnetLength == 0 {
		c.HostSubnetLength = 9
	}
	return c, c.check()
}

// The OpenStacks, by the ML2 mechanism driver of their Neutron.
const (
	// OpenStackOVN has OVN, and Octavia.
	OpenStackOVN = "ovn"
	// OpenStackOpenVSwitch has neutron-openvswitch-agent on every node, neutron-l3-agent on the first one, RabbitMQ, and no Octavia: its
	// provider for such networks needs virtual machines.
	OpenStackOpenVSwitch = "openvswitch"
)

func (c Config) checkOpenStack() error {
	switch {
	case c.OpenStack == "":
		return nil
	case c.OpenStack != OpenStackOVN && c.OpenStack != OpenStackOpenVSwitch:
		return fmt.Errorf("OpenStack %q: use %s or %s", c.OpenStack, OpenStackOVN, OpenStackOpenVSwitch)
	case c.VPC:
		return errors.New("VPCs and OpenStack each program br-int of the nodes: leave one of the two out")
	case c.NoSwitch || c.Network == NetworkFlannel:
		return errors.New("ports of Neutron are on the nodes' own switches: leave nodes without a switch out")
	}
	return nil
}

// VXLANPort returns the UDP port of the overlay's tunnels. neutron-openvswitch-agent has tunnels to the same nodes at the usual port, which
// a switch prefers to those whose remote address is in flows.
func (c Config) VXLANPort() int {
	const usual, other = 4789, 4800
	if c.OpenStack == OpenStackOpenVSwitch {
		return other
	}
	return usual
}

// HasExternal reports whether the lab has the outside network of NAT gateways and floating IPs.
func (c Config) HasExternal() bool { return c.VPC || c.OpenStack != "" }

func (c Config) check() error {
	if err := CheckName(c.Name); err != nil {
		return err
	}
	if c.Nodes < 1 || c.Nodes > MaxNodes {
		return fmt.Errorf("a lab has 1 to %d nodes, not %d", MaxNodes, c.Nodes)
	}
	if c.Runtime != RuntimeCNI && c.Runtime != RuntimeKubelet {
		return fmt.Errorf("runtime %q: use %s or %s", c.Runtime, RuntimeCNI, RuntimeKubelet)
	}
	if err := c.checkNetwork(); err != nil {
		return err
	}
	if c.VPC && c.NoSwitch {
		return errors.New("VPCs need tunnels, and nodes without a switch of their own have none: leave one of the two out")
	}
	if err := c.checkOpenStack(); err != nil {
		return err
	}
	if c.NoSwitch && c.Runtime != RuntimeKubelet {
		return fmt.Errorf("nodes without a switch of their own get one in pods: use runtime %s", RuntimeKubelet)
	}
	switch c.Datapath {
	case DatapathAuto, DatapathSystem, DatapathNetdev:
		return nil
	}
	return fmt.Errorf("datapath %q: use %s, %s or %s", c.Datapath, DatapathAuto, DatapathSystem, DatapathNetdev)
}

func (c Config) checkNetwork() error {
	switch {
	case c.Network != NetworkOverlay && c.Network != NetworkFlannel && c.Network != NetworkBoth:
		return fmt.Errorf("network %q: use %s, %s or %s", c.Network, NetworkOverlay, NetworkFlannel, NetworkBoth)
	case c.Backend != "" && !c.Network.Flannel():
		return fmt.Errorf("backend %q: a lab with network %s has none", c.Backend, c.Network)
	case c.Network == NetworkFlannel && (c.VPC || c.NoSwitch):
		return fmt.Errorf("nodes of network %s have no switch: leave VPCs and switches in pods out", NetworkFlannel)
	case c.Flanneld != "" && (c.Network != NetworkFlannel || c.Runtime != RuntimeCNI):
		return fmt.Errorf("nodes with flanneld: use network %s and runtime %s", NetworkFlannel, RuntimeCNI)
	}
	return errors.Join(c.checkFlannel(), c.checkFlanneld())
}

// checkFlannel refuses settings that a flannel network does not support.
func (c Config) checkFlannel() error {
	alone := c.Network == NetworkFlannel && c.Runtime == RuntimeCNI
	switch {
	case c.FlannelStore != "" && c.FlannelStore != StoreKube && c.FlannelStore != StoreEtcd:
		return fmt.Errorf("store %q of flannel's leases: use %s or %s", c.FlannelStore, StoreKube, StoreEtcd)
	case c.FlannelStore != "" && !c.Network.Flannel():
		return fmt.Errorf("store %s of flannel's leases: a lab with network %s has none", c.FlannelStore, c.Network)
	case c.FlannelStore == StoreEtcd && !alone:
		return fmt.Errorf("leases in etcd: use network %s and runtime %s", NetworkFlannel, RuntimeCNI)
	case c.NoPortmap && !c.Network.Flannel():
		return fmt.Errorf("no portmap: a lab with network %s has none", c.Network)
	case c.DualStack && !alone:
		return fmt.Errorf("IPv6 beside IPv4: use network %s and runtime %s", NetworkFlannel, RuntimeCNI)
	}
	return nil
}

func (c Config) checkFlanneld() error {
	for _, name := range c.flanneldNodes() {
		index, err := strconv.Atoi(strings.TrimPrefix(name, "n"))
		if err != nil || !strings.HasPrefix(name, "n") || index < 1 || index > c.Nodes {
			return fmt.Errorf("nodes with flanneld: %q is not one of n1 to n%d", name, c.Nodes)
		}
	}
	return nil
}

func (c Config) flanneldNodes() []string {
	if c.Flanneld == "" {
		return nil
	}
	return strings.Split(c.Flanneld, ",")
}

// RunsFlanneld reports whether a node runs the original flanneld in place of Weft.
func (c Config) RunsFlanneld(node string) bool { return slices.Contains(c.flanneldNodes(), node) }

// Lab has the names and addresses of one lab. Node addresses are the same in every lab: each has its own underlay.
type Lab struct {
	Config
	Dir    string // under StateRoot
	RunDir string // under RunRoot
	Cgroup string // below the root of each cgroup hierarchy
	MTU    int

	Underlay  netip.Prefix // nodes, control plane and router
	Router    netip.Addr   // the nodes' default gateway
	ControlIP netip.Addr   // of the API server on the underlay
	Outside   Segment      // has routes to nodes, and to nothing of the cluster's
	External  Segment      // with VPC or OpenStack: the outside network that the nodes' second links are in

	OpenStackIP netip.Addr // with OpenStack: its address on the underlay
	Floating    Range      // with OpenStack: the addresses of External that Neutron gives to routers and floating IPs

	ClusterCIDR  netip.Prefix
	FlannelCIDR  netip.Prefix // of the pods of a flannel network; the nodes' podCIDRs are in it
	IPv6         IPv6         // of a flannel network; used with DualStack
	ServiceCIDR  netip.Prefix
	APIServiceIP netip.Addr // the Service default/kubernetes
	APIPort      int

	HostLink string // the root namespace's end of the link to the control plane
}

// Segment is a network behind the router, with one host.
type Segment struct {
	Net     netip.Prefix
	Gateway netip.Addr // the router's
	Host    netip.Addr
}

// Reporter returns the address of the reporter on the segment's host, for TCP and UDP.
func (s Segment) Reporter() netip.AddrPort {
	const port = 8080
	return netip.AddrPortFrom(s.Host, port)
}

// Range is the addresses from First to Last.
type Range struct{ First, Last netip.Addr }

// IPv6 has the IPv6 ranges of a lab.
type IPv6 struct {
	Underlay netip.Prefix // of the nodes' addresses
	// Router is the nodes' default gateway, by which flannel finds the interface. No router uses the address. Invalid without DualStack.
	Router  netip.Addr
	Flannel netip.Prefix // of the pods of a flannel network
}

// New derives a lab from a configuration returned by Default.
func New(c Config) Lab {
	l := Lab{
		Config: c,
		Dir:    filepath.Join(StateRoot, c.Name), RunDir: filepath.Join(RunRoot, c.Name), Cgroup: "wl-" + c.Name,
		MTU:      DefaultMTU,
		Underlay: netip.MustParsePrefix("172.31.0.0/24"), Router: netip.MustParseAddr("172.31.0.254"),
		ControlIP: netip.MustParseAddr("172.31.0.250"),
		Outside: Segment{
			Net: netip.MustParsePrefix("198.51.100.0/24"), Gateway: netip.MustParseAddr("198.51.100.1"), Host: netip.MustParseAddr("198.51.100.10"),
		},
		External: Segment{
			Net: netip.MustParsePrefix("192.168.100.0/24"), Gateway: netip.MustParseAddr("192.168.100.1"), Host: netip.MustParseAddr("192.168.100.10"),
		},
		OpenStackIP: netip.MustParseAddr("172.31.0.249"),
		Floating:    Range{First: netip.MustParseAddr("192.168.100.101"), Last: netip.MustParseAddr("192.168.100.200")},
		ClusterCIDR: netip.MustParsePrefix("10.128.0.0/14"), FlannelCIDR: netip.MustParsePrefix("10.244.0.0/16"),
		IPv6:        IPv6{Underlay: netip.MustParsePrefix("fd00:172:31::/64"), Flannel: netip.MustParsePrefix("fd00:10:244::/48")},
		ServiceCIDR: netip.MustParsePrefix("172.30.0.0/16"), APIServiceIP: netip.MustParseAddr("172.30.0.1"),
		APIPort: 6443, HostLink: "wl-" + c.Name,
	}
	if c.DualStack {
		l.IPv6.Router = netip.MustParseAddr("fd00:172:31::fe")
	}
	if c.Network == NetworkFlannel {
		l.ClusterCIDR = l.FlannelCIDR
	}
	return l
}

// PodCIDR returns the node's pod range in a flannel network.
func (n Node) PodCIDR() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(n.Index), 0}), 24)
}

// PodCIDRs returns a node's pod ranges in a flannel network, IPv4 first.
func (l Lab) PodCIDRs(n Node) []string {
	cidrs := []string{n.PodCIDR().String()}
	if l.DualStack {
		addr := l.IPv6.Flannel.Addr().As16()
		addr[7] = byte(n.Index) // of the /64s in a /48
		cidrs = append(cidrs, netip.PrefixFrom(netip.AddrFrom16(addr), 64).String())
	}
	return cidrs
}

// Address6 returns a node's IPv6 address with the prefix length of the underlay; invalid without DualStack.
func (l Lab) Address6(n Node) netip.Prefix {
	if !l.DualStack {
		return netip.Prefix{}
	}
	addr := l.IPv6.Underlay.Addr().As16()
	addr[15] = byte(n.Index)
	return netip.PrefixFrom(netip.AddrFrom16(addr), l.IPv6.Underlay.Bits())
}

// Namespace returns the name under /run/netns of one of the lab's namespaces.
func (l Lab) Namespace(part string) string { return "wl-" + l.Name + "-" + part }

// Path returns a path in the lab's state directory.
func (l Lab) Path(elem ...string) string { return filepath.Join(append([]string{l.Dir}, elem...)...) }

// RunPath returns a path in the lab's run directory.
func (l Lab) RunPath(elem ...string) string {
	return filepath.Join(append([]string{l.RunDir}, elem...)...)
}

// Socket returns the path of the supervisor's socket.
func (l Lab) Socket() string { return l.RunPath("supervisor.sock") }

// Kubeconfig returns the path of the administrator's kubeconfig, for the machine's own kubectl.
func (l Lab) Kubeconfig() string { return l.Path("admin.kubeconfig") }

// Node is one node of a lab.
type Node struct {
	Index  int    // from 1
	Name   string // the name in Kubernetes
	IP     netip.Addr
	MAC    net.HardwareAddr // of the node's address, also across restarts of the switch
	Dir    string           // state: what is bound to /var/lib/... in the node
	RunDir string           // the node's /run, as seen from the machine
	Cgroup string           // of the node's pods
}

// Node returns node i, counted from 1.
func (l Lab) Node(i int) Node {
	name := "n" + strconv.Itoa(i)
	ip := l.Underlay.Addr().As4()
	ip[3] = byte(i)
	return Node{
		Index: i, Name: name, IP: netip.AddrFrom4(ip),
		MAC: net.HardwareAddr{0x02, 0x57, 0x4c, 0, 0, byte(i)},
		Dir: l.Path(name), RunDir: l.RunPath(name, "run"), Cgroup: l.Cgroup + "/" + name,
	}
}

// AllNodes lists the nodes in order.
func (l Lab) AllNodes() []Node {
	nodes := make([]Node, 0, l.Nodes)
	for i := 1; i <= l.Nodes; i++ {
		nodes = append(nodes, l.Node(i))
	}
	return nodes
}

// Bind is a directory of a node that replaces one of the machine's.
type Bind struct {
	Target string // the path inside the node; made on the machine if missing, and removed by the last lab
	Source string // the node's directory
}

// Binds lists the node's own directories beside /run, so that fixed host paths work on several nodes of one machine.
func (n Node) Binds() []Bind {
	targets := []string{
		"/etc/cni/net.d", "/opt/cni/bin", "/var/lib/weft", "/var/lib/cni",
		"/var/lib/kubelet", "/var/lib/containerd", "/var/log/pods", "/var/log/containers",
	}
	binds := make([]Bind, 0, len(targets))
	for _, t := range targets {
		binds = append(binds, Bind{Target: t, Source: filepath.Join(n.Dir, "root", t)})
	}
	return binds
}
