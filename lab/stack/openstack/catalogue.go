package openstack

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/gophercloud/gophercloud/v2"
	gophercloudopenstack "github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/endpoints"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/services"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
	"github.com/gophercloud/gophercloud/v2/pagination"
)

// catalogue is Keystone's: the services with their endpoints at this lab's addresses, the services' users, the roles.
type catalogue struct {
	client   *http.Client // from inside the stack's namespace
	addr     netip.Addr   // of the public and internal endpoints
	hostAddr netip.Addr   // of the admin endpoints
	octavia  bool         // with Octavia's endpoints
}

// fill completes the catalogue. A second call changes nothing.
func (k catalogue) fill(ctx context.Context) error {
	c, err := identity(ctx, k.client)
	if err != nil {
		return err
	}
	if err := k.endpoints(ctx, c); err != nil {
		return fmt.Errorf("fill Keystone's catalogue: %w", err)
	}
	if err := serviceUsers(ctx, c); err != nil {
		return fmt.Errorf("make the services' users: %w", err)
	}
	return nil
}

// identity returns a client for Keystone by its address: the catalogue has none yet. The HTTP client connects from inside the stack's
// namespace, as networkClient's does.
func identity(ctx context.Context, client *http.Client) (*gophercloud.ServiceClient, error) {
	auth := fmt.Sprintf("http://127.0.0.1:%d/v3", KeystonePort)
	p, err := gophercloudopenstack.NewClient(auth)
	if err != nil {
		return nil, fmt.Errorf("make Keystone's client: %w", err)
	}
	p.HTTPClient = *client
	if err := gophercloudopenstack.Authenticate(ctx, p, gophercloud.AuthOptions{
		IdentityEndpoint: auth, Username: Admin, Password: AdminPassword, DomainName: "Default", TenantName: Admin,
	}); err != nil {
		return nil, fmt.Errorf("authenticate as OpenStack's administrator: %w", err)
	}
	return &gophercloud.ServiceClient{ProviderClient: p, Endpoint: auth + "/", Type: "identity"}, nil
}

// networkClient returns a client for Neutron by its address.
func networkClient(ctx context.Context, client *http.Client) (*gophercloud.ServiceClient, error) {
	keystone, err := identity(ctx, client)
	if err != nil {
		return nil, err
	}
	at := fmt.Sprintf("http://127.0.0.1:%d/", NeutronPort)
	return &gophercloud.ServiceClient{ProviderClient: keystone.ProviderClient, Endpoint: at, ResourceBase: at + "v2.0/", Type: "network"}, nil
}

func (k catalogue) endpoints(ctx context.Context, c *gophercloud.ServiceClient) error {
	have, err := all(ctx, services.List(c, services.ListOpts{}), services.ExtractServices)
	if err != nil {
		return err
	}
	present, err := all(ctx, endpoints.List(c, endpoints.ListOpts{}), endpoints.ExtractEndpoints)
	if err != nil {
		return err
	}
	for _, want := range []struct {
		kind, path string
		port       uint16
	}{{"identity", "/v3", KeystonePort}, {"network", "", NeutronPort}, {"load-balancer", "", OctaviaPort}} {
		if want.kind == "load-balancer" && !k.octavia {
			continue
		}
		id := serviceOf(have, want.kind)
		if id == "" {
			made, err := services.Create(ctx, c, services.CreateOpts{Type: want.kind, Extra: map[string]any{"name": want.kind}}).Extract()
			if err != nil {
				return err
			}
			id = made.ID
		}
		for kind, ip := range map[gophercloud.Availability]netip.Addr{
			gophercloud.AvailabilityPublic: k.addr, gophercloud.AvailabilityInternal: k.addr, gophercloud.AvailabilityAdmin: k.hostAddr,
		} {
			if err := endpoint(ctx, c, present, endpoints.CreateOpts{
				Availability: kind, Name: want.kind, Region: Region, ServiceID: id, URL: url(ip, want.port) + want.path,
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

func serviceOf(have []services.Service, kind string) string {
	for _, one := range have {
		if one.Type == kind {
			return one.ID
		}
	}
	return ""
}

// endpoint makes an endpoint, or changes the existing one to this lab's address.
func endpoint(ctx context.Context, c *gophercloud.ServiceClient, present []endpoints.Endpoint, want endpoints.CreateOpts) error {
	for _, have := range present {
		if have.ServiceID != want.ServiceID || have.Availability != want.Availability {
			continue
		}
		if have.URL == want.URL {
			return nil
		}
		return endpoints.Update(ctx, c, have.ID, endpoints.UpdateOpts{URL: want.URL}).Err
	}
	return endpoints.Create(ctx, c, want).Err
}

func serviceUsers(ctx context.Context, c *gophercloud.ServiceClient) error {
	role, err := roleID(ctx, c, "admin")
	if err != nil {
		return err
	}
	for _, name := range []string{"member", "load-balancer_member"} {
		if _, err := roleID(ctx, c, name); err != nil {
			return err
		}
	}
	project, err := serviceProject(ctx, c)
	if err != nil {
		return err
	}
	for _, name := range []string{"neutron", "octavia"} {
		have, err := all(ctx, users.List(c, users.ListOpts{Name: name}), users.ExtractUsers)
		if err != nil {
			return err
		}
		if len(have) == 0 {
			made, err := users.Create(ctx, c, users.CreateOpts{Name: name, DomainID: "default", Password: servicePassword}).Extract()
			if err != nil {
				return err
			}
			have = append(have, *made)
		}
		if err := roles.Assign(ctx, c, role, roles.AssignOpts{UserID: have[0].ID, ProjectID: project}).ExtractErr(); err != nil {
			return err
		}
	}
	return nil
}

func serviceProject(ctx context.Context, c *gophercloud.ServiceClient) (string, error) {
	have, err := all(ctx, projects.List(c, projects.ListOpts{Name: "service"}), projects.ExtractProjects)
	if err != nil {
		return "", err
	}
	if len(have) > 0 {
		return have[0].ID, nil
	}
	made, err := projects.Create(ctx, c, projects.CreateOpts{Name: "service", DomainID: "default"}).Extract()
	if err != nil {
		return "", err
	}
	return made.ID, nil
}

// roleID finds a role, or makes it.
func roleID(ctx context.Context, c *gophercloud.ServiceClient, name string) (string, error) {
	have, err := all(ctx, roles.List(c, roles.ListOpts{Name: name}), roles.ExtractRoles)
	if err != nil {
		return "", err
	}
	if len(have) > 0 {
		return have[0].ID, nil
	}
	made, err := roles.Create(ctx, c, roles.CreateOpts{Name: name}).Extract()
	if err != nil {
		return "", err
	}
	return made.ID, nil
}

// all reads all pages of a list.
func all[T any](ctx context.Context, list pagination.Pager, extract func(pagination.Page) ([]T, error)) ([]T, error) {
	pages, err := list.AllPages(ctx)
	if err != nil {
		return nil, err
	}
	return extract(pages)
}
