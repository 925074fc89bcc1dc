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

// Node is a node with a real switch that Neutron serves.
type Node struct {
	plan.Node
	Space ground.Space
	Group *process.Group
}

// HostConfig describes a node that becomes a host of Neutron.
type HostConfig struct {
	Group *process.Group
	Space ground.Space
	Node  plan.Node
	// Datapath is the bridges' datapath type. Default: the userspace datapath.
	Datapath plan.Datapath
	Uplink   string // a link to the outside; "": none
}

// Host makes a node a host of Neutron's, on which ports can be bound: with OVN a chassis, else a node with Neutron's agents.
func Host(ctx context.Context, s *Stack, c HostConfig) error {
	c.Datapath = cmp.Or(c.Datapath, plan.DatapathNetdev)
	kind := "datapath_type=" + string(c.Datapath)
	outside := []string{"--", "--may-exist", "add-br", external, "--", "set", "Bridge", external, kind}
	if c.Uplink != "" {
		outside = append(outside, "--", "--may-exist", "add-port", external, c.Uplink)
	}
	if s.Driver == plan.OpenStackOpenVSwitch {
		return host{s, c}.start(ctx, outside)
	}
	return ovn.Chassis{
		Group: c.Group, Space: c.Space, Node: c.Node, Remote: s.SB(), SB: s.SB(), Datapath: c.Datapath,
		Prepare: append([]string{
			"--", "--may-exist", "add-br", Integration, "--", "set", "Bridge", Integration, kind, "fail_mode=secure",
		}, outside...),
		Settings: []string{"ovn-bridge-mappings=" + PhysicalNetwork + ":" + external, "ovn-cms-options=enable-chassis-as-gw"},
	}.Start(ctx)
}
