package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"weft.dev/weft/internal/neutron/openstack"
)

// portSet makes the requests about ports.
type portSet struct {
	marks

	client *openstack.Client
}

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
func (s *portSet) FindPort(ctx context.Context, network, name string) (*HeldPort, error) {
	found, err := s.list(ctx, ports.ListOpts{NetworkID: network, Name: name})
	return only(fmt.Sprintf("port %q", name), found, err)
}

// EnsurePort creates a port, or binds the one with that name to the desired host. made reports whether this call created it: then it is removed
// again if it cannot be bound.
func (s *portSet) EnsurePort(ctx context.Context, want Port) (held *HeldPort, made bool, err error) {
	what := fmt.Sprintf("port %q", want.Name)
	held, made, err = makeOnce(ctx, what, func(p *HeldPort) string { return p.ID },
		func(ctx context.Context) (*HeldPort, error) { return s.FindPort(ctx, want.Network, want.Name) },
		func(ctx context.Context) (*HeldPort, error) {
			held := &HeldPort{}
			err := ports.Create(ctx, s.client.Network, portsbinding.CreateOptsExt{
				CreateOptsBuilder: ports.CreateOpts{
					NetworkID: want.Network, Name: want.Name, Description: s.mark(want.Owner), ProjectID: want.Project,
					AdminStateUp: yes(), DeviceID: want.DeviceID, DeviceOwner: deviceOwner(want.Host), SecurityGroups: &want.Groups,
				},
				HostID: want.Host,
			}).ExtractInto(held)
			return held, err
		})
	if err != nil {
		return nil, false, err
	}
	if !made && (held.HostID != want.Host || held.DeviceOwner != deviceOwner(want.Host)) {
		if held, err = s.rebind(ctx, held.ID, want); err != nil {
			return nil, false, fmt.Errorf("bind %s to %s: %w", what, want.Host, openstack.Explain(err))
		}
	}
	if held.VIFType == "binding_failed" {
		err := fmt.Errorf("%s on host %q: %w", what, want.Host, ErrBinding)
		if made {
			err = errors.Join(err, s.RemovePort(ctx, held.ID))
		}
		return nil, false, err
	}
	return held, made, nil
}

func deviceOwner(host string) string { return "compute:" + host }

func (s *portSet) rebind(ctx context.Context, id string, want Port) (*HeldPort, error) {
	owner := deviceOwner(want.Host)
	held := &HeldPort{}
	err := ports.Update(ctx, s.client.Network, id, portsbinding.UpdateOptsExt{
		UpdateOptsBuilder: ports.UpdateOpts{DeviceID: &want.DeviceID, DeviceOwner: &owner}, HostID: &want.Host,
	}).ExtractInto(held)
	return held, err
}

// AwaitActive waits until Neutron reports that a port is bound and its flows are in effect.
func (s *portSet) AwaitActive(ctx context.Context, id string) error {
	return await(ctx, "port "+id+" to become ACTIVE", func(ctx context.Context) (bool, error) {
		p, err := whole(ports.Get(ctx, s.client.Network, id).Extract())
		if err != nil {
			return false, fmt.Errorf("ask for port %s: %w", id, openstack.Explain(err))
		}
		return p.Status == "ACTIVE", nil
	})
}

// RemovePortOf removes a port that is bound to a host. A port that has moved to another host stays; a missing one is no error.
func (s *portSet) RemovePortOf(ctx context.Context, id, host string) error {
	held := &HeldPort{}
	err := ports.Get(ctx, s.client.Network, id).ExtractInto(held)
	switch {
	case openstack.NotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("ask for port %s: %w", id, openstack.Explain(err))
	case held.HostID != host:
		return nil
	}
	return s.RemovePort(ctx, id)
}

// RemovePort removes a port; a missing one is no error.
func (s *portSet) RemovePort(ctx context.Context, id string) error {
	return gone("port "+id, ports.Delete(ctx, s.client.Network, id).ExtractErr())
}

// ForeignPorts counts the ports of a network that neither Weft nor Neutron created: those of machines and others.
func (s *portSet) ForeignPorts(ctx context.Context, network string) (int, error) {
	found, err := list(ctx, ports.List(s.client.Network, ports.ListOpts{NetworkID: network}), ports.ExtractPorts)
	if err != nil {
		return 0, fmt.Errorf("list the ports of network %s: %w", network, err)
	}
	n := 0
	for _, p := range found {
		if !isNetworks(p.DeviceOwner) && !s.marked(p.Description) {
			n++
		}
	}
	return n, nil
}
