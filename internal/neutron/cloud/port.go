package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"weft.dev/weft/internal/neutron/openstack"
)

// Port is the desired state of a port.
type Port struct {
	Owner    string
	Name     string
	Project  string
	Network  string // its id
	Host     string // binding:host_id: external_ids:hostname of the node's Open vSwitch
	DeviceID string
	Groups   []string // ids of security groups
}

// HeldPort is a port in Neutron.
type HeldPort struct {
	ports.Port
	portsbinding.PortsBindingExt
}

// UnmarshalJSON parses both parts; the method of ports.Port alone would omit the binding.
func (p *HeldPort) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &p.Port); err != nil {
		return fmt.Errorf("read a port: %w", err)
	}
	if err := json.Unmarshal(data, &p.PortsBindingExt); err != nil {
		return fmt.Errorf("read the binding of port %s: %w", p.ID, err)
	}
	return nil
}

// ErrBinding is returned for a port that Neutron could not bind to its host.
var ErrBinding = errors.New("binding to its host failed in Neutron: check that the host's agent or chassis is registered under this name")

// FindPort looks a port up by name within a network; nil if there is none.
func (c *Cloud) FindPort(ctx context.Context, network, name string) (*HeldPort, error) {
	what := fmt.Sprintf("port %q", name)
	pages, err := ports.List(c.client.Network, ports.ListOpts{NetworkID: network, Name: name}).AllPages(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", what, openstack.Explain(err))
	}
	var found []HeldPort
	err = ports.ExtractPortsInto(pages, &found)
	return only(what, found, err)
}

// EnsurePort creates a port, or binds the one with that name to the desired host. If the port cannot be bound and this call created it, it
// is removed again.
func (c *Cloud) EnsurePort(ctx context.Context, want Port) (*HeldPort, error) {
	what := fmt.Sprintf("port %q", want.Name)
	held, made, err := makeOnce(ctx, what, func(p *HeldPort) string { return p.ID },
		func(ctx context.Context) (*HeldPort, error) { return c.FindPort(ctx, want.Network, want.Name) },
		func(ctx context.Context) (*HeldPort, error) {
			held := &HeldPort{}
			err := ports.Create(ctx, c.client.Network, portsbinding.CreateOptsExt{
				CreateOptsBuilder: ports.CreateOpts{
					NetworkID: want.Network, Name: want.Name, Description: c.mark(want.Owner), ProjectID: want.Project,
					AdminStateUp: yes(), DeviceID: want.DeviceID, DeviceOwner: deviceOwner(want.Host), SecurityGroups: &want.Groups,
				},
				HostID: want.Host,
			}).ExtractInto(held)
			return held, err
		})
	if err != nil {
		return nil, err
	}
	if !made && (held.HostID != want.Host || held.DeviceOwner != deviceOwner(want.Host)) {
		if held, err = c.rebind(ctx, held.ID, want); err != nil {
			return nil, fmt.Errorf("bind %s to %s: %w", what, want.Host, openstack.Explain(err))
		}
	}
	if held.VIFType == "binding_failed" {
		err := fmt.Errorf("%s on host %q: %w", what, want.Host, ErrBinding)
		if made {
			err = errors.Join(err, c.RemovePort(ctx, held.ID))
		}
		return nil, err
	}
	return held, nil
}

func deviceOwner(host string) string { return "compute:" + host }

func (c *Cloud) rebind(ctx context.Context, id string, want Port) (*HeldPort, error) {
	owner := deviceOwner(want.Host)
	held := &HeldPort{}
	err := ports.Update(ctx, c.client.Network, id, portsbinding.UpdateOptsExt{
		UpdateOptsBuilder: ports.UpdateOpts{DeviceID: &want.DeviceID, DeviceOwner: &owner}, HostID: &want.Host,
	}).ExtractInto(held)
	return held, err
}

// AwaitActive waits until Neutron reports that a port is bound and its flows are in effect.
func (c *Cloud) AwaitActive(ctx context.Context, id string) error {
	return await(ctx, "port "+id+" to become ACTIVE", func(ctx context.Context) (bool, error) {
		p, err := whole(ports.Get(ctx, c.client.Network, id).Extract())
		if err != nil {
			return false, fmt.Errorf("ask for port %s: %w", id, openstack.Explain(err))
		}
		return p.Status == "ACTIVE", nil
	})
}

// RemovePortOf removes a port that is bound to a host. A port that has moved to another host stays; a missing one is no error.
func (c *Cloud) RemovePortOf(ctx context.Context, id, host string) error {
	held := &HeldPort{}
	err := ports.Get(ctx, c.client.Network, id).ExtractInto(held)
	switch {
	case openstack.NotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("ask for port %s: %w", id, openstack.Explain(err))
	case held.HostID != host:
		return nil
	}
	return c.RemovePort(ctx, id)
}

// RemovePort removes a port; a missing one is no error.
func (c *Cloud) RemovePort(ctx context.Context, id string) error {
	return gone("port "+id, ports.Delete(ctx, c.client.Network, id).ExtractErr())
}

// DefaultGroup is the security group of a project's pods.
const DefaultGroup = "kube-securitygroup-default"

// removeGroups removes the security groups of a project that is deleted: Neutron creates one with the first port.
func (c *Cloud) removeGroups(ctx context.Context, project string) error {
	found, err := list(ctx, groups.List(c.client.Network, groups.ListOpts{ProjectID: project}), groups.ExtractGroups)
	if err != nil {
		return fmt.Errorf("list the security groups of project %s: %w", project, err)
	}
	for _, g := range found {
		if err := gone("security group "+g.Name, groups.Delete(ctx, c.client.Network, g.ID).ExtractErr()); err != nil {
			return err
		}
	}
	return nil
}

// ruleExists is Neutron's name of the error for a rule that a group already has.
const ruleExists = "SecurityGroupRuleExists"

// EnsureGroup creates a project's security group that allows everything in and out, for IPv4, as KubeStack's did. If a group already has
// rules for incoming traffic, its rules stay as they are.
func (c *Cloud) EnsureGroup(ctx context.Context, project string) (string, error) {
	what := fmt.Sprintf("security group %q of project %s", DefaultGroup, project)
	held, made, err := makeOnce(ctx, what, func(g *groups.SecGroup) string { return g.ID },
		func(ctx context.Context) (*groups.SecGroup, error) {
			found, err := list(ctx, groups.List(c.client.Network, groups.ListOpts{Name: DefaultGroup, ProjectID: project}), groups.ExtractGroups)
			return only(what, found, err)
		},
		func(ctx context.Context) (*groups.SecGroup, error) {
			return groups.Create(ctx, c.client.Network, groups.CreateOpts{
				Name: DefaultGroup, ProjectID: project, Description: c.mark("project/" + project),
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
	err = rules.Create(ctx, c.client.Network, rules.CreateOpts{
		SecGroupID: held.ID, ProjectID: project, Direction: rules.DirIngress, EtherType: rules.EtherType4,
	}).Err
	err = openstack.Explain(err)
	if refused, is := errors.AsType[*openstack.Error](err); err == nil || is && refused.Type == ruleExists {
		return held.ID, nil
	}
	err = fmt.Errorf("let traffic into %s: %w", what, err)
	if made {
		err = errors.Join(err, gone(what, groups.Delete(ctx, c.client.Network, held.ID).ExtractErr()))
	}
	return "", err
}
