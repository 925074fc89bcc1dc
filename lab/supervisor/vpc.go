package supervisor

import (
	"context"
	"fmt"

	"weft.dev/weft/lab/image"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/stack/ovn"
)

// southboundPort is the southbound database's usual port.
const southboundPort = 6642

// ovnProcesses starts OVN for VPCs as plain processes.
type ovnProcesses struct {
	lab      plan.Lab
	datapath plan.Datapath // of the nodes' switches
	group    *process.Group
	spaces   *spaces
}

func (v ovnProcesses) central() *ovn.Central {
	return &ovn.Central{
		Space: v.spaces.of(partControl), Group: v.group, Dir: v.lab.Path("ovn"), Run: v.lab.RunPath("ovn"), Prefix: "ovn",
		Remote: fmt.Sprintf("ptcp:%d:%s", southboundPort, v.lab.ControlIP),
		Env:    []string{"LD_PRELOAD=" + image.Allocator}, // as in the pods of the manifest
	}
}

// start starts OVN's databases and northd in the control plane's namespace, and makes every node a chassis.
func (v ovnProcesses) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	central := v.central()
	if err := central.Start(ctx); err != nil {
		return err
	}
	parts := make([]func(context.Context) error, 0, v.lab.Nodes)
	for _, n := range v.lab.AllNodes() {
		parts = append(parts, ovn.Chassis{
			Group: v.group, Space: v.spaces.of(n.Name), Node: n, SB: central.SB(), Datapath: v.datapath,
			Remote: fmt.Sprintf("tcp:%s:%d", v.lab.ControlIP, southboundPort),
		}.Start)
	}
	return together(ctx, parts...)
}

// controllerFlags returns a controller's flags for VPCs.
func (v ovnProcesses) controllerFlags() []string {
	if !v.lab.VPC {
		return nil
	}
	return []string{"--ovn-northbound=" + v.central().NB()}
}

// vpcAgent returns an agent's flags for VPCs.
func vpcAgent(l plan.Lab) []string {
	if !l.VPC {
		return nil
	}
	return []string{"--vpc"}
}
