package cloud

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/monitors"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"

	"weft.dev/weft/internal/neutron/openstack"
)

// Methods to choose a member. Octavia's OVN provider only has SOURCE_IP_PORT.
const (
	roundRobin   = pools.LBMethodRoundRobin
	sourceIPPort = pools.LBMethodSourceIpPort
	providerOVN  = "ovn"
)

// bySource is the type of the session persistence that sends a client's connections to one member.
const bySource = "SOURCE_IP"

// SourceAffinity reports whether a listener sends a client's connections to one member.
func (h *HeldListener) SourceAffinity() bool {
	return h.Pool != nil && h.Pool.Persistence.Type == bySource
}

// readListeners reads a load balancer's listeners with their pools, without members.
func (b *balancers) readListeners(ctx context.Context, held *HeldBalancer) error {
	var below []listeners.Listener
	var all []pools.Pool
	err := together(ctx,
		func(ctx context.Context) (err error) {
			below, err = list(ctx, listeners.List(b.client.LoadBalancer, listeners.ListOpts{LoadbalancerID: held.ID}), listeners.ExtractListeners)
			if err != nil {
				return fmt.Errorf("list the listeners of load balancer %q: %w", held.Name, err)
			}
			return nil
		},
		func(ctx context.Context) (err error) {
			all, err = list(ctx, pools.List(b.client.LoadBalancer, pools.ListOpts{LoadbalancerID: held.ID}), pools.ExtractPools)
			if err != nil {
				return fmt.Errorf("list the pools of load balancer %q: %w", held.Name, err)
			}
			return nil
		},
	)
	if err != nil {
		return err
	}
	for _, l := range below {
		h := HeldListener{Listener: l}
		if i := slices.IndexFunc(all, func(p pools.Pool) bool { return p.ID == l.DefaultPoolID }); i >= 0 {
			h.Pool = &all[i]
		}
		held.Listeners = append(held.Listeners, h)
	}
	return nil
}

// membersOf reads a pool's members.
func (b *balancers) membersOf(ctx context.Context, held *HeldBalancer, p *pools.Pool) ([]pools.Member, error) {
	members, err := list(ctx, pools.ListMembers(b.client.LoadBalancer, p.ID, pools.ListMembersOpts{}), pools.ExtractMembers)
	if err != nil {
		return nil, fmt.Errorf("list the members of load balancer %q: %w", held.Name, err)
	}
	return members, nil
}

// advanceListener requests the next change towards the desired listener, and reports whether there was one.
func (b *balancers) advanceListener(ctx context.Context, want Balancer, l Listener, held *HeldBalancer) (changed bool, err error) {
	i := slices.IndexFunc(held.Listeners, func(h HeldListener) bool { return h.Protocol == l.Protocol && h.ProtocolPort == l.Port })
	if i < 0 {
		_, err := whole(listeners.Create(ctx, b.client.LoadBalancer, listeners.CreateOpts{
			LoadbalancerID: held.ID, Name: l.name(), Protocol: listeners.Protocol(l.Protocol), ProtocolPort: l.Port, ProjectID: held.ProjectID,
		}).Extract())
		if err != nil {
			return false, fmt.Errorf("create listener %s of load balancer %q: %w", l.name(), want.Name, openstack.Explain(err))
		}
		return true, nil
	}
	h := &held.Listeners[i]
	if h.Pool == nil {
		return true, b.makePool(ctx, want, l, held, h)
	}
	if h.SourceAffinity() != want.SourceAffinity {
		return true, b.setAffinity(ctx, want, l, h)
	}
	if b.config.CreateMonitor && l.Protocol == "TCP" && h.Pool.MonitorID == "" {
		return true, b.makeMonitor(ctx, want, l, held, h)
	}
	return b.setMembers(ctx, want, l, held, h)
}

// populated returns the listeners with which a load balancer is created in one request, with their pools and members: Octavia then makes
// one change in place of three for each listener. The provider decides which methods a pool may have, and Octavia leaves the port of the
// virtual address in Neutron if it refuses the request. So there are none while the provider is unknown; then they are created one by one.
func (b *balancers) populated(want Balancer) []listeners.CreateOpts {
	provider, known := b.provider.Load().(string)
	if b.config.Provider != "" {
		provider, known = b.config.Provider, true
	}
	if !known {
		return nil
	}
	all := make([]listeners.CreateOpts, 0, len(want.Listeners))
	for _, l := range want.Listeners {
		pool := b.poolOf(want, l, provider)
		for _, m := range l.distinct() {
			pool.Members = append(pool.Members, pools.CreateMemberOpts{Address: m.Addr.String(), ProtocolPort: m.Port, SubnetID: want.Subnet})
		}
		all = append(all, listeners.CreateOpts{
			Name: l.name(), Protocol: listeners.Protocol(l.Protocol), ProtocolPort: l.Port, DefaultPool: &pool,
		})
	}
	return all
}

