package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// Group is the desired state of a project's security group.
type Group struct {
	Project string // its id
	IPv6    bool   // admit IPv6 as well as IPv4
}

// EnsureGroup creates a project's security group that allows everything in and out: IPv4, as KubeStack's did, and IPv6 on request. If a group
// already has rules for incoming IPv4 traffic, these stay as they are. A rule for IPv6 is added to a group that Weft created and that has none
// for incoming IPv6 traffic.
func (t *tenants) EnsureGroup(ctx context.Context, want Group) (string, error) {
	what := fmt.Sprintf("security group %q of project %s", DefaultGroup, want.Project)
	mark := t.mark("project/" + want.Project)
	held, made, err := makeOnce(ctx, what, func(g *groups.SecGroup) string { return g.ID },
		func(ctx context.Context) (*groups.SecGroup, error) {
			found, err := list(ctx, groups.List(t.client.Network, groups.ListOpts{Name: DefaultGroup, ProjectID: want.Project}), groups.ExtractGroups)
			if err != nil || len(found) == 0 {
				return nil, err
			}
			return first(found, mark), nil
		},
		func(ctx context.Context) (*groups.SecGroup, error) {
			return groups.Create(ctx, t.client.Network, groups.CreateOpts{Name: DefaultGroup, ProjectID: want.Project, Description: mark}).Extract()
		})
	if err != nil {
		return "", err
	}
	admitted := map[string]bool{}
	for _, r := range held.Rules {
		if r.Direction == string(rules.DirIngress) {
			admitted[r.EtherType] = true
		}
	}
	var missing []rules.RuleEtherType
	if len(admitted) == 0 {
		missing = append(missing, rules.EtherType4)
	}
	if want.IPv6 && !admitted[string(rules.EtherType6)] && held.Description == mark {
		missing = append(missing, rules.EtherType6)
	}
	for _, family := range missing {
		if err := t.admit(ctx, held.ID, want.Project, family); err != nil {
			err = fmt.Errorf("let %s traffic into %s: %w", family, what, err)
			if made {
				err = errors.Join(err, gone(what, groups.Delete(ctx, t.client.Network, held.ID).ExtractErr()))
			}
			return "", err
		}
	}
	return held.ID, nil
}

// first returns the group that is used if there are several, which several nodes created at the same time: Neutron accepts them all. Those
// that Weft created come first.
func first(found []groups.SecGroup, mark string) *groups.SecGroup {
	return new(slices.MinFunc(found, func(x, y groups.SecGroup) int {
		if mine := x.Description == mark; mine != (y.Description == mark) {
			if mine {
				return -1
			}
			return 1
		}
		return strings.Compare(x.ID, y.ID)
	}))
}

// admit adds a rule for incoming traffic. A new group already has rules for outgoing traffic; adding them again would be answered with 409.
func (t *tenants) admit(ctx context.Context, group, project string, family rules.RuleEtherType) error {
	err := openstack.Explain(rules.Create(ctx, t.client.Network, rules.CreateOpts{
		SecGroupID: group, ProjectID: project, Direction: rules.DirIngress, EtherType: family,
	}).Err)
	if refused, is := errors.AsType[*openstack.Error](err); is && refused.Type == ruleExists {
		return nil
	}
	return err
}
