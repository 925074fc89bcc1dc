package supervisor

import (
	"context"
	"fmt"

	"weft.dev/weft/lab/image"
	"weft.dev/weft/lab/stack/ovn"
)

// southboundPort is the southbound database's usual port.
const southboundPort = 6642

func (s *start) central() *ovn.Central {
	return &ovn.Central{
		Space: s.spaces.of(partControl), Group: s.group, Dir: s.lab.Path("ovn"), Run: s.lab.RunPath("ovn"), Prefix: "ovn",
		Remote: fmt.Sprintf("ptcp:%d:%s", southboundPort, s.lab.ControlIP),
	}
}

// bringOVN starts OVN's databases and northd in the control plane's namespace, and makes every node a chassis.
func (s *start) bringOVN(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	central := s.central()
	if err := central.Start(ctx); err != nil {
		return err
	}
	parts := make([]func(context.Context) error, 0, s.lab.Nodes)
	for _, n := range s.lab.AllNodes() {
		parts = append(parts, ovn.Chassis{
			Group: s.group, Space: s.spaces.of(n.Name), Node: n, SB: central.SB(), Datapath: s.datapath,
			Remote: fmt.Sprintf("tcp:%s:%d", s.lab.ControlIP, southboundPort),
		}.Start)
	}
	return together(ctx, parts...)
}

// vpcController returns a controller's flags for VPCs.
func (s *start) vpcController() []string {
	if !s.lab.VPC {
		return nil
	}
	return []string{"--ovn-northbound=" + s.central().NB()}
}

// vpcAgent returns an agent's flags for VPCs.
func (s *start) vpcAgent() []string {
	if !s.lab.VPC {
		return nil
	}
	return []string{"--vpc"}
}

// manifest returns the manifest by which the lab installs Weft.
func (s *start) manifest() string {
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
func (s *start) vpcWaits() [][]string {
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
