package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"weft.dev/weft/internal/neutron/openstack"
)

// MostPorts is the maximum number of ports that one call of CreatePorts creates: more would exceed a call's time limit.
const MostPorts = 16

// NewPorts are ports of one subnet and host that are created together.
type NewPorts struct {
	Owner     string // their purpose; part of the mark
	Project   string
	Network   string // its id
	Subnet    string // its id
	Subnet6   string // id of the IPv6 subnet in which Neutron chooses an address for each port; "": none
	Host      string // binding:host_id
	Groups    []string
	Addresses []netip.Addr // IPv4; each port's MAC address is derived from its address
}

// Reasons why Neutron creates none of the ports of a call.
var (
	// ErrAddressTaken is returned if Neutron has assigned one of the addresses.
	ErrAddressTaken = errors.New("an address belongs to another port in OpenStack")
	// ErrQuota is returned if the project's quota has no room for all ports of a call. It may have room for some of them.
	ErrQuota = errors.New("the project's quota of ports is used up: raise it with openstack quota set --ports, or delete ports")
)

// overQuota is Neutron's name of the error. Its status is 409, as is that of the error about a taken address.
const overQuota = "OverQuota"

// MAC is the MAC address of a port that Weft creates with an IPv4 address: nodes derive it themselves.
func MAC(addr netip.Addr) string {
	b := addr.As4()
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// CreatePorts creates ports in one call: all, or none. If the outcome is unknown, Ports shows what exists.
func (s *portSet) CreatePorts(ctx context.Context, want NewPorts) ([]HeldPort, error) {
	list := make([]map[string]any, 0, len(want.Addresses))
	for _, addr := range want.Addresses {
		fixed := []ports.IP{{SubnetID: want.Subnet, IPAddress: addr.String()}}
		if want.Subnet6 != "" {
			fixed = append(fixed, ports.IP{SubnetID: want.Subnet6})
		}
		opts := portsbinding.CreateOptsExt{
			CreateOptsBuilder: ports.CreateOpts{
				NetworkID: want.Network, Description: s.mark(want.Owner), ProjectID: want.Project, AdminStateUp: yes(),
				DeviceOwner: deviceOwner(want.Host), SecurityGroups: &want.Groups, MACAddress: MAC(addr),
				FixedIPs: fixed,
			},
			HostID: want.Host,
		}
		body, err := opts.ToPortCreateMap()
		if err != nil {
			return nil, fmt.Errorf("describe port %s: %w", addr, err)
		}
		one, ok := body["port"].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("describe port %s: %T is no port", addr, body["port"])
		}
		list = append(list, one)
	}
	var made struct {
		Ports []HeldPort `json:"ports"`
	}
	_, err := s.client.Network.Post(ctx, s.client.Network.ServiceURL("ports"), map[string]any{"ports": list}, &made, //nolint:bodyclose // it is read
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusCreated}})
	if err != nil {
		return nil, fmt.Errorf("create %d ports on host %q: %w", len(list), want.Host, refusedPorts(openstack.Explain(err)))
	}
	if len(made.Ports) != len(list) || slices.ContainsFunc(made.Ports, func(p HeldPort) bool { return p.ID == "" || len(p.FixedIPs) == 0 }) {
		return nil, fmt.Errorf("create %d ports on host %q: %w", len(list), want.Host, ErrAnswer)
	}
	return made.Ports, nil
}

// refusedPorts adds the reason to an error that says it.
func refusedPorts(err error) error {
	refused, answered := errors.AsType[*openstack.Error](err)
	switch {
	case !answered || refused.Status != http.StatusConflict:
		return err
	case refused.Type == overQuota:
		return fmt.Errorf("%w: %w", ErrQuota, err)
	default:
		return fmt.Errorf("%w: %w", ErrAddressTaken, err)
	}
}

// Ports lists all ports of a network, with their bindings.
func (s *portSet) Ports(ctx context.Context, network string) ([]HeldPort, error) {
	found, err := s.list(ctx, ports.ListOpts{NetworkID: network})
	if err != nil {
		return nil, fmt.Errorf("list the ports of network %s: %w", network, err)
	}
	return found, nil
}

// list lists ports with their bindings. Each page is decoded into ports at once: gophercloud's pager keeps a list as text, as maps, and as text
// again before it is decoded, several megabytes for some hundred ports.
func (s *portSet) list(ctx context.Context, opts ports.ListOpts) (found []HeldPort, err error) {
	query, err := opts.ToPortListQuery()
	if err != nil {
		return nil, fmt.Errorf("describe the list: %w", err)
	}
	for url := s.client.Network.ServiceURL("ports") + query; url != ""; {
		var page portPage
		if _, err := s.client.Network.Get(ctx, url, &page, nil); err != nil { //nolint:bodyclose // it is read
			return nil, openstack.Explain(err)
		}
		if url, err = page.next(); err != nil {
			return nil, err
		}
		found = append(found, page.Ports...)
	}
	return found, nil
}

// portPage is Neutron's answer with a list of ports. It is the whole list, unless Neutron's configuration limits the length of answers
// (pagination_max_limit).
type portPage struct {
	Ports []HeldPort         `json:"ports"`
	Links []gophercloud.Link `json:"ports_links"`
}

// next returns the address of the next page; "" if this is the last one. The last page may be empty.
func (p *portPage) next() (string, error) {
	switch {
	case p.Ports == nil:
		return "", ErrAnswer
	case len(p.Ports) == 0:
		return "", nil
	}
	address, err := gophercloud.ExtractNextURL(p.Links)
	if err != nil {
		return "", fmt.Errorf("address of the next page: %w", err)
	}
	return address, nil
}

// Has reports whether a port has an address.
func (p *HeldPort) Has(addr netip.Addr) bool {
	return slices.ContainsFunc(p.FixedIPs, func(ip ports.IP) bool { return ip.IPAddress == addr.String() })
}

// Hosted reports whether a port is for a host, and has the device owner of ports that CreatePorts creates for it.
func (p *HeldPort) Hosted() bool { return p.HostID != "" && p.DeviceOwner == deviceOwner(p.HostID) }

// Bound reports whether Neutron has bound a port to its host.
func (p *HeldPort) Bound() bool { return p.VIFType != "binding_failed" && p.VIFType != "unbound" }

// Active reports whether the port's flows are in effect.
func (p *HeldPort) Active() bool { return p.Status == "ACTIVE" }

// IsRouter reports whether the port connects its subnet to a router.
func (p *HeldPort) IsRouter() bool { return slices.Contains(routerInterfaces(), p.DeviceOwner) }

// IsDHCP reports whether the port serves DHCP and names.
func (p *HeldPort) IsDHCP() bool { return p.DeviceOwner == "network:dhcp" }
