package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"

	"weft.dev/weft/internal/neutron/openstack"
)

// Errors of floating IPs.
var (
	ErrNoExternal = errors.New("a floating IP needs ext-net-id in kubestack.conf")
	ErrTaken      = errors.New("the floating IP is another port's")
	ErrNotHeld    = errors.New("the project has no such floating IP")
)

// floatingIPs makes the requests about the floating IPs of load balancers.
type floatingIPs struct {
	marks

	client *openstack.Client
	// external is Config.ExternalNetwork.
	external string
}

// ensure assigns a floating IP to a load balancer's virtual address: a free one of the project. It is created only with
// MakeFloating. Neutron assigns one to an address at most, so another one is released first, once this one is known to be free.
func (ips *floatingIPs) ensure(ctx context.Context, want Balancer, port string) error {
	if ips.external == "" {
		return ErrNoExternal
	}
	what := "floating IP " + want.FloatingIP.String()
	held, _, err := makeOnce(ctx, what, func(f *floatingips.FloatingIP) string { return f.ID },
		func(ctx context.Context) (*floatingips.FloatingIP, error) {
			found, err := list(ctx, floatingips.List(ips.client.Network, floatingips.ListOpts{
				FloatingIP: want.FloatingIP.String(), FloatingNetworkID: ips.external,
			}), floatingips.ExtractFloatingIPs)
			held, err := only(what, found, err)
			// The Service must not learn whether another project has the address.
			if err == nil && !want.MakeFloating && (held == nil || held.ProjectID != want.Project) {
				return nil, fmt.Errorf("%s: %w: openstack floating ip create --project %s --floating-ip-address %s %s",
					what, ErrNotHeld, want.Project, want.FloatingIP, ips.external)
			}
			return held, err
		},
		func(ctx context.Context) (*floatingips.FloatingIP, error) {
			if err := ips.release(ctx, port); err != nil {
				return nil, err
			}
			return floatingips.Create(ctx, ips.client.Network, floatingips.CreateOpts{
				Description: ips.mark(want.Owner), FloatingNetworkID: ips.external, FloatingIP: want.FloatingIP.String(),
				PortID: port, ProjectID: want.Project,
			}).Extract()
		})
	if err != nil {
		return err
	}
	switch held.PortID {
	case port:
		return nil
	case "":
	default:
		return fmt.Errorf("%s: %w, %s", what, ErrTaken, held.PortID)
	}
	if held.ProjectID != want.Project {
		return fmt.Errorf("%s: %w: it is of project %s", what, ErrTaken, held.ProjectID)
	}
	if err := ips.release(ctx, port); err != nil {
		return err
	}
	if err := floatingips.Update(ctx, ips.client.Network, held.ID, floatingips.UpdateOpts{PortID: &port}).Err; err != nil {
		return fmt.Errorf("lead %s to port %s: %w", what, port, openstack.Explain(err))
	}
	return nil
}

// ensureAny returns the floating IP of a port, and creates one if there is none.
func (ips *floatingIPs) ensureAny(ctx context.Context, want Balancer, port string) (netip.Addr, error) {
	what := "floating IP of load balancer " + want.Name
	held, _, err := makeOnce(ctx, what, func(f *floatingips.FloatingIP) string { return f.ID },
		func(ctx context.Context) (*floatingips.FloatingIP, error) {
			found, err := list(ctx, floatingips.List(ips.client.Network, floatingips.ListOpts{PortID: port}), floatingips.ExtractFloatingIPs)
			return only(what, found, err)
		},
		func(ctx context.Context) (*floatingips.FloatingIP, error) {
			return floatingips.Create(ctx, ips.client.Network, floatingips.CreateOpts{
				Description: ips.mark(want.Owner), FloatingNetworkID: ips.external, PortID: port, ProjectID: want.Project,
			}).Extract()
		})
	if err != nil {
		return netip.Addr{}, err
	}
	addr, err := netip.ParseAddr(held.FloatingIP)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s: %w", what, err)
	}
	return addr, nil
}

// release deletes the floating IPs of a port that Weft created, and disassociates the others from the port.
func (ips *floatingIPs) release(ctx context.Context, port string) error {
	if port == "" {
		return nil
	}
	found, err := list(ctx, floatingips.List(ips.client.Network, floatingips.ListOpts{PortID: port}), floatingips.ExtractFloatingIPs)
	if err != nil {
		return fmt.Errorf("list the floating IPs of port %s: %w", port, err)
	}
	for _, f := range found {
		if ips.marked(f.Description) {
			err = gone("floating IP "+f.FloatingIP, floatingips.Delete(ctx, ips.client.Network, f.ID).ExtractErr())
		} else if err = floatingips.Update(ctx, ips.client.Network, f.ID, floatingips.UpdateOpts{PortID: new(string)}).Err; err != nil {
			err = fmt.Errorf("take floating IP %s off port %s: %w", f.FloatingIP, port, openstack.Explain(err))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
