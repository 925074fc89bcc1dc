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
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/monitors"
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

// HeldListener is a listener with the pool of its name.
type HeldListener struct {
	listeners.Listener

	Pool    *pools.Pool // nil: none
	Members []pools.Member
}

// Errors of load balancers.
var (
	ErrNoOctavia = errors.New("the catalogue of Keystone has no load-balancer service")
	ErrBalancer  = errors.New("provisioning_status is ERROR in Octavia")
)

// FindBalancer looks a load balancer up by name, with all that is below it; project "" means any. It returns ErrNotFound
// and ErrMultiple.
func (c *Cloud) FindBalancer(ctx context.Context, project, name string) (*HeldBalancer, error) {
	what := fmt.Sprintf("load balancer %q", name)
	if c.client.LoadBalancer == nil {
		return nil, ErrNoOctavia
	}
	found, err := list(ctx, loadbalancers.List(c.client.LoadBalancer, loadbalancers.ListOpts{Name: name, ProjectID: project}),
		loadbalancers.ExtractLoadBalancers)
	one, err := only(what, found, err)
	if err != nil {
		return nil, err
	}
	if one == nil {
		return nil, fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	return c.below(ctx, what, one)
}

// below adds what is below a load balancer.
func (c *Cloud) below(ctx context.Context, what string, one *loadbalancers.LoadBalancer) (*HeldBalancer, error) {
	held := &HeldBalancer{LoadBalancer: *one}
	below, err := list(ctx, listeners.List(c.client.LoadBalancer, listeners.ListOpts{LoadbalancerID: one.ID}), listeners.ExtractListeners)
	if err != nil {
		return nil, fmt.Errorf("list the listeners of %s: %w", what, err)
	}
	all, err := list(ctx, pools.List(c.client.LoadBalancer, pools.ListOpts{LoadbalancerID: one.ID}), pools.ExtractPools)
	if err != nil {
		return nil, fmt.Errorf("list the pools of %s: %w", what, err)
	}
	for _, l := range below {
		h := HeldListener{Listener: l}
		if i := slices.IndexFunc(all, func(p pools.Pool) bool { return p.ID == l.DefaultPoolID }); i >= 0 {
			h.Pool = &all[i]
			h.Members, err = list(ctx, pools.ListMembers(c.client.LoadBalancer, all[i].ID, pools.ListMembersOpts{}), pools.ExtractMembers)
			if err != nil {
				return nil, fmt.Errorf("list the members of %s: %w", what, err)
			}
		}
		held.Listeners = append(held.Listeners, h)
	}
	return held, nil
}

// EnsureBalancer makes what is missing of a load balancer, brings its members up to date, and removes listeners that are not
// wanted. A load balancer that this call made is removed when it fails.
func (c *Cloud) EnsureBalancer(ctx context.Context, want Balancer) (held *HeldBalancer, err error) {
	if c.client.LoadBalancer == nil {
		return nil, ErrNoOctavia
	}
	id, made, err := c.ensureBalancer(ctx, want)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && made {
			undone := undo{func(ctx context.Context) error { return c.removeBalancer(ctx, id) }}
			err = errors.Join(err, undone.run(ctx))
		}
	}()
	if err := c.settled(ctx, id); err != nil {
		return nil, err
	}
	held, err = c.FindBalancer(ctx, want.Project, want.Name)
	if err != nil {
		return nil, err
	}
	for _, l := range want.Listeners {
		if err := c.ensureListener(ctx, want, l, held); err != nil {
			return nil, err
		}
	}
	if err := c.prune(ctx, want, held); err != nil {
		return nil, err
	}
	floating := want.FloatingIP
	switch {
	case floating.IsValid():
		err = c.ensureFloating(ctx, want, held.VipPortID)
	case want.AnyFloating && c.config.ExternalNetwork != "":
		floating, err = c.anyFloating(ctx, want, held.VipPortID)
	}
	if err != nil {
		return nil, err
	}
	if held, err = c.FindBalancer(ctx, want.Project, want.Name); err != nil {
		return nil, err
	}
	held.FloatingIP = floating
	return held, nil
}

// OwnBalancer looks up the load balancer that Weft made for an object, in any project, by its mark: a name is no object's own. It returns
// ErrNotFound, and ErrForeign where only one that Weft did not make has the name in the project; project "" has none.
func (c *Cloud) OwnBalancer(ctx context.Context, project, owner, name string) (*HeldBalancer, error) {
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
		return c.below(ctx, what, one)
	case foreign:
		return nil, fmt.Errorf("%s: %w", what, ErrForeign)
	}
	return nil, fmt.Errorf("%s: %w", what, ErrNotFound)
}

