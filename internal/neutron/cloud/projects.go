package cloud

import (
	"context"
	"errors"
	"fmt"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
)

// ErrForeign is returned for an object with the desired name that Weft did not create, and must not take over.
var ErrForeign = errors.New("exists in OpenStack and was not made by Weft")

// EnsureProject creates a project with that name. An existing one without Weft's mark is not taken over.
func (c *Cloud) EnsureProject(ctx context.Context, owner, name string) (string, error) {
	what := fmt.Sprintf("project %q", name)
	domain, err := c.domain(ctx)
	if err != nil {
		return "", err
	}
	held, _, err := makeOnce(ctx, what, func(p *projects.Project) string { return p.ID },
		func(ctx context.Context) (*projects.Project, error) {
			found, err := list(ctx, projects.List(c.client.Identity, projects.ListOpts{Name: name, DomainID: domain}), projects.ExtractProjects)
			return only(what, found, err)
		},
		func(ctx context.Context) (*projects.Project, error) {
			return projects.Create(ctx, c.client.Identity, projects.CreateOpts{
				Name: name, DomainID: domain, Description: c.mark(owner), Enabled: yes(),
			}).Extract()
		})
	if err != nil {
		return "", err
	}
	if held.Description != c.mark(owner) {
		return "", fmt.Errorf("%s: %w", what, ErrForeign)
	}
	return held.ID, nil
}

// domain is the domain of the credentials' project.
func (c *Cloud) domain(ctx context.Context) (string, error) {
	own, err := whole(projects.Get(ctx, c.client.Identity, c.client.ProjectID).Extract())
	if err != nil {
		return "", fmt.Errorf("find the domain of the credentials' project: %w", openstack.Explain(err))
	}
	return own.DomainID, nil
}

// User is the desired state of a project's user.
type User struct {
	Owner    string
	Name     string
	Password conf.Secret
	Project  string // its id
	// NewPassword sets the password of an existing user again.
	NewPassword bool
}

// memberRoles are the roles of a tenant's user in its project, if the cloud has them.
func memberRoles() []string { return []string{"member", "load-balancer_member"} }

// EnsureUser creates a user with the roles of a project's member. An existing one without Weft's mark is not taken over, because its
// password would be different.
func (c *Cloud) EnsureUser(ctx context.Context, want User) error {
	what := fmt.Sprintf("user %q", want.Name)
	domain, err := c.domain(ctx)
	if err != nil {
		return err
	}
	held, made, err := makeOnce(ctx, what, func(u *users.User) string { return u.ID },
		func(ctx context.Context) (*users.User, error) {
			found, err := list(ctx, users.List(c.client.Identity, users.ListOpts{Name: want.Name, DomainID: domain}), users.ExtractUsers)
			return only(what, found, err)
		},
		func(ctx context.Context) (*users.User, error) {
			return users.Create(ctx, c.client.Identity, users.CreateOpts{
				Name: want.Name, DomainID: domain, Description: c.mark(want.Owner), Password: string(want.Password),
				DefaultProjectID: want.Project, Enabled: yes(),
			}).Extract()
		})
	if err != nil {
		return err
	}
	if held.Description != c.mark(want.Owner) {
		return fmt.Errorf("%s: %w", what, ErrForeign)
	}
	if !made && want.NewPassword {
		if err := users.Update(ctx, c.client.Identity, held.ID, users.UpdateOpts{Password: string(want.Password)}).Err; err != nil {
			return fmt.Errorf("set the password of %s: %w", what, openstack.Explain(err))
		}
	}
	return c.grant(ctx, what, held.ID, want.Project)
}

// grant assigns a user the roles that it lacks in a project.
func (c *Cloud) grant(ctx context.Context, what, user, project string) error {
	held, err := list(ctx, roles.ListAssignments(c.client.Identity, roles.ListAssignmentsOpts{UserID: user, ScopeProjectID: project}),
		roles.ExtractRoleAssignments)
	if err != nil {
		return fmt.Errorf("list the roles of %s: %w", what, err)
	}
	has := map[string]bool{}
	for _, a := range held {
		has[a.Role.ID] = true
	}
	for _, name := range memberRoles() {
		found, err := list(ctx, roles.List(c.client.Identity, roles.ListOpts{Name: name}), roles.ExtractRoles)
		role, err := only(fmt.Sprintf("role %q", name), found, err)
		if err != nil {
			return err
		}
		if role == nil || has[role.ID] {
			continue
		}
		err = roles.Assign(ctx, c.client.Identity, role.ID, roles.AssignOpts{UserID: user, ProjectID: project}).ExtractErr()
		if err != nil {
			return fmt.Errorf("give %s role %q: %w", what, name, openstack.Explain(err))
		}
	}
	return nil
}

// RemoveTenant removes the user and the project with an owner's mark. Others with these names stay.
func (c *Cloud) RemoveTenant(ctx context.Context, owner, user, project string) error {
	domain, err := c.domain(ctx)
	if err != nil {
		return err
	}
	held, err := list(ctx, users.List(c.client.Identity, users.ListOpts{Name: user, DomainID: domain}), users.ExtractUsers)
	if err != nil {
		return fmt.Errorf("look for user %q: %w", user, err)
	}
	for _, u := range held {
		if u.Description == c.mark(owner) {
			if err := gone("user "+user, users.Delete(ctx, c.client.Identity, u.ID).ExtractErr()); err != nil {
				return err
			}
		}
	}
	own, err := list(ctx, projects.List(c.client.Identity, projects.ListOpts{Name: project, DomainID: domain}), projects.ExtractProjects)
	if err != nil {
		return fmt.Errorf("look for project %q: %w", project, err)
	}
	for _, p := range own {
		if p.Description != c.mark(owner) {
			continue
		}
		if err := c.removeGroups(ctx, p.ID); err != nil {
			return err
		}
		if err := gone("project "+project, projects.Delete(ctx, c.client.Identity, p.ID).ExtractErr()); err != nil {
			return err
		}
	}
	return nil
}

// ForeignPorts counts the ports of a network that neither Weft nor Neutron created: those of machines and others.
func (c *Cloud) ForeignPorts(ctx context.Context, network string) (int, error) {
	found, err := list(ctx, ports.List(c.client.Network, ports.ListOpts{NetworkID: network}), ports.ExtractPorts)
	if err != nil {
		return 0, fmt.Errorf("list the ports of network %s: %w", network, err)
	}
	n := 0
	for _, p := range found {
		if !isNetworks(p.DeviceOwner) && !c.marked(p.Description) {
			n++
		}
	}
	return n, nil
}
