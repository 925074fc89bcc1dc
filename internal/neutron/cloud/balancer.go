package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"

	"weft.dev/weft/internal/neutron/openstack"
)

// Balancer is a load balancer as it is wanted.
type Balancer struct {
	Owner   string
	Name    string
	Project string
	Subnet  string // id of the subnet that its virtual address is of
	// Listeners have different pairs of protocol and port.
	Listeners []Listener
	// SourceAffinity sends a client's connections to one member. Octavia's OVN provider accepts it without effect.
	SourceAffinity bool
	// FloatingIP is the address from outside: an address, or the zero value for none.
	FloatingIP netip.Addr
	// MakeFloating makes FloatingIP where it is not there, with the credentials' rights: only administrators may choose an address in Neutron.
	// Otherwise it has to be one of the project.
	MakeFloating bool
	// AnyFloating gives it an address of the external network where FloatingIP names none, and there is an external network.
	AnyFloating bool
	// ByName takes the load balancer that has the name in the project, as KubeStack does. Otherwise only one with Owner's mark counts.
	ByName bool
}

// Listener is a port of a load balancer.
type Listener struct {
	Protocol string // TCP, UDP or SCTP
	Port     int
	Members  []Member
}

func (l Listener) name() string { return fmt.Sprintf("%s-%d", l.Protocol, l.Port) }

// Member is where a listener's traffic goes.
type Member struct {
	Addr netip.Addr
	Port int
}

// HeldBalancer is a load balancer as Octavia has it.
type HeldBalancer struct {
	loadbalancers.LoadBalancer

	Listeners []HeldListener
	// FloatingIP is its address from outside, where EnsureBalancer was asked for one.
	FloatingIP netip.Addr
}

// HeldListener is a listener with its default pool.
type HeldListener struct {
	listeners.Listener

	Pool    *pools.Pool    // nil: none
	Members []pools.Member // of FindBalancer alone
}

// Errors of load balancers.
var (
	ErrNoOctavia = errors.New("the catalogue of Keystone has no load-balancer service")
	ErrBalancer  = errors.New("provisioning_status is ERROR in Octavia")
)

// Progress is what AdvanceBalancer did.
type Progress int

// Progress of a load balancer.
const (
	// InStep means that nothing is left to change.
	InStep Progress = iota
	// Pending means that Octavia has an earlier change under way, and takes no other.
	Pending
	// Changed means that a change was asked for. There may be more to change.
	Changed
	// Created means that the load balancer itself was asked for.
	Created
)

// FindBalancer looks a load balancer up by name, with all that is below it; project "" means any. It returns ErrNotFound
// and ErrMultiple.
func (c *Cloud) FindBalancer(ctx context.Context, project, name string) (*HeldBalancer, error) {
	one, err := c.named(ctx, project, name)
	if err != nil {
		return nil, err
	}
	held := &HeldBalancer{LoadBalancer: *one}
	if err := c.readListeners(ctx, held); err != nil {
		return nil, err
	}
	for i := range held.Listeners {
		if h := &held.Listeners[i]; h.Pool != nil {
			if h.Members, err = c.membersOf(ctx, held, h.Pool); err != nil {
				return nil, err
			}
		}
	}
	return held, nil
}

