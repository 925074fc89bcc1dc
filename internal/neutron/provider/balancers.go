package provider

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/neutron/cloud"
)

type balancers struct {
	kubestack.UnimplementedLoadBalancersServer

	cloud Reach
	names names
}

// GetLoadBalancer finds a load balancer by its name.
func (b *balancers) GetLoadBalancer(ctx context.Context, req *kubestack.GetLoadBalancerRequest) (*kubestack.GetLoadBalancerResponse, error) {
	if err := need([2]string{"name", req.GetName()}); err != nil {
		return &kubestack.GetLoadBalancerResponse{Error: text(err)}, nil
	}
	reached, err := b.cloud(ctx)
	if err != nil {
		return &kubestack.GetLoadBalancerResponse{Error: text(err)}, nil
	}
	held, err := reached.FindBalancer(ctx, "", req.GetName())
	if err != nil {
		return &kubestack.GetLoadBalancerResponse{Error: words(err)}, nil
	}
	out := &kubestack.LoadBalancer{
		Name: held.Name, Uid: held.ID, Vip: held.VipAddress, LoadBalanceType: "TCP", Status: state(held.ProvisioningStatus),
		TenantID: held.ProjectID, Subnets: []*kubestack.Subnet{{Uid: held.VipSubnetID}},
	}
	for _, l := range held.Listeners {
		out.LoadBalanceType = l.Protocol
		for _, m := range l.Members {
			out.Hosts = append(out.Hosts, &kubestack.HostPort{
				Name: m.Name, Ipaddress: m.Address, ServicePort: int32(l.ProtocolPort), TargetPort: int32(m.ProtocolPort), //nolint:gosec // ports
			})
		}
	}
	return &kubestack.GetLoadBalancerResponse{LoadBalancer: out}, nil
}

// CreateLoadBalancer creates a load balancer, or updates the one with that name; its virtual address stays.
func (b *balancers) CreateLoadBalancer(
	ctx context.Context, req *kubestack.CreateLoadBalancerRequest,
) (*kubestack.CreateLoadBalancerResponse, error) {
	reached, want, err := b.wanted(ctx, req)
	if err != nil {
		return &kubestack.CreateLoadBalancerResponse{Error: text(err)}, nil
	}
	vip := ""
	err = b.names.alone(ctx, want.Name, func() error {
		held, err := reached.EnsureBalancer(ctx, want)
		if err == nil {
			vip = held.VipAddress
		}
		return err
	})
	return &kubestack.CreateLoadBalancerResponse{Vip: vip, Error: text(err)}, nil
}

// KubeStack's words for session affinity.
const (
	affinityNone     = "None"
	affinityClientIP = "ClientIP"
)

// wanted checks a load balancer and finds its project in OpenStack, which it returns too.
func (b *balancers) wanted(ctx context.Context, req *kubestack.CreateLoadBalancerRequest) (*cloud.Cloud, cloud.Balancer, error) {
	in := req.GetLoadBalancer()
	if in == nil {
		return nil, cloud.Balancer{}, errors.New("loadBalancer is missing")
	}
	if err := need([2]string{"loadBalancer.name", in.GetName()}, [2]string{"loadBalancer.tenantID", in.GetTenantID()}); err != nil {
		return nil, cloud.Balancer{}, err
	}
	if a := req.GetAffinity(); a != affinityNone && a != affinityClientIP {
		return nil, cloud.Balancer{}, fmt.Errorf("affinity: %q is neither %s nor %s", a, affinityNone, affinityClientIP)
	}
	if len(in.GetSubnets()) == 0 || in.GetSubnets()[0].GetUid() == "" {
		return nil, cloud.Balancer{}, errors.New("loadBalancer.subnets[0].uid is missing: give the id of the subnet that the virtual address is of")
	}
	protocol, err := protocolOf(in.GetLoadBalanceType())
	if err != nil {
		return nil, cloud.Balancer{}, err
	}
	listeners, err := listenersOf(protocol, in.GetHosts())
	if err != nil {
		return nil, cloud.Balancer{}, err
	}
	floating, err := floatingOf(in.GetExternalIPs())
	if err != nil {
		return nil, cloud.Balancer{}, err
	}
	reached, err := b.cloud(ctx)
	if err != nil {
		return nil, cloud.Balancer{}, err
	}
	project, err := reached.Project(ctx, in.GetTenantID())
	if err != nil {
		return nil, cloud.Balancer{}, fmt.Errorf("loadBalancer.tenantID: %w", err)
	}
	return reached, cloud.Balancer{
		Owner: "provider/" + in.GetName(), Name: in.GetName(), Project: project, Subnet: in.GetSubnets()[0].GetUid(),
		Listeners: listeners, SourceAffinity: req.GetAffinity() == affinityClientIP, FloatingIP: floating,
		MakeFloating: true, ByName: true,
	}, nil
}

