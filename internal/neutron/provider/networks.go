package provider

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/neutron/cloud"
)

type networks struct {
	kubestack.UnimplementedNetworksServer

	cloud Reach
	names names
}

// Active reports that the provider serves.
func (*networks) Active(context.Context, *kubestack.ActiveRequest) (*kubestack.ActivateResponse, error) {
	return &kubestack.ActivateResponse{Result: true}, nil
}

// CheckTenantID reports whether there is a project with that id or name.
func (n *networks) CheckTenantID(ctx context.Context, req *kubestack.CheckTenantIDRequest) (*kubestack.CheckTenantIDResponse, error) {
	reached, err := n.cloud(ctx)
	if err != nil {
		return &kubestack.CheckTenantIDResponse{Error: text(err)}, nil
	}
	_, err = reached.Project(ctx, req.GetTenantID())
	if errors.Is(err, cloud.ErrNotFound) {
		return &kubestack.CheckTenantIDResponse{}, nil
	}
	return &kubestack.CheckTenantIDResponse{Result: err == nil, Error: text(err)}, nil
}

// GetNetwork finds a network by id, or else by name. Without either the answer is empty.
func (n *networks) GetNetwork(ctx context.Context, req *kubestack.GetNetworkRequest) (*kubestack.GetNetworkResponse, error) {
	if req.GetId() == "" && req.GetName() == "" {
		return &kubestack.GetNetworkResponse{}, nil
	}
	reached, err := n.cloud(ctx)
	if err != nil {
		return &kubestack.GetNetworkResponse{Error: text(err)}, nil
	}
	held, err := reached.FindNetwork(ctx, "", req.GetName(), req.GetId())
	if err != nil {
		return &kubestack.GetNetworkResponse{Error: words(err)}, nil
	}
	return &kubestack.GetNetworkResponse{Network: networkOf(held)}, nil
}

// networkOf returns a network in KubeStack's form.
func networkOf(held *cloud.HeldNetwork) *kubestack.Network {
	out := &kubestack.Network{Name: held.Name, Uid: held.ID, TenantID: held.ProjectID, Status: state(held.Status)}
	for _, s := range held.Held {
		subnet := &kubestack.Subnet{
			Name: s.Name, Uid: s.ID, Cidr: s.CIDR, Gateway: s.GatewayIP, Tenantid: s.ProjectID, Dnsservers: s.DNSNameservers,
		}
		for _, r := range s.HostRoutes {
			subnet.Routes = append(subnet.Routes, &kubestack.Route{Nexthop: r.NextHop, DestinationCIDR: r.DestinationCIDR})
		}
		out.Subnets = append(out.Subnets, subnet)
	}
	return out
}

// state translates OpenStack's states to KubeStack's.
func state(openstack string) string {
	switch openstack {
	case "ACTIVE":
		return "Active"
	case "BUILD", "PENDING_CREATE", "PENDING_UPDATE":
		return "Pending"
	}
	return "Failed"
}

// CreateNetwork creates a network with its subnets and router, or completes the one it created before.
func (n *networks) CreateNetwork(ctx context.Context, req *kubestack.CreateNetworkRequest) (*kubestack.CommonResponse, error) {
	reached, want, err := n.wanted(ctx, req.GetNetwork())
	if err == nil {
		err = n.names.alone(ctx, want.Name, func() error {
			_, err := reached.EnsureNetwork(ctx, want)
			return err
		})
	}
	return &kubestack.CommonResponse{Error: text(err)}, nil
}

// UpdateNetwork updates name servers, routes and further subnets of a network.
func (n *networks) UpdateNetwork(ctx context.Context, req *kubestack.UpdateNetworkRequest) (*kubestack.CommonResponse, error) {
	reached, want, err := n.wanted(ctx, req.GetNetwork())
	if err != nil {
		return &kubestack.CommonResponse{Error: text(err)}, nil
	}
	err = n.names.alone(ctx, want.Name, func() error {
		if _, err := reached.FindNetwork(ctx, want.Project, want.Name, ""); err != nil {
			return errors.New(words(err))
		}
		_, err := reached.EnsureNetwork(ctx, want)
		return err
	})
	return &kubestack.CommonResponse{Error: text(err)}, nil
}

