package supervisor

import (
	"context"
	"fmt"
	"net/netip"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/image"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/stack/ovn"
)

// externalLink is the nodes' link into the outside network of NAT gateways, with its name in the example manifests.
const externalLink = "ens37"

// externalBridge connects the outside network in the underlay's namespace, which routes for it.
const externalBridge = "ext0"

// southboundPort is the southbound database's usual port.
const southboundPort = 6642

// connectExternal makes the outside network. Its gateway is the lab's router; it has a host, and a link of every node without an address:
// the parent of VPCs' gateways, or a port of Neutron's external bridge. The lab's outside has a route back.
func (s *Supervisor) connectExternal() error {
	l := s.lab
	ul, ext, out := s.space(partUnderlay), s.space(partExternal), s.space(partOutside)
	bits := l.External.Net.Bits()
	if err := ul.Bridge(externalBridge, netip.PrefixFrom(l.External.Gateway, bits), l.MTU); err != nil {
		return err
	}
	err := ground.Connect(l.MTU,
		ground.End{Space: &ul, Name: partExternal, Bridge: externalBridge},
		ground.End{Space: &ext, Name: uplink, Addr: netip.PrefixFrom(l.External.Host, bits)})
	if err != nil {
		return err
	}
	if err := ext.Route(netip.Prefix{}, l.External.Gateway); err != nil {
		return err
	}
	if err := out.Route(l.External.Net, l.Outside.Gateway); err != nil {
		return err
	}
	for _, n := range l.AllNodes() {
		sp := s.space(n.Name)
		link := ground.End{Space: &sp, Name: externalLink}
		if l.OpenStack != "" {
			link.Name, link.Group = cloudLink, plan.LinkGroup
		}
		if err := ground.Connect(l.MTU, ground.End{Space: &ul, Name: fmt.Sprintf("ext%d", n.Index), Bridge: externalBridge}, link); err != nil {
			return err
		}
	}
	return nil
}

// bringExternal starts the server on the host in the outside network.
func (s *Supervisor) bringExternal(ctx context.Context) error {
	return s.group.Start(ctx, process.Program{
		Name: "external/reporter", Argv: s.space(partExternal).Enter(s.self, "reporter", s.lab.External.Reporter().String()),
	})
}

func (s *Supervisor) central() *ovn.Central {
	return &ovn.Central{
		Space: s.space(partControl), Group: s.group, Dir: s.lab.Path("ovn"), Run: s.lab.RunPath("ovn"), Prefix: "ovn",
		Remote: fmt.Sprintf("ptcp:%d:%s", southboundPort, s.lab.ControlIP),
	}
}

// bringOVN starts OVN's databases and northd in the control plane's namespace, and makes every node a chassis.
func (s *Supervisor) bringOVN(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	central := s.central()
	if err := central.Start(ctx); err != nil {
		return err
	}
	parts := make([]func(context.Context) error, 0, s.lab.Nodes)
	for _, n := range s.lab.AllNodes() {
		parts = append(parts, ovn.Chassis{
			Group: s.group, Space: s.space(n.Name), Node: n, SB: central.SB(), Datapath: s.datapath,
			Remote: fmt.Sprintf("tcp:%s:%d", s.lab.ControlIP, southboundPort),
		}.Start)
	}
	return together(ctx, parts...)
}

// vpcController returns a controller's flags for VPCs.
func (s *Supervisor) vpcController() []string {
	if !s.lab.VPC {
		return nil
	}
	return []string{"--ovn-northbound=" + s.central().NB()}
}

// vpcAgent returns an agent's flags for VPCs.
func (s *Supervisor) vpcAgent() []string {
	if !s.lab.VPC {
		return nil
	}
	return []string{"--vpc"}
}

// manifest returns the manifest by which the lab installs Weft.
func (s *Supervisor) manifest() string {
	switch {
	case s.lab.VPC:
		return "weft-vpc.yaml"
	case s.lab.OpenStack != "":
		return "weft-neutron.yaml"
	case s.lab.Network.Flannel():
		return "weft-flannel.yaml"
	default:
		return "weft.yaml"
	}
}

// vpcWaits returns further arguments for kubectl wait, if OVN runs in pods.
func (s *Supervisor) vpcWaits() [][]string {
	if !s.lab.VPC {
		return nil
	}
	return [][]string{{"-n", "weft", "rollout", "status", "statefulset/weft-ovn", "--timeout=180s"}}
}

// Images in users' manifests, for which a lab without a registry has its own.
const (
	gatewayImage = "docker.io/kubeovn/vpc-nat-gateway:v1.12.4"
	webImage     = "docker.io/library/nginx:alpine"
)

// vpcImages returns the lab's own images with the names in the example manifests: a NAT gateway's, which only sleeps, and a web server
// that answers on port 80 like agnhost's netexec, with the sender's address at /clientip.
func vpcImages(box, agnhost, links map[string]string) []image.Image {
	return []image.Image{
		{Ref: gatewayImage, Entrypoint: []string{"/bin/busybox"}, Files: box, Links: links},
		{Ref: webImage, Entrypoint: []string{"/agnhost", "netexec", "--http-port=80"}, Files: agnhost, Links: links},
	}
}
