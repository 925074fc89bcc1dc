package cloud

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"

	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
)

// ErrForeign is returned for an object with the desired name that Weft did not create, and must not take over.
var ErrForeign = errors.New("exists in OpenStack and was not made by Weft")

// TakenError is the ErrForeign for an object that Weft created for another owner.
type TakenError struct {
	What  string // the object, such as `user "a"`
	Owner string // the owner in its mark, or a description of it
}

// Error names the other owner.
func (e *TakenError) Error() string {
	return e.What + ": exists in OpenStack and was made by Weft for " + e.Owner
}

// Unwrap returns ErrForeign.
func (*TakenError) Unwrap() error { return ErrForeign }

// foreign returns the error for an object with that description, which has another owner than the desired one.
func (m marks) foreign(what, description string) error {
	if owner, ours := m.OwnerOf(description); ours {
		return &TakenError{What: what, Owner: owner}
	}
	if mark, weft := strings.CutPrefix(description, markPrefix); weft {
		cluster, _, _ := strings.Cut(mark, " ")
		return &TakenError{What: what, Owner: fmt.Sprintf("another installation, %.64q", cluster)}
	}
	return fmt.Errorf("%s: %w", what, ErrForeign)
}

// tenants makes the requests about projects, their users and their security groups.
type tenants struct {
	marks

	client *openstack.Client
}

// Project finds a project by its id or its name. What has the form of an id is looked up as an id first, anything else as a name first.
func (t *tenants) Project(ctx context.Context, idOrName string) (id string, err error) {
	if idOrName == "" {
		return "", fmt.Errorf("project with an empty name: %w", ErrNotFound)
	}
	looks := []func(context.Context, string) (string, error){t.projectOfID, t.projectOfName}
	if !hexadecimal.MatchString(idOrName) {
		slices.Reverse(looks)
	}
	for _, look := range looks {
		if id, err := look(ctx, idOrName); err != nil || id != "" {
			return id, err
		}
	}
	return "", fmt.Errorf("project %q: %w", idOrName, ErrNotFound)
}

// hexadecimal matches the ids that Keystone gives to projects.
var hexadecimal = regexp.MustCompile(`^[0-9a-f]{32}$`)

// projectOfID returns "" if there is no such project.
func (t *tenants) projectOfID(ctx context.Context, id string) (string, error) {
	p, err := whole(projects.Get(ctx, t.client.Identity, id).Extract())
	if err == nil && p.ID == id {
		return id, nil
	}
	if err != nil && !openstack.NotFound(err) {
		return "", fmt.Errorf("look for project %q: %w", id, openstack.Explain(err))
	}
	return "", nil
}

// projectOfName returns "" if there is no such project.
func (t *tenants) projectOfName(ctx context.Context, name string) (string, error) {
	found, err := list(ctx, projects.List(t.client.Identity, projects.ListOpts{Name: name}), projects.ExtractProjects)
	one, err := only(fmt.Sprintf("project %q", name), found, err)
	if err != nil || one == nil {
		return "", err
	}
	return one.ID, nil
}

// EnsureProject creates a project with that name. An existing one without Weft's mark is not taken over.
func (t *tenants) EnsureProject(ctx context.Context, owner, name string) (string, error) {
	what := fmt.Sprintf("project %q", name)
	domain, err := t.domain(ctx)
	if err != nil {
		return "", err
	}
	held, _, err := makeOnce(ctx, what, func(p *projects.Project) string { return p.ID },
		func(ctx context.Context) (*projects.Project, error) {
			found, err := list(ctx, projects.List(t.client.Identity, projects.ListOpts{Name: name, DomainID: domain}), projects.ExtractProjects)
			return only(what, found, err)
		},
		func(ctx context.Context) (*projects.Project, error) {
			return projects.Create(ctx, t.client.Identity, projects.CreateOpts{
				Name: name, DomainID: domain, Description: t.mark(owner), Enabled: yes(),
			}).Extract()
		})
	if err != nil {
		return "", err
	}
	if held.Description != t.mark(owner) {
		return "", t.foreign(what, held.Description)
	}
	return held.ID, nil
}