// protocolOf translates loadBalanceType. HTTP and HTTPS are balanced as TCP: KubeStack ignored the field.
func protocolOf(kind string) (string, error) {
	switch kind {
	case "", "TCP", "HTTP", "HTTPS":
		return "TCP", nil
	case "UDP":
		return "UDP", nil
	}
	return "", fmt.Errorf("loadBalancer.loadBalanceType: %q is none of TCP, UDP, HTTP, HTTPS", kind)
}

// listenersOf creates a listener for each servicePort.
func listenersOf(protocol string, hosts []*kubestack.HostPort) ([]cloud.Listener, error) {
	var out []cloud.Listener
	for i, h := range hosts {
		field := fmt.Sprintf("hosts[%d]", i)
		addr, err := netip.ParseAddr(h.GetIpaddress())
		if err != nil || addr.Zone() != "" {
			return nil, fmt.Errorf("%s.ipaddress: %q is not an address", field, h.GetIpaddress())
		}
		const most = 65535
		if p := h.GetServicePort(); p < 1 || p > most {
			return nil, fmt.Errorf("%s.servicePort: %d is not a port", field, p)
		}
		if p := h.GetTargetPort(); p < 1 || p > most {
			return nil, fmt.Errorf("%s.targetPort: %d is not a port", field, p)
		}
		at := slices.IndexFunc(out, func(l cloud.Listener) bool { return l.Port == int(h.GetServicePort()) })
		if at < 0 {
			out = append(out, cloud.Listener{Protocol: protocol, Port: int(h.GetServicePort())})
			at = len(out) - 1
		}
		out[at].Members = append(out[at].Members, cloud.Member{Addr: addr, Port: int(h.GetTargetPort())})
	}
	return out, nil
}

func floatingOf(externalIPs []string) (netip.Addr, error) {
	switch len(externalIPs) {
	case 0:
		return netip.Addr{}, nil
	case 1:
		addr, err := netip.ParseAddr(externalIPs[0])
		if err != nil || !addr.Is4() {
			return netip.Addr{}, fmt.Errorf("externalIPs[0]: %q is not an IPv4 address", externalIPs[0])
		}
		return addr, nil
	}
	return netip.Addr{}, fmt.Errorf("externalIPs: %d given, at most one is served", len(externalIPs))
}

// UpdateLoadBalancer replaces members and the floating IP. Session affinity stays as it is: the request has none.
func (b *balancers) UpdateLoadBalancer(
	ctx context.Context, req *kubestack.UpdateLoadBalancerRequest,
) (*kubestack.UpdateLoadBalancerResponse, error) {
	vip := ""
	err := b.names.alone(ctx, req.GetName(), func() (err error) {
		vip, err = b.update(ctx, req)
		return err
	})
	return &kubestack.UpdateLoadBalancerResponse{Vip: vip, Error: words(err)}, nil
}

func (b *balancers) update(ctx context.Context, req *kubestack.UpdateLoadBalancerRequest) (vip string, err error) {
	if err := need([2]string{"name", req.GetName()}); err != nil {
		return "", err
	}
	floating, err := floatingOf(req.GetExternalIPs())
	if err != nil {
		return "", err
	}
	reached, err := b.cloud(ctx)
	if err != nil {
		return "", err
	}
	held, err := reached.FindBalancer(ctx, "", req.GetName())
	if err != nil {
		return "", err
	}
	protocol := "TCP"
	if len(held.Listeners) > 0 {
		protocol = held.Listeners[0].Protocol
	}
	listeners, err := listenersOf(protocol, req.GetHosts())
	if err != nil {
		return "", err
	}
	if len(listeners) == 0 { // no endpoints are left; the ports stay
		for _, l := range held.Listeners {
			listeners = append(listeners, cloud.Listener{Protocol: l.Protocol, Port: l.ProtocolPort})
		}
	}
	held, err = reached.EnsureBalancer(ctx, cloud.Balancer{
		Owner: "provider/" + held.Name, Name: held.Name, Project: held.ProjectID, Subnet: held.VipSubnetID,
		Listeners: listeners, FloatingIP: floating, MakeFloating: true, ByName: true,
		SourceAffinity: slices.ContainsFunc(held.Listeners, func(l cloud.HeldListener) bool { return l.SourceAffinity() }),
	})
	if err != nil {
		return "", err
	}
	return held.VipAddress, nil
}

// DeleteLoadBalancer removes a load balancer, and its floating IP if the provider created it.
func (b *balancers) DeleteLoadBalancer(ctx context.Context, req *kubestack.DeleteLoadBalancerRequest) (*kubestack.CommonResponse, error) {
	if err := need([2]string{"name", req.GetName()}); err != nil {
		return &kubestack.CommonResponse{Error: text(err)}, nil
	}
	err := b.names.alone(ctx, req.GetName(), func() error {
		reached, err := b.cloud(ctx)
		if err != nil {
			return err
		}
		held, err := reached.FindBalancer(ctx, "", req.GetName())
		if err != nil {
			return err
		}
		return reached.RemoveBalancer(ctx, &held.LoadBalancer)
	})
	return &kubestack.CommonResponse{Error: words(err)}, nil
}