// wanted checks a network and finds its project in OpenStack, which it returns too.
func (n *networks) wanted(ctx context.Context, in *kubestack.Network) (*cloud.Cloud, cloud.Network, error) {
	if in == nil {
		return nil, cloud.Network{}, errors.New("network is missing")
	}
	if err := need([2]string{"network.name", in.GetName()}, [2]string{"network.tenantID", in.GetTenantID()}); err != nil {
		return nil, cloud.Network{}, err
	}
	if len(in.GetSubnets()) == 0 {
		return nil, cloud.Network{}, errors.New("network.subnets is empty: give one subnet or more")
	}
	subnets, err := parseSubnets(in.GetName(), in.GetSubnets())
	if err != nil {
		return nil, cloud.Network{}, err
	}
	reached, err := n.cloud(ctx)
	if err != nil {
		return nil, cloud.Network{}, err
	}
	project, err := reached.Project(ctx, in.GetTenantID())
	if err != nil {
		return nil, cloud.Network{}, fmt.Errorf("network.tenantID: %w", err)
	}
	return reached, cloud.Network{Owner: "provider/" + in.GetName(), Name: in.GetName(), Project: project, Subnets: subnets, ByName: true}, nil
}

// parseSubnets translates subnets; errors name the field.
func parseSubnets(network string, in []*kubestack.Subnet) ([]cloud.Subnet, error) {
	out := make([]cloud.Subnet, 0, len(in))
	seen := map[string]bool{}
	for i, s := range in {
		field := fmt.Sprintf("network.subnets[%d]", i)
		name := s.GetName()
		if name == "" {
			name = fmt.Sprintf("%s-subnet-%d", network, i)
		}
		if seen[name] {
			return nil, fmt.Errorf("%s.name: %q is another subnet's", field, name)
		}
		seen[name] = true
		one, err := parseSubnet(field, s)
		if err != nil {
			return nil, err
		}
		one.Name = name
		out = append(out, one)
	}
	return out, nil
}

func parseSubnet(field string, s *kubestack.Subnet) (cloud.Subnet, error) {
	cidr, err := netip.ParsePrefix(s.GetCidr())
	if err != nil {
		return cloud.Subnet{}, fmt.Errorf("%s.cidr: %q is not a range such as 10.0.0.0/24", field, s.GetCidr())
	}
	if !cidr.Addr().Is4() {
		return cloud.Subnet{}, fmt.Errorf("%s.cidr: %s is not IPv4", field, cidr)
	}
	out := cloud.Subnet{CIDR: cidr.Masked()}
	if g := s.GetGateway(); g != "" {
		if out.Gateway, err = netip.ParseAddr(g); err != nil || !cidr.Contains(out.Gateway) {
			return cloud.Subnet{}, fmt.Errorf("%s.gateway: %q is not an address in %s", field, g, cidr)
		}
	}
	for i, text := range s.GetDnsservers() {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return cloud.Subnet{}, fmt.Errorf("%s.dnsservers[%d]: %q is not an address", field, i, text)
		}
		out.DNS = append(out.DNS, addr)
	}
	for i, r := range s.GetRoutes() {
		to, err := netip.ParsePrefix(r.GetDestinationCIDR())
		if err != nil {
			return cloud.Subnet{}, fmt.Errorf("%s.routes[%d].destinationCIDR: %q is not a range", field, i, r.GetDestinationCIDR())
		}
		via, err := netip.ParseAddr(r.GetNexthop())
		if err != nil {
			return cloud.Subnet{}, fmt.Errorf("%s.routes[%d].nexthop: %q is not an address", field, i, r.GetNexthop())
		}
		out.Routes = append(out.Routes, cloud.Route{Destination: to.Masked(), NextHop: via})
	}
	return out, nil
}

// DeleteNetwork removes the network with that name and everything on it.
func (n *networks) DeleteNetwork(ctx context.Context, req *kubestack.DeleteNetworkRequest) (*kubestack.CommonResponse, error) {
	if err := need([2]string{"networkName", req.GetNetworkName()}); err != nil {
		return &kubestack.CommonResponse{Error: text(err)}, nil
	}
	err := n.names.alone(ctx, req.GetNetworkName(), func() error {
		reached, err := n.cloud(ctx)
		if err != nil {
			return err
		}
		held, err := reached.FindNetwork(ctx, "", req.GetNetworkName(), "")
		if err != nil {
			return err
		}
		return reached.RemoveNetwork(ctx, held)
	})
	return &kubestack.CommonResponse{Error: words(err)}, nil
}