// named looks a load balancer up by name, without what is below it.
func (c *Cloud) named(ctx context.Context, project, name string) (*loadbalancers.LoadBalancer, error) {
	what := fmt.Sprintf("load balancer %q", name)
	if c.client.LoadBalancer == nil {
		return nil, ErrNoOctavia
	}
	found, err := list(ctx, loadbalancers.List(c.client.LoadBalancer, loadbalancers.ListOpts{Name: name, ProjectID: project}),
		loadbalancers.ExtractLoadBalancers)
	one, err := only(what, found, err)
	if err == nil && one == nil {
		err = fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	return one, err
}

// OwnBalancer looks up the load balancer that Weft made for an object, in any project, by its mark: a name is no object's own. It returns
// ErrNotFound, and ErrForeign where only one that Weft did not make has the name in the project; project "" has none.
func (c *Cloud) OwnBalancer(ctx context.Context, project, owner, name string) (*loadbalancers.LoadBalancer, error) {
	what := fmt.Sprintf("load balancer %q", name)
	if c.client.LoadBalancer == nil {
		return nil, ErrNoOctavia
	}
	found, err := list(ctx, loadbalancers.List(c.client.LoadBalancer, loadbalancers.ListOpts{Name: name}), loadbalancers.ExtractLoadBalancers)
	foreign := slices.ContainsFunc(found, func(lb loadbalancers.LoadBalancer) bool { return project != "" && lb.ProjectID == project })
	own := slices.DeleteFunc(found, func(lb loadbalancers.LoadBalancer) bool { return lb.Description != c.mark(owner) })
	one, err := only(what, own, err)
	switch {
	case err != nil:
		return nil, err
	case one != nil:
		return one, nil
	case foreign:
		return nil, fmt.Errorf("%s: %w", what, ErrForeign)
	}
	return nil, fmt.Errorf("%s: %w", what, ErrNotFound)
}

// EnsureBalancer makes what is missing of a load balancer, brings its members up to date, and removes listeners that are not
// wanted. It waits for each change. A load balancer that this call made is removed when it fails.
func (c *Cloud) EnsureBalancer(ctx context.Context, want Balancer) (held *HeldBalancer, err error) {
	made := ""
	defer func() {
		if err != nil && made != "" {
			undone := undo{func(ctx context.Context) error { return c.removeBalancer(ctx, made) }}
			err = errors.Join(err, undone.run(ctx))
		}
	}()
	for progress := Pending; progress != InStep; {
		if held, progress, err = c.nextChange(ctx, want); err != nil {
			return nil, err
		}
		if progress == Created {
			made = held.ID
		}
	}
	return held, nil
}

// settleLimit bounds how long Octavia may take for one change.
const settleLimit = 2 * time.Minute

// nextChange waits until Octavia takes the next change, and asks for it.
func (c *Cloud) nextChange(ctx context.Context, want Balancer) (held *HeldBalancer, progress Progress, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	err = await(ctx, fmt.Sprintf("load balancer %q to become ACTIVE", want.Name), func(ctx context.Context) (bool, error) {
		held, progress, err = c.AdvanceBalancer(ctx, want)
		return progress != Pending, err
	})
	return held, progress, err
}

// AdvanceBalancer asks Octavia for the next change that makes a load balancer the wanted one, and waits for nothing: while a change is under
// way, Octavia refuses every other. It returns the load balancer as Octavia had it, without members, and ErrBalancer beside it where Octavia
// failed; its floating IP comes last.
func (c *Cloud) AdvanceBalancer(ctx context.Context, want Balancer) (*HeldBalancer, Progress, error) {
	one, created, err := c.ensureBalancer(ctx, want)
	if err != nil {
		return nil, Pending, err
	}
	held := &HeldBalancer{LoadBalancer: *one}
	switch {
	case created:
		return held, Created, nil
	case one.ProvisioningStatus == "ERROR":
		return held, InStep, fmt.Errorf("load balancer %q: %w", want.Name, ErrBalancer)
	case one.ProvisioningStatus != "ACTIVE":
		return held, Pending, nil
	}
	if err := c.readListeners(ctx, held); err != nil {
		return held, InStep, err
	}
	for _, l := range want.Listeners {
		if changed, err := c.advanceListener(ctx, want, l, held); changed || err != nil {
			return held, Changed, err
		}
	}
	if changed, err := c.prune(ctx, want, held); changed || err != nil {
		return held, Changed, err
	}
	held.FloatingIP = want.FloatingIP
	switch {
	case want.FloatingIP.IsValid():
		err = c.ensureFloating(ctx, want, held.VipPortID)
	case want.AnyFloating && c.config.ExternalNetwork != "":
		held.FloatingIP, err = c.anyFloating(ctx, want, held.VipPortID)
	}
	return held, InStep, err
}

func (c *Cloud) ensureBalancer(ctx context.Context, want Balancer) (*loadbalancers.LoadBalancer, bool, error) {
	if c.client.LoadBalancer == nil {
		return nil, false, ErrNoOctavia
	}
	what := fmt.Sprintf("load balancer %q", want.Name)
	return makeOnce(ctx, what, func(lb *loadbalancers.LoadBalancer) string { return lb.ID },
		func(ctx context.Context) (one *loadbalancers.LoadBalancer, err error) {
			if want.ByName {
				one, err = c.named(ctx, want.Project, want.Name)
			} else {
				one, err = c.OwnBalancer(ctx, want.Project, want.Owner, want.Name)
			}
			if errors.Is(err, ErrNotFound) {
				return nil, nil //nolint:nilnil // it is to be made
			}
			return one, err
		},
		func(ctx context.Context) (*loadbalancers.LoadBalancer, error) {
			return loadbalancers.Create(ctx, c.client.LoadBalancer, loadbalancers.CreateOpts{
				Name: want.Name, Description: c.mark(want.Owner), ProjectID: want.Project, VipSubnetID: want.Subnet,
				Provider: c.config.LoadBalancer.Provider, AdminStateUp: yes(),
			}).Extract()
		})
}

// RemoveBalancer removes a load balancer with all that is below it, and its floating IP where Weft made that. It waits until it is gone.
func (c *Cloud) RemoveBalancer(ctx context.Context, held *loadbalancers.LoadBalancer) error {
	if err := c.releaseFloating(ctx, held.VipPortID); err != nil {
		return err
	}
	return c.removeBalancer(ctx, held.ID)
}

func (c *Cloud) removeBalancer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	return await(ctx, "load balancer "+id+" to be deleted", func(ctx context.Context) (bool, error) { return c.withdrawBalancer(ctx, id) })
}

// WithdrawBalancer is RemoveBalancer without waiting. It reports whether the load balancer is gone; until then it is to be called again.
func (c *Cloud) WithdrawBalancer(ctx context.Context, held *loadbalancers.LoadBalancer) (bool, error) {
	if err := c.releaseFloating(ctx, held.VipPortID); err != nil {
		return false, err
	}
	return c.withdrawBalancer(ctx, held.ID)
}

func (c *Cloud) withdrawBalancer(ctx context.Context, id string) (bool, error) {
	err := loadbalancers.Delete(ctx, c.client.LoadBalancer, id, loadbalancers.DeleteOpts{Cascade: true}).ExtractErr()
	switch {
	case openstack.NotFound(err):
		return true, nil
	case err != nil && !openstack.Is(err, http.StatusConflict): // 409: a change of it is under way
		return false, fmt.Errorf("delete load balancer %s: %w", id, openstack.Explain(err))
	}
	_, err = loadbalancers.Get(ctx, c.client.LoadBalancer, id).Extract()
	return openstack.NotFound(err), nil
}
