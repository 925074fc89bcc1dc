package openstack

import (
	"context"
	"net/netip"

	"github.com/gophercloud/gophercloud/v2"
	extnet "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/external"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/provider"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// External is the network outside of Neutron's routers, which has the floating IPs.
type External struct {
	Range   netip.Prefix
	Gateway netip.Addr
	// First and Last are the range of addresses that Neutron allocates.
	First, Last netip.Addr
}

// externalName is the name of the network and of its subnet.
const externalName = "external"

// ExternalNetwork creates Neutron's external network on PhysicalNetwork, unless it exists, and returns its id.
func (s *Stack) ExternalNetwork(ctx context.Context, e External) (string, error) {
	c, err := networkClient(ctx, s.HTTP())
	if err != nil {
		return "", err
	}
	have, err := all(ctx, networks.List(c, networks.ListOpts{Name: externalName}), networks.ExtractNetworks)
	if err != nil {
		return "", err
	}
	if len(have) == 0 {
		yes := true
		made, err := networks.Create(ctx, c, extnet.CreateOptsExt{
			External: &yes,
			CreateOptsBuilder: provider.CreateOptsExt{
				CreateOptsBuilder: networks.CreateOpts{Name: externalName, AdminStateUp: &yes},
				Segments:          []provider.Segment{{NetworkType: "flat", PhysicalNetwork: PhysicalNetwork}},
			},
		}).Extract()
		if err != nil {
			return "", err
		}
		have = append(have, *made)
	}
	if len(have[0].Subnets) > 0 {
		return have[0].ID, nil
	}
	gateway, no := e.Gateway.String(), false
	return have[0].ID, subnets.Create(ctx, c, subnets.CreateOpts{
		Name: externalName, NetworkID: have[0].ID, CIDR: e.Range.String(), IPVersion: gophercloud.IPv4, GatewayIP: &gateway, EnableDHCP: &no,
		AllocationPools: []subnets.AllocationPool{{Start: e.First.String(), End: e.Last.String()}},
	}).Err
}
