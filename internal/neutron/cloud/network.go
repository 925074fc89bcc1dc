package cloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/external"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/mtu"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/rbacpolicies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"weft.dev/weft/internal/neutron/openstack"
)

// topology makes the requests about networks, with their subnets and routers.
type topology struct {
	marks

	client *openstack.Client
	// ports are removed with their network.
	ports portSet
	// external is Config.ExternalNetwork.
	external string
}

// Network is the desired state of a network, with subnets and a router with the network's name.
type Network struct {
	Owner   string // the object for which it is created; part of the mark
	Name    string // of network and router
	Project string // its id
	Subnets []Subnet
	// ByName uses the project's network with the name, as KubeStack does. Otherwise only one with Owner's mark counts, which is the only one
	// in all projects.
	ByName bool
}

// Subnet is the desired state of a subnet.
type Subnet struct {
	Name    string
	CIDR    netip.Prefix
	Gateway netip.Addr // zero: the first address
	DNS     []netip.Addr
	Routes  []Route
}

// Route is a host route of a subnet, for its pods.
type Route struct {
	Destination netip.Prefix
	NextHop     netip.Addr
}

// HeldNetwork is a network in Neutron.
type HeldNetwork struct {
	networks.Network
	mtu.NetworkMTUExt
	external.NetworkExternalExt

	Held []subnets.Subnet
}

