package openstack

import (
	"cmp"
	"context"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/stack/ovn"
)

// Integration is the bridge with Neutron's ports.
const Integration = ovn.Integration

// external is the bridge for PhysicalNetwork on each node.
const external = "br-ex"

// Node is a node with a real switch that OVN controls.
type Node struct {
	plan.Node
	Space ground.Space
	Group *process.Group
}

// ChassisConfig describes a node that becomes a chassis of OVN.
type ChassisConfig struct {
	Group *process.Group
	Space ground.Space
	Node  plan.Node
	SB    string // OVN's southbound database
	// Datapath is the bridges' datapath type. Default: the userspace datapath.
	Datapath plan.Datapath
	Uplink   string // a link to the outside; "": none
}

// Chassis makes OVN control a node's switch, and waits until OVN has made its bridge.
func Chassis(ctx context.Context, c ChassisConfig) error {
	c.Datapath = cmp.Or(c.Datapath, plan.DatapathNetdev)
	kind := "datapath_type=" + string(c.Datapath)
	prepare := []string{
		"--", "--may-exist", "add-br", Integration, "--", "set", "Bridge", Integration, kind, "fail_mode=secure",
		"--", "--may-exist", "add-br", external, "--", "set", "Bridge", external, kind,
	}
	if c.Uplink != "" {
		prepare = append(prepare, "--", "--may-exist", "add-port", external, c.Uplink)
	}
	return ovn.Chassis{
		Group: c.Group, Space: c.Space, Node: c.Node, Remote: c.SB, SB: c.SB, Datapath: c.Datapath, Prepare: prepare,
		Settings: []string{"ovn-bridge-mappings=" + PhysicalNetwork + ":" + external, "ovn-cms-options=enable-chassis-as-gw"},
	}.Start(ctx)
}
