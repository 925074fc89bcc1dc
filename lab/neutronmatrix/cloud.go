package neutronmatrix

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	"github.com/gophercloud/gophercloud/v2/pagination"

	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
	"weft.dev/weft/lab"
	stack "weft.dev/weft/lab/stack/openstack"
)

// Port is a port with its binding.
type Port struct {
	ports.Port
	portsbinding.PortsBindingExt
}

// Cloud is the content of a lab's OpenStack.
type Cloud struct {
	Projects  []projects.Project
	Networks  []networks.Network
	Subnets   []subnets.Subnet
	Routers   []routers.Router
	Groups    []groups.SecGroup
	Ports     []Port
	Floating  []floatingips.FloatingIP
	Balancers []loadbalancers.LoadBalancer
}

// Read reads a lab's OpenStack as its administrator.
func Read(ctx context.Context, c *lab.Cluster) (*Cloud, error) {
	if c.OpenStack == nil {
		return nil, fmt.Errorf("lab %s has no OpenStack: bring it up with --openstack", c.Name())
	}
	admin, err := openstack.New(ctx, conf.Global{
		AuthURL: c.OpenStack.AuthURL(), Username: stack.Admin, Password: stack.AdminPassword, TenantName: stack.Admin, Region: stack.Region,
	}, openstack.Options{Transport: c.OpenStack.Transport()})
	if err != nil {
		return nil, err
	}
	var found Cloud
	reads := []func() error{
		list(ctx, &found.Projects, projects.List(admin.Identity, projects.ListOpts{}), projects.ExtractProjects),
		list(ctx, &found.Networks, networks.List(admin.Network, networks.ListOpts{}), networks.ExtractNetworks),
		list(ctx, &found.Subnets, subnets.List(admin.Network, subnets.ListOpts{}), subnets.ExtractSubnets),
		list(ctx, &found.Routers, routers.List(admin.Network, routers.ListOpts{}), routers.ExtractRouters),
		list(ctx, &found.Groups, groups.List(admin.Network, groups.ListOpts{}), groups.ExtractGroups),
		list(ctx, &found.Floating, floatingips.List(admin.Network, floatingips.ListOpts{}), floatingips.ExtractFloatingIPs),
		list(ctx, &found.Ports, ports.List(admin.Network, ports.ListOpts{}), func(page pagination.Page) (all []Port, err error) {
			return all, ports.ExtractPortsInto(page, &all)
		}),
	}
	if admin.LoadBalancer != nil {
		reads = append(reads, list(ctx, &found.Balancers, loadbalancers.List(admin.LoadBalancer, loadbalancers.ListOpts{}), loadbalancers.ExtractLoadBalancers))
	}
	for _, read := range reads {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return &found, nil
}

// list reads all pages of a list.
func list[T any](ctx context.Context, into *[]T, pager pagination.Pager, extract func(pagination.Page) ([]T, error)) func() error {
	return func() error {
		pages, err := pager.AllPages(ctx)
		if err != nil {
			return fmt.Errorf("list of OpenStack: %w", err)
		}
		*into, err = extract(pages)
		return err
	}
}

// RouterAddress returns the source address of a router's networks outside; zero if there is none.
func (c *Cloud) RouterAddress(name string) netip.Addr {
	for _, r := range c.Routers {
		if r.Name != name {
			continue
		}
		for _, ip := range r.GatewayInfo.ExternalFixedIPs {
			if addr, err := netip.ParseAddr(ip.IPAddress); err == nil && addr.Is4() {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// project returns a project's name by its id, and network a network's.
func (c *Cloud) project(id string) string {
	for _, p := range c.Projects {
		if p.ID == id {
			return p.Name
		}
	}
	return id
}

func (c *Cloud) network(id string) string {
	for _, n := range c.Networks {
		if n.ID == id {
			return n.Name
		}
	}
	return id
}

// Table writes the ports, and the remaining objects.
func (c *Cloud) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(columns ...string) error {
		_, err := fmt.Fprintln(w, strings.Join(columns, "\t"))
		return err //nolint:wrapcheck // the caller wraps it
	}
	err := line("PROJECT", "NETWORK", "PORT", "ADDRESS", "OWNER", "HOST", "STATUS")
	sorted := slices.SortedFunc(slices.Values(c.Ports), func(a, b Port) int {
		return strings.Compare(c.project(a.ProjectID)+a.HostID+a.ID, c.project(b.ProjectID)+b.HostID+b.ID)
	})
	for _, p := range sorted {
		var addresses []string
		for _, ip := range p.FixedIPs {
			addresses = append(addresses, ip.IPAddress)
		}
		if err == nil {
			err = line(c.project(p.ProjectID), c.network(p.NetworkID), p.ID, strings.Join(addresses, ","), p.DeviceOwner, p.HostID, p.Status)
		}
	}
	for _, r := range c.Routers {
		if err == nil {
			err = line(c.project(r.ProjectID), "router "+r.Name, r.ID, c.RouterAddress(r.Name).String(), "", "", r.Status)
		}
	}
	for _, b := range c.Balancers {
		if err == nil {
			err = line(c.project(b.ProjectID), "load balancer "+b.Name, b.ID, b.VipAddress, "", "", b.ProvisioningStatus)
		}
	}
	for _, f := range c.Floating {
		if err == nil {
			err = line(c.project(f.ProjectID), "floating IP to "+f.FixedIP, f.ID, f.FloatingIP, "", "", f.Status)
		}
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return fmt.Errorf("write what OpenStack has: %w", err)
	}
	return nil
}