func (c *Cloud) ensureBalancer(ctx context.Context, want Balancer) (id string, made bool, err error) {
	what := fmt.Sprintf("load balancer %q", want.Name)
	held, made, err := makeOnce(ctx, what, func(lb *loadbalancers.LoadBalancer) string { return lb.ID },
		func(ctx context.Context) (*loadbalancers.LoadBalancer, error) {
			found, err := list(ctx, loadbalancers.List(c.client.LoadBalancer, loadbalancers.ListOpts{Name: want.Name, ProjectID: want.Project}),
				loadbalancers.ExtractLoadBalancers)
			return only(what, found, err)
		},
		func(ctx context.Context) (*loadbalancers.LoadBalancer, error) {
			return loadbalancers.Create(ctx, c.client.LoadBalancer, loadbalancers.CreateOpts{
				Name: want.Name, Description: c.mark(want.Owner), ProjectID: want.Project, VipSubnetID: want.Subnet,
				Provider: c.config.LoadBalancer.Provider, AdminStateUp: yes(),
			}).Extract()
		})
	if err != nil {
		return "", false, err
	}
	return held.ID, made, nil
}

// settleLimit bounds how long Octavia may take for one change.
const settleLimit = 2 * time.Minute

// settled waits until Octavia takes the next change.
func (c *Cloud) settled(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	return await(ctx, "load balancer "+id+" to become ACTIVE", func(ctx context.Context) (bool, error) {
		lb, err := whole(loadbalancers.Get(ctx, c.client.LoadBalancer, id).Extract())
		switch {
		case err != nil:
			return false, fmt.Errorf("ask for load balancer %s: %w", id, openstack.Explain(err))
		case lb.ProvisioningStatus == "ERROR":
			return false, fmt.Errorf("load balancer %s: %w", id, ErrBalancer)
		}
		return lb.ProvisioningStatus == "ACTIVE", nil
	})
}

func (c *Cloud) ensureListener(ctx context.Context, want Balancer, l Listener, held *HeldBalancer) error {
	i := slices.IndexFunc(held.Listeners, func(h HeldListener) bool { return h.Protocol == l.Protocol && h.ProtocolPort == l.Port })
	if i < 0 {
		made, err := whole(listeners.Create(ctx, c.client.LoadBalancer, listeners.CreateOpts{
			LoadbalancerID: held.ID, Name: l.name(), Protocol: listeners.Protocol(l.Protocol), ProtocolPort: l.Port, ProjectID: held.ProjectID,
		}).Extract())
		if err != nil {
			return fmt.Errorf("create listener %s of load balancer %q: %w", l.name(), want.Name, openstack.Explain(err))
		}
		held.Listeners = append(held.Listeners, HeldListener{Listener: *made})
		i = len(held.Listeners) - 1
		if err := c.settled(ctx, held.ID); err != nil {
			return err
		}
	}
	h := &held.Listeners[i]
	if h.Pool == nil {
		if err := c.makePool(ctx, want, l, held, h); err != nil {
			return err
		}
	}
	return c.members(ctx, want, l, held.ID, h)
}

// Ways to choose a member. Octavia's OVN provider has SOURCE_IP_PORT alone.
const (
	roundRobin   = pools.LBMethodRoundRobin
	sourceIPPort = pools.LBMethodSourceIpPort
	providerOVN  = "ovn"
)