// distinct returns the members without repetitions, which Octavia refuses.
func (l Listener) distinct() []Member {
	var all []Member
	seen := map[Member]bool{}
	for _, m := range l.Members {
		if !seen[m] {
			seen[m] = true
			all = append(all, m)
		}
	}
	return all
}

// poolOf describes the pool of a listener, without members.
func (b *balancers) poolOf(want Balancer, l Listener, provider string) pools.CreateOpts {
	opts := pools.CreateOpts{Name: l.name(), Protocol: pools.Protocol(l.Protocol), LBMethod: pools.LBMethod(b.config.Method)}
	if provider == providerOVN {
		opts.LBMethod = sourceIPPort
	} else if opts.LBMethod == "" {
		opts.LBMethod = roundRobin
	}
	if want.SourceAffinity {
		opts.Persistence = &pools.SessionPersistence{Type: bySource}
	}
	return opts
}

func (b *balancers) makePool(ctx context.Context, want Balancer, l Listener, held *HeldBalancer, h *HeldListener) error {
	opts := b.poolOf(want, l, held.Provider)
	opts.ListenerID, opts.ProjectID = h.ID, held.ProjectID
	_, err := whole(pools.Create(ctx, b.client.LoadBalancer, opts).Extract())
	if openstack.Is(err, http.StatusNotImplemented) && b.config.Method == "" {
		opts.LBMethod = sourceIPPort
		_, err = whole(pools.Create(ctx, b.client.LoadBalancer, opts).Extract())
	}
	if err != nil {
		return fmt.Errorf("create pool %s of load balancer %q: %w", l.name(), want.Name, openstack.Explain(err))
	}
	return nil
}

// setAffinity sets or removes a pool's session persistence. An empty one stands for none.
func (b *balancers) setAffinity(ctx context.Context, want Balancer, l Listener, h *HeldListener) error {
	persistence := pools.SessionPersistence{}
	if want.SourceAffinity {
		persistence.Type = bySource
	}
	err := pools.Update(ctx, b.client.LoadBalancer, h.Pool.ID, pools.UpdateOpts{Persistence: &persistence}).Err
	if err != nil {
		return fmt.Errorf("set the session persistence of pool %s of load balancer %q: %w", l.name(), want.Name, openstack.Explain(err))
	}
	return nil
}

func (b *balancers) makeMonitor(ctx context.Context, want Balancer, l Listener, held *HeldBalancer, h *HeldListener) error {
	lb := b.config
	err := monitors.Create(ctx, b.client.LoadBalancer, monitors.CreateOpts{
		PoolID: h.Pool.ID, Type: monitors.TypeTCP, Delay: int(lb.MonitorDelay.Seconds()), Timeout: int(lb.MonitorTimeout.Seconds()),
		MaxRetries: lb.MonitorMaxRetries, ProjectID: held.ProjectID,
	}).Err
	if err != nil {
		return fmt.Errorf("create the monitor of pool %s of load balancer %q: %w", l.name(), want.Name, openstack.Explain(err))
	}
	return nil
}

// setMembers replaces a pool's members in one request, if they differ in address or port.
func (b *balancers) setMembers(ctx context.Context, want Balancer, l Listener, held *HeldBalancer, h *HeldListener) (changed bool, err error) {
	if h.Members, err = b.membersOf(ctx, held, h.Pool); err != nil {
		return false, err
	}
	wanted, has := map[Member]bool{}, map[Member]bool{}
	batch := make([]pools.BatchUpdateMemberOpts, 0, len(l.Members))
	for _, m := range l.distinct() {
		wanted[m] = true
		batch = append(batch, pools.BatchUpdateMemberOpts{Address: m.Addr.String(), ProtocolPort: m.Port, SubnetID: &want.Subnet})
	}
	same := len(wanted) == len(h.Members)
	for _, m := range h.Members {
		addr, err := netip.ParseAddr(m.Address)
		one := Member{Addr: addr, Port: m.ProtocolPort}
		same = same && err == nil && wanted[one] && !has[one]
		has[one] = true
	}
	if same {
		return false, nil
	}
	if err := pools.BatchUpdateMembers(ctx, b.client.LoadBalancer, h.Pool.ID, batch).ExtractErr(); err != nil {
		return false, fmt.Errorf("set the members of listener %s of load balancer %q: %w", l.name(), want.Name, openstack.Explain(err))
	}
	return true, nil
}

// prune removes the pool of a listener that is not desired, or a listener without a pool, and reports whether there was one.
func (b *balancers) prune(ctx context.Context, want Balancer, held *HeldBalancer) (changed bool, err error) {
	for _, h := range held.Listeners {
		if slices.ContainsFunc(want.Listeners, func(l Listener) bool { return h.Protocol == l.Protocol && h.ProtocolPort == l.Port }) {
			continue
		}
		if h.Pool != nil {
			return true, gone("pool "+h.Pool.Name, pools.Delete(ctx, b.client.LoadBalancer, h.Pool.ID).ExtractErr())
		}
		return true, gone("listener "+h.Name, listeners.Delete(ctx, b.client.LoadBalancer, h.ID).ExtractErr())
	}
	return false, nil
}
