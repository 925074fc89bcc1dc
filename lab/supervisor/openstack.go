package supervisor

import (
	"context"
	"fmt"
	"path/filepath"

	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/stack/openstack"
)

// cloud starts OpenStack, with the nodes as hosts of its Neutron.
type cloud struct {
	lab      plan.Lab
	datapath plan.Datapath // of the nodes' switches
	group    *process.Group
	spaces   *spaces
}

func (c cloud) stack() *openstack.Stack {
	return &openstack.Stack{
		Space: c.spaces.of(partOpenStack), Group: c.group, Driver: c.lab.OpenStack, Dir: c.lab.Path("os"), Cache: kubebuild.Cache(), Addr: c.lab.OpenStackIP,
	}
}

// start starts OpenStack, makes every node a host of Neutron, and writes kubestack.conf for the controller.
func (c cloud) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	stack := c.stack()
	if err := stack.Start(ctx); err != nil {
		return err
	}
	parts := make([]func(context.Context) error, 0, c.lab.Nodes)
	for _, n := range c.lab.AllNodes() {
		config := openstack.HostConfig{Group: c.group, Space: c.spaces.of(n.Name), Node: n, Uplink: cloudLink, Datapath: c.datapath}
		parts = append(parts, func(ctx context.Context) error { return openstack.Host(ctx, stack, config) })
	}
	if err := together(ctx, parts...); err != nil {
		return err
	}
	l := c.lab
	external, err := stack.ExternalNetwork(ctx, openstack.External{Range: l.External.Net, Gateway: l.External.Gateway, First: l.Floating.First, Last: l.Floating.Last})
	if err != nil {
		return fmt.Errorf("create Neutron's external network: %w", err)
	}
	text := fmt.Sprintf("[Global]\nauth-url = %s\nusername = %s\npassword = %s\ntenant-name = %s\nregion = %s\next-net-id = %s\n\n[Plugin]\nplugin-name = ovs\n",
		stack.AuthURL(), openstack.Admin, openstack.AdminPassword, openstack.Admin, openstack.Region, external)
	return machine.WriteFile(kubestackConf(c.lab), []byte(text), 0o600)
}

// kubestackConf returns the path of the controller's configuration of OpenStack.
func kubestackConf(l plan.Lab) string { return filepath.Join(l.Dir, "kubestack.conf") }

// cloudController returns a controller's flags for OpenStack.
func cloudController(l plan.Lab) []string {
	if l.OpenStack == "" {
		return nil
	}
	return []string{"--neutron-config=" + kubestackConf(l), "--neutron-cluster=" + l.Name}
}

// cloudAgent returns an agent's flags for OpenStack.
func cloudAgent(l plan.Lab) []string {
	if l.OpenStack == "" {
		return nil
	}
	return []string{"--neutron"}
}
