package supervisor

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/stack/openstack"
)

// connectCloud connects OpenStack's namespace with nodes and control plane.
func (s *Supervisor) connectCloud() error {
	l := s.lab
	ul, cloud := s.space(partUnderlay), s.space(partOpenStack)
	err := ground.Connect(l.MTU,
		ground.End{Space: &ul, Name: partOpenStack, Bridge: underlayBridge},
		ground.End{Space: &cloud, Name: uplink, Addr: netip.PrefixFrom(l.OpenStackIP, l.Underlay.Bits())})
	if err != nil {
		return err
	}
	return cloud.Route(netip.Prefix{}, l.Router)
}

func (s *Supervisor) cloud() *openstack.Stack {
	return &openstack.Stack{
		Space: s.space(partOpenStack), Group: s.group, Dir: s.lab.Path("os"), Cache: kubebuild.Cache(), Addr: s.lab.OpenStackIP,
	}
}

// bringOpenStack starts OpenStack, makes every node a host of Neutron, and writes kubestack.conf for the controller.
func (s *Supervisor) bringOpenStack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	stack := s.cloud()
	if err := stack.Start(ctx); err != nil {
		return err
	}
	parts := make([]func(context.Context) error, 0, s.lab.Nodes)
	for _, n := range s.lab.AllNodes() {
		parts = append(parts, func(ctx context.Context) error {
			return openstack.Chassis(ctx, openstack.ChassisConfig{Group: s.group, Space: s.space(n.Name), Node: n, SB: stack.SB()})
		})
	}
	if err := together(ctx, parts...); err != nil {
		return err
	}
	text := fmt.Sprintf("[Global]\nauth-url = %s\nusername = %s\npassword = %s\ntenant-name = %s\nregion = %s\n",
		stack.AuthURL(), openstack.Admin, openstack.AdminPassword, openstack.Admin, openstack.Region)
	return machine.WriteFile(s.kubestackConf(), []byte(text), 0o600)
}

func (s *Supervisor) kubestackConf() string { return filepath.Join(s.lab.Dir, "kubestack.conf") }

// cloudController returns what a controller's command line has for OpenStack.
func (s *Supervisor) cloudController() []string {
	if s.lab.OpenStack == "" {
		return nil
	}
	return []string{"--neutron-config=" + s.kubestackConf(), "--neutron-cluster=" + s.lab.Name}
}

// cloudAgent returns what an agent's command line has for OpenStack.
func (s *Supervisor) cloudAgent() []string {
	if s.lab.OpenStack == "" {
		return nil
	}
	return []string{"--neutron"}
}
