package supervisor

import (
	"context"
	"fmt"
	"path/filepath"

	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/stack/openstack"
)

func (s *start) cloud() *openstack.Stack {
	return &openstack.Stack{
		Space: s.spaces.of(partOpenStack), Group: s.group, Driver: s.lab.OpenStack, Dir: s.lab.Path("os"), Cache: kubebuild.Cache(), Addr: s.lab.OpenStackIP,
	}
}

// bringOpenStack starts OpenStack, makes every node a host of Neutron, and writes kubestack.conf for the controller.
func (s *start) bringOpenStack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	stack := s.cloud()
	if err := stack.Start(ctx); err != nil {
		return err
	}
	parts := make([]func(context.Context) error, 0, s.lab.Nodes)
	for _, n := range s.lab.AllNodes() {
		config := openstack.HostConfig{Group: s.group, Space: s.spaces.of(n.Name), Node: n, Uplink: cloudLink, Datapath: s.datapath}
		parts = append(parts, func(ctx context.Context) error { return openstack.Host(ctx, stack, config) })
	}
	if err := together(ctx, parts...); err != nil {
		return err
	}
	l := s.lab
	external, err := stack.ExternalNetwork(ctx, openstack.External{Range: l.External.Net, Gateway: l.External.Gateway, First: l.Floating.First, Last: l.Floating.Last})
	if err != nil {
		return fmt.Errorf("create Neutron's external network: %w", err)
	}
	text := fmt.Sprintf("[Global]\nauth-url = %s\nusername = %s\npassword = %s\ntenant-name = %s\nregion = %s\next-net-id = %s\n\n[Plugin]\nplugin-name = ovs\n",
		stack.AuthURL(), openstack.Admin, openstack.AdminPassword, openstack.Admin, openstack.Region, external)
	return machine.WriteFile(s.kubestackConf(), []byte(text), 0o600)
}

func (s *start) kubestackConf() string { return filepath.Join(s.lab.Dir, "kubestack.conf") }

// cloudController returns a controller's flags for OpenStack.
func (s *start) cloudController() []string {
	if s.lab.OpenStack == "" {
		return nil
	}
	return []string{"--neutron-config=" + s.kubestackConf(), "--neutron-cluster=" + s.lab.Name}
}

// cloudAgent returns an agent's flags for OpenStack.
func (s *start) cloudAgent() []string {
	if s.lab.OpenStack == "" {
		return nil
	}
	return []string{"--neutron"}
}

// cloudSecret creates the namespace of Weft's manifest with kubestack.conf, as users of OpenStack do.
func (s *start) cloudSecret(ctx context.Context) error {
	if s.lab.OpenStack == "" {
		return nil
	}
	if _, err := s.kubectl().run(ctx, "", "create", "namespace", weftNamespace); err != nil {
		return err
	}
	_, err := s.kubectl().run(ctx, "", "-n", weftNamespace, "create", "secret", "generic", "weft-neutron", "--from-file=kubestack.conf="+s.kubestackConf())
	return err
}

// weftNamespace is the namespace of Weft's manifest.
const weftNamespace = "weft"
