package cloud

import (
	"context"
	"errors"
	"fmt"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"

	"weft.dev/weft/internal/neutron/openstack"
)

// DefaultGroup is the security group of a project's pods.
const DefaultGroup = "kube-securitygroup-default"

// removeGroups removes the security groups of a project that is deleted: Neutron creates one with the first port.
func (t *tenants) removeGroups(ctx context.Context, project string) error {
	found, err := list(ctx, groups.List(t.client.Network, groups.ListOpts{ProjectID: project}), groups.ExtractGroups)
	if err != nil {
		return fmt.Errorf("list the security groups of project %s: %w", project, err)
	}
	for _, g := range found {
		if err := gone("security group "+g.Name, groups.Delete(ctx, t.client.Network, g.ID).ExtractErr()); err != nil {
			return err
		}
	}
	return nil
}

// ruleExists is Neutron's name of the error for a rule that a group already has.
const ruleExists = "SecurityGroupRuleExists"

// EnsureGroup creates a project's security group that allows everything in and out, for IPv4, as KubeStack's did. If a group already has
// rules for incoming traffic, its rules stay as they are.
func (t *tenants) EnsureGroup(ctx context.Context, project string) (string, error) {
	what := fmt.Sprintf("security group %q of project %s", DefaultGroup, project)
	held, made, err := makeOnce(ctx, what, func(g *groups.SecGroup) string { return g.ID },
		func(ctx context.Context) (*groups.SecGroup, error) {
			found, err := list(ctx, groups.List(t.client.Network, groups.ListOpts{Name: DefaultGroup, ProjectID: project}), groups.ExtractGroups)
			return only(what, found, err)
		},
		func(ctx context.Context) (*groups.SecGroup, error) {
			return groups.Create(ctx, t.client.Network, groups.CreateOpts{
				Name: DefaultGroup, ProjectID: project, Description: t.mark("project/" + project),
			}).Extract()
		})
	if err != nil {
		return "", err
	}
	for _, r := range held.Rules {
		if r.Direction == string(rules.DirIngress) {
			return held.ID, nil
		}
	}
	// A new group already has rules for outgoing traffic; adding them again would be answered with 409.
	err = rules.Create(ctx, t.client.Network, rules.CreateOpts{
		SecGroupID: held.ID, ProjectID: project, Direction: rules.DirIngress, EtherType: rules.EtherType4,
	}).Err
	err = openstack.Explain(err)
	if refused, is := errors.AsType[*openstack.Error](err); err == nil || is && refused.Type == ruleExists {
		return held.ID, nil
	}
	err = fmt.Errorf("let traffic into %s: %w", what, err)
	if made {
		err = errors.Join(err, gone(what, groups.Delete(ctx, t.client.Network, held.ID).ExtractErr()))
	}
	return "", err
}