// FindNetwork looks a network up by id, or else by name; project "" means any. It returns ErrNotFound and ErrMultiple.
func (t *topology) FindNetwork(ctx context.Context, project, name, id string) (*HeldNetwork, error) {
	what := fmt.Sprintf("network %q", name+id)
	if id == "" {
		one, err := t.lookNetwork(ctx, what, networks.ListOpts{Name: name, ProjectID: project})
		if err == nil && one == nil {
			err = fmt.Errorf("%s: %w", what, ErrNotFound)
		}
		if err != nil {
			return nil, err
		}
		one.Held, err = t.subnetsOf(ctx, what, one.ID)
		return one, err
	}
	var one *HeldNetwork
	var held []subnets.Subnet
	err := together(ctx,
		func(ctx context.Context) (err error) {
			one, err = t.lookNetwork(ctx, what, networks.ListOpts{ID: id, ProjectID: project})
			return err
		},
		func(ctx context.Context) (err error) {
			held, err = t.subnetsOf(ctx, what, id)
			return err
		},
	)
	if err == nil && one == nil {
		err = fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	one.Held = held
	return one, nil
}

// SharedWith reports whether a network is shared with a project, or with all. The network's field shared says that only of the credentials'
// project (_is_network_shared of Neutron 21).
func (t *topology) SharedWith(ctx context.Context, network, project string) (bool, error) {
	found, err := list(ctx, rbacpolicies.List(t.client.Network, rbacpolicies.ListOpts{
		ObjectType: "network", ObjectID: network, Action: rbacpolicies.ActionAccessShared,
	}), rbacpolicies.ExtractRBACPolicies)
	if err != nil {
		return false, fmt.Errorf("list the projects that network %s is shared with: %w", network, err)
	}
	return slices.ContainsFunc(found, func(p rbacpolicies.RBACPolicy) bool { return p.TargetTenant == "*" || p.TargetTenant == project }), nil
}

func (t *topology) subnetsOf(ctx context.Context, what, network string) ([]subnets.Subnet, error) {
	found, err := list(ctx, subnets.List(t.client.Network, subnets.ListOpts{NetworkID: network}), subnets.ExtractSubnets)
	if err != nil {
		return nil, fmt.Errorf("list the subnets of %s: %w", what, err)
	}
	return found, nil
}

// OwnNetworks lists the networks that Weft created for an owner, in any project and with any name: their projects can rename them.
func (t *topology) OwnNetworks(ctx context.Context, owner string) ([]HeldNetwork, error) {
	what := "network of " + owner
	found, err := t.markedNetworks(ctx, what, owner)
	for i := range found {
		if err == nil {
			found[i].Held, err = t.subnetsOf(ctx, what, found[i].ID)
		}
	}
	return found, err
}

func (t *topology) markedNetworks(ctx context.Context, what, owner string) ([]HeldNetwork, error) {
	mark := t.mark(owner)
	found, err := t.listNetworks(ctx, what, networks.ListOpts{Description: mark})
	return slices.DeleteFunc(found, func(n HeldNetwork) bool { return n.Description != mark }), err
}

func (t *topology) listNetworks(ctx context.Context, what string, by networks.ListOpts) ([]HeldNetwork, error) {
	pages, err := networks.List(t.client.Network, by).AllPages(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", what, openstack.Explain(err))
	}
	var found []HeldNetwork
	if err := networks.ExtractNetworksInto(pages, &found); err != nil {
		return nil, fmt.Errorf("look for %s: %w", what, err)
	}
	return found, nil
}

func (t *topology) lookNetwork(ctx context.Context, what string, by networks.ListOpts) (*HeldNetwork, error) {
	found, err := t.listNetworks(ctx, what, by)
	if err != nil {
		return nil, err
	}
	return only(what, found, nil)
}

// lookOwn looks up the network that Weft created earlier. Networks of other owners may have the same name, and one of the owner may be in
// another project, or have got another name: there it stays, because pods are on it.
func (t *topology) lookOwn(ctx context.Context, what string, want Network) (*HeldNetwork, error) {
	var named, own []HeldNetwork
	err := together(ctx,
		func(ctx context.Context) (err error) {
			named, err = t.listNetworks(ctx, what, networks.ListOpts{Name: want.Name, ProjectID: want.Project})
			return err
		},
		func(ctx context.Context) (err error) {
			own, err = t.markedNetworks(ctx, what, want.Owner)
			return err
		},
	)
	if err != nil {
		return nil, err
	}
	foreign := slices.ContainsFunc(named, func(n HeldNetwork) bool { return want.ByName || !t.marked(n.Description) })
	own = slices.DeleteFunc(own, func(n HeldNetwork) bool { return want.ByName && (n.Name != want.Name || n.ProjectID != want.Project) })
	own = within(want.Project, own, func(n *HeldNetwork) string { return n.ProjectID })
	slices.SortFunc(own, func(x, y HeldNetwork) int {
		return cmp.Or(cmp.Compare(len(y.Subnets), len(x.Subnets)), strings.Compare(x.ID, y.ID))
	})
	one, err := keepOne(what, own, func(n *HeldNetwork) error { return networks.Delete(ctx, t.client.Network, n.ID).ExtractErr() })
	switch {
	case err != nil:
		return nil, err
	case one == nil && foreign:
		return nil, fmt.Errorf("%s of project %s: %w", what, want.Project, ErrForeign)
	case one != nil && one.ProjectID != want.Project:
		return nil, fmt.Errorf("%s: the project is %s, %s is wanted: %w", what, one.ProjectID, want.Project, ErrFixed)
	}
	return one, nil
}

// EnsureNetwork creates what is missing of a network, and updates what may change (name servers, routes). It returns the network's id. If it
// fails, what it created is removed.
//
// Network and router do not depend on each other: each pair of requests is sent at once. What this call created is not searched for
// subnets and interfaces.
func (t *topology) EnsureNetwork(ctx context.Context, want Network) (id string, err error) {
	var made undo
	defer func() {
		if err != nil {
			err = errors.Join(err, made.run(ctx))
		}
	}()
	network, router := t.networkOf(want), t.routerOf(want)
	if err := together(ctx, network.find, router.find); err != nil {
		return "", err
	}
	err = together(ctx, network.create, router.create)
	made.add(router.made, func(ctx context.Context) error {
		return gone(router.what, routers.Delete(ctx, t.client.Network, router.held.ID).ExtractErr())
	})
	made.add(network.made, func(ctx context.Context) error {
		return gone(network.what, networks.Delete(ctx, t.client.Network, network.held.ID).ExtractErr())
	})
	if err != nil {
		return "", err
	}
	at := place{network: network.held.ID, router: router.held.ID, empty: network.made}
	for _, subnet := range want.Subnets {
		if err := t.ensureSubnet(ctx, want, subnet, at, &made); err != nil {
			return "", err
		}
	}
	return network.held.ID, nil
}

// single is an object that a call finds, or else creates.
type single[T any] struct {
	what string
	id   func(*T) string
	look func(context.Context) (*T, error)
	// send sends the request that creates it.
	send func(context.Context) (*T, error)

	held *T
	// made reports whether this call created it.
	made bool
}

func (s *single[T]) find(ctx context.Context) (err error) {
	s.held, err = s.look(ctx)
	return err
}

func (s *single[T]) create(ctx context.Context) (err error) {
	if s.held == nil {
		s.held, s.made, err = makeAbsent(ctx, s.what, s.id, s.look, s.send)
	}
	return err
}

func (t *topology) networkOf(want Network) *single[HeldNetwork] {
	what := fmt.Sprintf("network %q", want.Name)
	return &single[HeldNetwork]{
		what: what, id: func(n *HeldNetwork) string { return n.ID },
		look: func(ctx context.Context) (*HeldNetwork, error) { return t.lookOwn(ctx, what, want) },
		send: func(ctx context.Context) (*HeldNetwork, error) {
			n, err := whole(networks.Create(ctx, t.client.Network, networks.CreateOpts{
				Name: want.Name, ProjectID: want.Project, Description: t.mark(want.Owner), AdminStateUp: yes(),
			}).Extract())
			if err != nil {
				return nil, err
			}
			return &HeldNetwork{Network: *n}, nil
		},
	}
}

func (t *topology) routerOf(want Network) *single[routers.Router] {
	what := fmt.Sprintf("router %q", want.Name)
	opts := routers.CreateOpts{Name: want.Name, ProjectID: want.Project, Description: t.mark(want.Owner), AdminStateUp: yes()}
	if t.external != "" {
		opts.GatewayInfo = &routers.GatewayInfo{NetworkID: t.external}
	}
	return &single[routers.Router]{
		what: what, id: func(r *routers.Router) string { return r.ID },
		look: func(ctx context.Context) (*routers.Router, error) {
			found, err := list(ctx, routers.List(t.client.Network, routers.ListOpts{
				ProjectID: want.Project, Description: t.mark(want.Owner), // its project may have renamed it
			}), routers.ExtractRouters)
			if err != nil {
				return nil, fmt.Errorf("look for %s: %w", what, err)
			}
			found = slices.DeleteFunc(found, func(r routers.Router) bool { return r.Description != opts.Description })
			slices.SortFunc(found, func(x, y routers.Router) int { return strings.Compare(x.ID, y.ID) })
			return keepOne(what, found, func(r *routers.Router) error { return routers.Delete(ctx, t.client.Network, r.ID).ExtractErr() })
		},
		send: func(ctx context.Context) (*routers.Router, error) {
			return routers.Create(ctx, t.client.Network, opts).Extract()
		},
	}
}

// place has the ids of a subnet's network and router.
type place struct {
	network, router string
	// empty reports that the network was just created.
	empty bool
}

// ErrFixed is returned if an object exists with other values of fields that cannot change.
var ErrFixed = errors.New("cannot change: delete the network and make it anew")

func (t *topology) ensureSubnet(ctx context.Context, want Network, s Subnet, at place, made *undo) error {
	what := fmt.Sprintf("subnet %q", s.Name)
	held, fresh, err := makeOnce(ctx, what, func(s *subnets.Subnet) string { return s.ID },
		func(ctx context.Context) (*subnets.Subnet, error) {
			if at.empty {
				return nil, nil //nolint:nilnil // nothing is found, as by only
			}
			found, err := list(ctx, subnets.List(t.client.Network, subnets.ListOpts{NetworkID: at.network}), subnets.ExtractSubnets)
			return only(what, sought(found, s), err)
		},
		func(ctx context.Context) (*subnets.Subnet, error) {
			return subnets.Create(ctx, t.client.Network, t.subnetOptions(want, s, at.network)).Extract()
		})
	if err != nil {
		return err
	}
	made.add(fresh, func(ctx context.Context) error {
		return gone(what, subnets.Delete(ctx, t.client.Network, held.ID).ExtractErr())
	})
	if fresh { // it is not connected yet
		return t.connect(ctx, what, at.router, held, made)
	}
	if err := t.updateSubnet(ctx, what, s, held); err != nil {
		return err
	}
	return t.ensureInterface(ctx, what, at.router, held, made)
}

// sought returns the subnet with a range; it may have got another name. Without one, it returns those with the name: their range is not the
// desired one.
func sought(found []subnets.Subnet, want Subnet) []subnets.Subnet {
	without := func(other func(subnets.Subnet) bool) []subnets.Subnet {
		return slices.DeleteFunc(slices.Clone(found), other)
	}
	if same := without(func(s subnets.Subnet) bool { return s.CIDR != want.CIDR.String() }); len(same) > 0 {
		return same
	}
	return without(func(s subnets.Subnet) bool { return s.Name != want.Name })
}

func (t *topology) subnetOptions(want Network, s Subnet, network string) subnets.CreateOpts {
	version := gophercloud.IPv4
	if s.CIDR.Addr().Is6() {
		version = gophercloud.IPv6
	}
	opts := subnets.CreateOpts{
		NetworkID: network, Name: s.Name, ProjectID: want.Project, Description: t.mark(want.Owner),
		CIDR: s.CIDR.String(), IPVersion: version, EnableDHCP: yes(), DNSNameservers: texts(s.DNS), HostRoutes: hostRoutes(s.Routes),
	}
	if s.Gateway.IsValid() {
		gateway := s.Gateway.String()
		opts.GatewayIP = &gateway
	}
	return opts
}

func texts(addrs []netip.Addr) []string {
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

func hostRoutes(routes []Route) []subnets.HostRoute {
	out := make([]subnets.HostRoute, 0, len(routes))
	for _, r := range routes {
		out = append(out, subnets.HostRoute{DestinationCIDR: r.Destination.String(), NextHop: r.NextHop.String()})
	}
	return out
}

func (t *topology) updateSubnet(ctx context.Context, what string, want Subnet, held *subnets.Subnet) error {
	if held.CIDR != want.CIDR.String() {
		return fmt.Errorf("%s: cidr is %s, %s is wanted: %w", what, held.CIDR, want.CIDR, ErrFixed)
	}
	if want.Gateway.IsValid() && held.GatewayIP != want.Gateway.String() {
		return fmt.Errorf("%s: gateway is %q, %s is wanted: %w", what, held.GatewayIP, want.Gateway, ErrFixed)
	}
	dns, routes := texts(want.DNS), hostRoutes(want.Routes)
	if slices.Equal(dns, held.DNSNameservers) && slices.Equal(routes, held.HostRoutes) {
		return nil
	}
	err := subnets.Update(ctx, t.client.Network, held.ID, subnets.UpdateOpts{DNSNameservers: &dns, HostRoutes: &routes}).Err
	if err != nil {
		return fmt.Errorf("update %s: %w", what, openstack.Explain(err))
	}
	return nil
}

// ensureInterface connects a subnet to its router, unless it is connected.
func (t *topology) ensureInterface(ctx context.Context, what, router string, s *subnets.Subnet, made *undo) error {
	if there, err := t.connected(ctx, router, s); err != nil || there {
		return err
	}
	return t.connect(ctx, what, router, s, made)
}

func (t *topology) connect(ctx context.Context, what, router string, s *subnets.Subnet, made *undo) error {
	_, err := routers.AddInterface(ctx, t.client.Network, router, routers.AddInterfaceOpts{SubnetID: s.ID}).Extract()
	if err != nil {
		if there, lookErr := t.connected(ctx, router, s); lookErr != nil || !there {
			return fmt.Errorf("connect %s to its router: %w", what, openstack.Explain(err))
		}
	}
	made.add(true, func(ctx context.Context) error { return t.disconnect(ctx, router, s.ID) })
	return nil
}

func (t *topology) connected(ctx context.Context, router string, s *subnets.Subnet) (bool, error) {
	found, err := list(ctx, ports.List(t.client.Network, ports.ListOpts{NetworkID: s.NetworkID, DeviceID: router}), ports.ExtractPorts)
	for _, p := range found {
		if slices.ContainsFunc(p.FixedIPs, func(ip ports.IP) bool { return ip.SubnetID == s.ID }) {
			return true, err
		}
	}
	return false, err
}

func (t *topology) disconnect(ctx context.Context, router, subnet string) error {
	_, err := routers.RemoveInterface(ctx, t.client.Network, router, routers.RemoveInterfaceOpts{SubnetID: subnet}).Extract()
	return gone("router interface of subnet "+subnet, err)
}

// routerInterfaces are the device owners of ports that connect a subnet to a router.
func routerInterfaces() []string {
	return []string{"network:router_interface", "network:ha_router_replicated_interface", "network:router_interface_distributed"}
}

// isNetworks reports whether a port is Neutron's own: a router's, or one that serves DHCP or metadata.
func isNetworks(deviceOwner string) bool { return strings.HasPrefix(deviceOwner, "network:") }

// RemoveNetwork removes a network with all its ports, subnets and the routers that only it uses. Objects that do not exist any more are no
// error.
func (t *topology) RemoveNetwork(ctx context.Context, held *HeldNetwork) error {
	found, err := list(ctx, ports.List(t.client.Network, ports.ListOpts{NetworkID: held.ID}), ports.ExtractPorts)
	if err != nil {
		return fmt.Errorf("list the ports of network %q: %w", held.Name, err)
	}
	connected := map[string]bool{}
	var errs []error
	for _, p := range found {
		if !slices.Contains(routerInterfaces(), p.DeviceOwner) {
			if !isNetworks(p.DeviceOwner) { // Neutron removes its own with the network
				errs = append(errs, t.ports.RemovePort(ctx, p.ID))
			}
			continue
		}
		connected[p.DeviceID] = true
		for _, ip := range p.FixedIPs {
			errs = append(errs, t.disconnect(ctx, p.DeviceID, ip.SubnetID))
		}
	}
	for _, s := range held.Held {
		errs = append(errs, gone("subnet "+s.Name, subnets.Delete(ctx, t.client.Network, s.ID).ExtractErr()))
	}
	errs = append(errs, t.removeRouters(ctx, held, routers.ListOpts{Name: held.Name, ProjectID: held.ProjectID}, connected))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return gone("network "+held.Name, networks.Delete(ctx, t.client.Network, held.ID).ExtractErr())
}

// RemoveOwnRouters removes the routers that Weft created for an owner whose network does not exist: it was removed, or never completed.
func (t *topology) RemoveOwnRouters(ctx context.Context, owner string) error {
	mark := t.mark(owner)
	return t.removeRouters(ctx, &HeldNetwork{Network: networks.Network{Name: owner, Description: mark}}, routers.ListOpts{Description: mark}, nil)
}

// removeRouters removes those of the routers that by lists to which nothing is connected any more: those that were connected to the network,
// and those with its mark.
func (t *topology) removeRouters(ctx context.Context, held *HeldNetwork, by routers.ListOpts, connected map[string]bool) error {
	found, err := list(ctx, routers.List(t.client.Network, by), routers.ExtractRouters)
	if err != nil {
		return fmt.Errorf("list the routers of network %q: %w", held.Name, err)
	}
	for _, r := range found {
		if !connected[r.ID] && (r.Description != held.Description || !t.marked(r.Description)) {
			continue // another router with the same name
		}
		rest, err := list(ctx, ports.List(t.client.Network, ports.ListOpts{DeviceID: r.ID, DeviceOwner: routerInterfaces()[0]}), ports.ExtractPorts)
		if err != nil {
			return fmt.Errorf("list what router %q connects: %w", r.Name, err)
		}
		if len(rest) > 0 {
			continue
		}
		if err := gone("router "+r.Name, routers.Delete(ctx, t.client.Network, r.ID).ExtractErr()); err != nil {
			return err
		}
	}
	return nil
}
