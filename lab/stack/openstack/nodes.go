package openstack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/ovsnode"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/stack/ovn"
)

// Integration is the bridge that Neutron's ports are on.
const Integration = ovn.Integration

// external is the bridge behind PhysicalNetwork on each node.
const external = "br-ex"

// nodeMTU leaves room for geneve's headers below a network MTU of 1442 or more.
const nodeMTU = 1600

// Outside is the address beyond Neutron's routers, in the network of floating addresses.
func Outside() netip.Prefix { return netip.MustParsePrefix("203.0.113.1/24") }

// Node is a node with a real switch that OVN controls, on the userspace datapath.
type Node struct {
	plan.Node
	Space ground.Space
	Group *process.Group
}

// OnWire is the stack's address for the nodes that Nodes makes: give it to the stack as Addr.
func OnWire() netip.Addr { return netip.MustParseAddr("172.31.77.253") }

// Wire is the namespace that connects the nodes, and the outside.
type Wire struct{ Space ground.Space }

// Nodes makes count nodes and the wire between them, beside a running stack.
func Nodes(ctx context.Context, s *Stack, self string, count int) ([]*Node, *Wire, error) {
	base := filepath.Base(filepath.Dir(s.Dir))
	space, err := ground.NewSpace(ctx, s.Group, self, base+"-wire", ground.Hold{})
	if err != nil {
		return nil, nil, err
	}
	if err := space.Bridge("under", netip.MustParsePrefix("172.31.77.254/24"), nodeMTU); err != nil {
		return nil, nil, err
	}
	if err := space.Bridge("outside", Outside(), nodeMTU); err != nil {
		return nil, nil, err
	}
	if err := ground.Connect(nodeMTU, ground.End{Space: &space, Name: "control", Bridge: "under"},
		ground.End{Space: &s.Space, Name: "eth0", Addr: netip.PrefixFrom(OnWire(), 24)}); err != nil {
		return nil, nil, err
	}
	nodes := make([]*Node, count)
	all, below := errgroup.WithContext(ctx)
	for i := range nodes {
		n := &Node{Group: s.Group, Node: plan.Node{
			Index: i + 1, Name: fmt.Sprintf("%s-n%d", base, i+1), IP: netip.AddrFrom4([4]byte{172, 31, 77, byte(i + 1)}),
			MAC: net.HardwareAddr{0x02, 0x57, 0x4f, 0, 0, byte(i + 1)},
			Dir: filepath.Join(filepath.Dir(s.Dir), fmt.Sprintf("n%d", i+1)), RunDir: filepath.Join(filepath.Dir(s.Dir), fmt.Sprintf("n%d", i+1), "run"),
		}}
		nodes[i] = n
		all.Go(func() error { return n.start(below, s, self, space) })
	}
	return nodes, &Wire{Space: space}, all.Wait()
}

func (n *Node) start(ctx context.Context, s *Stack, self string, wire ground.Space) error {
	if err := os.MkdirAll(n.RunDir, 0o755); err != nil {
		return fmt.Errorf("make the node's /run: %w", err)
	}
	var err error
	if n.Space, err = ground.NewSpace(ctx, n.Group, self, n.Name, ground.Hold{RunDir: n.RunDir, Forward: true}); err != nil {
		return err
	}
	sw := ovsnode.Switch{Node: n.Node, Space: n.Space, Group: n.Group}
	if err := sw.Start(ctx); err != nil {
		return err
	}
	if err := sw.Guard(ctx); err != nil {
		return err
	}
	for _, link := range []struct{ name, bridge string }{{"under", "under"}, {"ext", "outside"}} {
		if err := ground.Connect(nodeMTU, ground.End{Space: &wire, Name: fmt.Sprintf("%s%d", link.name, n.Index), Bridge: link.bridge},
			ground.End{Space: &n.Space, Name: link.name, Group: plan.LinkGroup}); err != nil {
			return err
		}
	}
	if err := sw.PhyBridge(ctx, "under", nodeMTU); err != nil {
		return err
	}
	if err := n.address(ctx); err != nil {
		return err
	}
	return Chassis(ctx, ChassisConfig{Group: n.Group, Space: n.Space, Node: n.Node, SB: s.SB(), Uplink: "ext"})
}

// address puts the node's address on br-phy, where the switch looks for the source of its tunnels.
func (n *Node) address(ctx context.Context) error {
	for _, argv := range [][]string{
		{"ip", "addr", "replace", netip.PrefixFrom(n.IP, 24).String(), "dev", ovsnode.Phy},
		{"ip", "link", "set", ovsnode.Phy, "up"},
	} {
		if _, err := n.Group.Run(ctx, "", n.Space.Enter(argv...)...); err != nil {
			return err
		}
	}
	return nil
}

// ChassisConfig says which node becomes a chassis of OVN.
type ChassisConfig struct {
	Group  *process.Group
	Space  ground.Space
	Node   plan.Node
	SB     string // OVN's southbound database
	Uplink string // a link that leads outside; "" leaves the node without
}

// Chassis lets OVN control a node's switch, and waits until OVN has its bridge.
func Chassis(ctx context.Context, c ChassisConfig) error {
	prepare := []string{
		"--", "--may-exist", "add-br", Integration, "--", "set", "Bridge", Integration, "datapath_type=netdev", "fail_mode=secure",
		"--", "--may-exist", "add-br", external, "--", "set", "Bridge", external, "datapath_type=netdev",
	}
	if c.Uplink != "" {
		prepare = append(prepare, "--", "--may-exist", "add-port", external, c.Uplink)
	}
	return ovn.Chassis{
		Group: c.Group, Space: c.Space, Node: c.Node, Remote: c.SB, SB: c.SB, Datapath: plan.DatapathNetdev, Prepare: prepare,
		Settings: []string{"ovn-bridge-mappings=" + PhysicalNetwork + ":" + external, "ovn-cms-options=enable-chassis-as-gw"},
	}.Start(ctx)
}