func (c *Cloud) makePool(ctx context.Context, want Balancer, l Listener, held *HeldBalancer, h *HeldListener) error {
	what := fmt.Sprintf("pool %s of load balancer %q", l.name(), want.Name)
	method := pools.LBMethod(c.config.LoadBalancer.Method)
	if held.Provider == providerOVN {
		method = sourceIPPort
	} else if method == "" {
		method = roundRobin
	}
	opts := pools.CreateOpts{
		Name: l.name(), ListenerID: h.ID, Protocol: pools.Protocol(l.Protocol), LBMethod: method, ProjectID: held.ProjectID,
	}
	if want.SourceAffinity {
		opts.Persistence = &pools.SessionPersistence{Type: "SOURCE_IP"}
	}
	made, err := whole(pools.Create(ctx, c.client.LoadBalancer, opts).Extract())
	if openstack.Is(err, http.StatusNotImplemented) && c.config.LoadBalancer.Method == "" {
		opts.LBMethod = sourceIPPort
		made, err = whole(pools.Create(ctx, c.client.LoadBalancer, opts).Extract())
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", what, openstack.Explain(err))
	}
	h.Pool = made
	if err := c.settled(ctx, held.ID); err != nil {
		return err
	}
	if lb := c.config.LoadBalancer; lb.CreateMonitor && l.Protocol == "TCP" {
		err := monitors.Create(ctx, c.client.LoadBalancer, monitors.CreateOpts{
			PoolID: made.ID, Type: monitors.TypeTCP, Delay: int(lb.MonitorDelay.Seconds()), Timeout: int(lb.MonitorTimeout.Seconds()),
			MaxRetries: lb.MonitorMaxRetries, ProjectID: held.ProjectID,
		}).Err
		if err != nil {
			return fmt.Errorf("create the monitor of %s: %w", what, openstack.Explain(err))
		}
		return c.settled(ctx, held.ID)
	}
	return nil
}

// members replaces a pool's members in one request, when they differ in address or port.
func (c *Cloud) members(ctx context.Context, want Balancer, l Listener, id string, h *HeldListener) error {
	wanted, has := map[Member]bool{}, map[Member]bool{}
	batch := make([]pools.BatchUpdateMemberOpts, 0, len(l.Members))
	for _, m := range l.Members {
		if !wanted[m] {
			wanted[m] = true
			batch = append(batch, pools.BatchUpdateMemberOpts{Address: m.Addr.String(), ProtocolPort: m.Port, SubnetID: &want.Subnet})
		}
	}
	same := len(wanted) == len(h.Members)
	for _, m := range h.Members {
		addr, err := netip.ParseAddr(m.Address)
		one := Member{Addr: addr, Port: m.ProtocolPort}
		same = same && err == nil && wanted[one] && !has[one]
		has[one] = true
	}
	if same {
		return nil
	}
	if err := pools.BatchUpdateMembers(ctx, c.client.LoadBalancer, h.Pool.ID, batch).ExtractErr(); err != nil {
		return fmt.Errorf("set the members of listener %s of load balancer %q: %w", l.name(), want.Name, openstack.Explain(err))
	}
	return c.settled(ctx, id)
}

// prune removes listeners that are not wanted, with their pools.
func (c *Cloud) prune(ctx context.Context, want Balancer, held *HeldBalancer) error {
	for _, h := range held.Listeners {
		if slices.ContainsFunc(want.Listeners, func(l Listener) bool { return h.Protocol == l.Protocol && h.ProtocolPort == l.Port }) {
			continue
		}
		if h.Pool != nil {
			if err := gone("pool "+h.Pool.Name, pools.Delete(ctx, c.client.LoadBalancer, h.Pool.ID).ExtractErr()); err != nil {
				return err
			}
			if err := c.settled(ctx, held.ID); err != nil {
				return err
			}
		}
		if err := gone("listener "+h.Name, listeners.Delete(ctx, c.client.LoadBalancer, h.ID).ExtractErr()); err != nil {
			return err
		}
		if err := c.settled(ctx, held.ID); err != nil {
			return err
		}
	}
	return nil
}

// RemoveBalancer removes a load balancer with all that is below it, and its floating IP where Weft made that.
func (c *Cloud) RemoveBalancer(ctx context.Context, held *HeldBalancer) error {
	if err := c.releaseFloating(ctx, held.VipPortID); err != nil {
		return err
	}
	return c.removeBalancer(ctx, held.ID)
}

func (c *Cloud) removeBalancer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	return await(ctx, "load balancer "+id+" to be deleted", func(ctx context.Context) (bool, error) {
		err := loadbalancers.Delete(ctx, c.client.LoadBalancer, id, loadbalancers.DeleteOpts{Cascade: true}).ExtractErr()
		switch {
		case openstack.NotFound(err):
			return true, nil
		case err != nil && !openstack.Is(err, http.StatusConflict): // 409: a change of it is under way
			return false, fmt.Errorf("delete load balancer %s: %w", id, openstack.Explain(err))
		}
		_, err = loadbalancers.Get(ctx, c.client.LoadBalancer, id).Extract()
		return openstack.NotFound(err), nil
	})
}