// domain is the domain of the credentials' project.
func (t *tenants) domain(ctx context.Context) (string, error) {
	own, err := whole(projects.Get(ctx, t.client.Identity, t.client.ProjectID).Extract())
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
func (t *tenants) EnsureUser(ctx context.Context, want User) error {
	what := fmt.Sprintf("user %q", want.Name)
	domain, err := t.domain(ctx)
	if err != nil {
		return err
	}
	held, made, err := makeOnce(ctx, what, func(u *users.User) string { return u.ID },
		func(ctx context.Context) (*users.User, error) {
			found, err := list(ctx, users.List(t.client.Identity, users.ListOpts{Name: want.Name, DomainID: domain}), users.ExtractUsers)
			return only(what, found, err)
		},
		func(ctx context.Context) (*users.User, error) {
			return users.Create(ctx, t.client.Identity, users.CreateOpts{
				Name: want.Name, DomainID: domain, Description: t.mark(want.Owner), Password: string(want.Password),
				DefaultProjectID: want.Project, Enabled: yes(),
			}).Extract()
		})
	if err != nil {
		return err
	}
	if held.Description != t.mark(want.Owner) {
		return t.foreign(what, held.Description)
	}
	if !made && want.NewPassword {
		if err := users.Update(ctx, t.client.Identity, held.ID, users.UpdateOpts{Password: string(want.Password)}).Err; err != nil {
			return fmt.Errorf("set the password of %s: %w", what, openstack.Explain(err))
		}
	}
	return t.grant(ctx, what, held.ID, want.Project)
}

// grant assigns a user the roles that it lacks in a project.
func (t *tenants) grant(ctx context.Context, what, user, project string) error {
	held, err := list(ctx, roles.ListAssignments(t.client.Identity, roles.ListAssignmentsOpts{UserID: user, ScopeProjectID: project}),
		roles.ExtractRoleAssignments)
	if err != nil {
		return fmt.Errorf("list the roles of %s: %w", what, err)
	}
	has := map[string]bool{}
	for _, a := range held {
		has[a.Role.ID] = true
	}
	for _, name := range memberRoles() {
		found, err := list(ctx, roles.List(t.client.Identity, roles.ListOpts{Name: name}), roles.ExtractRoles)
		role, err := only(fmt.Sprintf("role %q", name), found, err)
		if err != nil {
			return err
		}
		if role == nil || has[role.ID] {
			continue
		}
		err = roles.Assign(ctx, t.client.Identity, role.ID, roles.AssignOpts{UserID: user, ProjectID: project}).ExtractErr()
		if err != nil {
			return fmt.Errorf("give %s role %q: %w", what, name, openstack.Explain(err))
		}
	}
	return nil
}

// RemoveTenant removes the user and the project with an owner's mark. Others with these names stay.
func (t *tenants) RemoveTenant(ctx context.Context, owner, user, project string) error {
	domain, err := t.domain(ctx)
	if err != nil {
		return err
	}
	held, err := list(ctx, users.List(t.client.Identity, users.ListOpts{Name: user, DomainID: domain}), users.ExtractUsers)
	if err != nil {
		return fmt.Errorf("look for user %q: %w", user, err)
	}
	for _, u := range held {
		if u.Description == t.mark(owner) {
			if err := gone("user "+user, users.Delete(ctx, t.client.Identity, u.ID).ExtractErr()); err != nil {
				return err
			}
		}
	}
	own, err := list(ctx, projects.List(t.client.Identity, projects.ListOpts{Name: project, DomainID: domain}), projects.ExtractProjects)
	if err != nil {
		return fmt.Errorf("look for project %q: %w", project, err)
	}
	for _, p := range own {
		if p.Description != t.mark(owner) {
			continue
		}
		if err := t.removeGroups(ctx, p.ID); err != nil {
			return err
		}
		if err := gone("project "+project, projects.Delete(ctx, t.client.Identity, p.ID).ExtractErr()); err != nil {
			return err
		}
	}
	return nil
}
